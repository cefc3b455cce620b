"""Experiments through both clients: ask, wait, read."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from lacuna import AsyncClient, Client, ExperimentResult, Job, JobFailed
from lacuna.contract.experiment_requests import ExperimentQuestion, ExperimentRequest
from tests.lacuna.client.conftest import EXAMPLES, example

RESULT = example("get_v1_experiments_experiment_id")
JOB: dict[str, Any] = json.loads((EXAMPLES / "post_v1_experiments.response-202.json").read_text())
ASKED = json.loads((EXAMPLES / "post_v1_experiments.request.json").read_text())
DONE = {**JOB, "state": "done", "experiment": f"/v1/experiments/{JOB['id']}", "progress": 1.0}
FAILURE = {"code": "too_long", "detail": "d", "retryable": False, "field": "questions"}


class Service:
    """A service whose experiment ends when it is asked the second time."""

    def __init__(self, end: dict[str, Any] = DONE) -> None:
        self.end, self.seen = end, list[tuple[str, str]]()
        self.body: dict[str, Any] = {}
        self.polls = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append((request.method, request.url.path))
        if request.method == "POST":
            self.body = json.loads(request.content)
            if self.body.pop("dry_run", False):
                estimate = {"questions": 2, "prompts": 12, "prompt_tokens": 99}
                rest = {"generated_tokens": 0, "calls": None, "multiply_adds": 5.0}
                return httpx.Response(200, json={**estimate, **rest, "minutes": 0.1})
            return httpx.Response(202, json=JOB)
        if request.method == "DELETE":
            return httpx.Response(204)
        if request.url.path.startswith("/v1/jobs/"):
            self.polls += 1
            return httpx.Response(200, json=JOB if self.polls == 1 else self.end)
        if request.url.path.endswith(".csv"):
            return httpx.Response(200, content=b"question,arm\r\n")
        return httpx.Response(200, json=RESULT)


def test_an_experiment_is_asked_for_waited_for_and_read(client: Any, naps: Any) -> None:
    service, states = Service(), list[str]()
    one: Client = client(service)
    questions = [ExperimentQuestion.model_validate(each) for each in ASKED["questions"]]
    found = one.experiment(
        ASKED["model"],
        questions,
        orders=ASKED["orders"],
        on_progress=lambda job: states.append(job.state),
    )
    assert found == ExperimentResult.model_validate(RESULT)
    assert states == ["queued", "queued", "done"]
    asked = ExperimentRequest.model_validate(service.body)
    assert asked.job_id == ExperimentRequest.model_validate(ASKED).job_id
    assert one.experiment_rows(found.id) == b"question,arm\r\n"
    one.forget_experiment(found.id)
    assert service.seen[-1] == ("DELETE", f"/v1/experiments/{found.id}")


async def test_the_same_without_blocking(async_client: Any, naps: Any) -> None:
    one: AsyncClient = async_client(Service())
    assert (await one.experiment(**ASKED)).id == RESULT["id"]
    estimate = await one.estimate_experiment(**ASKED)
    assert (estimate.prompts, estimate.minutes) == (12, 0.1)


def test_nobody_has_to_wait(client: Any, naps: Any) -> None:
    one: Client = client(Service())
    job = one.submit_experiment(**ASKED)
    assert isinstance(job, Job)
    assert (job.kind, job.experiment_id) == ("experiment", None)
    done = one.wait(job)
    assert done.experiment_id == job.id
    assert one.get_experiment(job.id).verdict.decision == "not_enough"


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_an_experiment_that_fails_says_why(client: Any, naps: Any, state: str) -> None:
    one: Client = client(Service({**JOB, "state": state, "failure": FAILURE}))
    with pytest.raises(JobFailed) as caught:
        one.experiment(**ASKED)
    assert (caught.value.code, caught.value.field) == ("too_long", "questions")
