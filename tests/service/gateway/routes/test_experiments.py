from __future__ import annotations

import hashlib
import json
from typing import Any

import httpx
import pytest
import redis

from lacuna.contract.experiment_requests import ExperimentRequest
from service.store import keys
from service.store.claims import ExperimentOutcome
from service.store.profiles import packed
from workers.loop import understood

RESULT = ExperimentOutcome(b'{"verdict": "use it"}', packed(["question,arm\r\n", "1,given\r\n"]))
SECRET = "nobody else may read this"
A, B = ({"Authorization": f"Bearer {name}"} for name in ("ann", "bob"))


def body(**changes: Any) -> dict[str, Any]:
    chunks = [{"id": "a", "text": SECRET, "score": 0.5}, {"id": "b", "text": "b", "score": 0.1}]
    questions = [{"question": "Who?", "chunks": chunks, "answers": ["b"]}] * 2
    return {"model": "demo:smollm2-135m-instruct", "questions": questions} | changes


@pytest.fixture
async def keyed(gateway: Any) -> httpx.AsyncClient:
    """A client of a gateway with the keys of Ann and Bob, who may measure."""
    found = [
        f"{name}:measure:{hashlib.sha256(name.encode()).hexdigest()}" for name in ("ann", "bob")
    ]
    client: httpx.AsyncClient = await gateway(api_keys=",".join(found))
    return client


async def test_an_experiment_runs_as_a_job_and_its_result_is_read(
    client: httpx.AsyncClient, worker: Any
) -> None:
    asked = await client.post("/v1/experiments", json=body())
    assert asked.status_code == 202
    job = asked.json()
    assert (job["kind"], job["state"], job["experiment"]) == ("experiment", "queued", None)
    assert asked.headers["location"] == f"/v1/jobs/{job['id']}"
    early = await client.get(f"/v1/experiments/{job['id']}")
    assert (early.status_code, early.json()["id"]) == (202, job["id"])
    claim = worker.claim()
    request = understood(claim)
    assert isinstance(request, ExperimentRequest), "a worker of this version reads it"
    assert request == ExperimentRequest.model_validate(body())
    assert worker.store.finish(claim, RESULT) == "ok"
    done = (await client.get(asked.headers["location"])).json()
    assert (done["state"], done["profile"]) == ("done", None)
    read = await client.get(done["experiment"])
    assert read.json() == {"verdict": "use it"}
    assert read.headers["cache-control"] == "private, no-store"
    for path, headers in ((".csv", {}), ("", {"Accept": "text/csv"})):
        rows = await client.get(f"{done['experiment']}{path}", headers=headers)
        assert rows.text == "question,arm\r\n1,given\r\n"
        assert rows.headers["content-type"] == "text/csv; charset=utf-8"
    again = await client.post("/v1/experiments", json=body())
    assert (again.status_code, again.json()) == (200, {"verdict": "use it"})
    assert again.headers["content-location"] == done["experiment"]
    assert 'lacuna_submissions_total{outcome="cached"} 1.0' in (await client.get("/metrics")).text


async def test_only_the_key_that_asked_reads_the_result(
    keyed: httpx.AsyncClient, worker: Any
) -> None:
    asked = await keyed.post("/v1/experiments", json=body(), headers=A)
    worker.store.finish(worker.claim(), RESULT)
    path = f"/v1/experiments/{asked.json()['id']}"
    assert (await keyed.get(path, headers=A)).status_code == 200
    for other in (path, f"{path}.csv"):
        refused = await keyed.get(other, headers=B)
        assert (refused.status_code, refused.json()["code"]) == (404, "experiment_not_found")
    assert (await keyed.delete(path, headers=B)).status_code == 404
    # The same words of another caller are another job: not even their existence shows.
    own = await keyed.post("/v1/experiments", json=body(), headers=B)
    assert (own.status_code, own.json()["state"]) == (202, "queued")
    assert own.json()["id"] != asked.json()["id"]


async def test_a_caller_can_drop_what_was_found(
    keyed: httpx.AsyncClient, worker: Any, redis_sync: redis.Redis
) -> None:
    asked = await keyed.post("/v1/experiments", json=body(), headers=A)
    path = f"/v1/experiments/{asked.json()['id']}"
    claim = worker.claim()
    stopping = await keyed.delete(path, headers=A)
    assert (stopping.status_code, stopping.json()["message"]) == (202, "stopping")
    worker.store.cancelled(claim)
    assert (await keyed.get(path, headers=A)).status_code == 409
    await keyed.post("/v1/experiments", json=body(), headers=A)
    worker.store.finish(worker.claim(), RESULT)
    assert (await keyed.delete(path, headers=A)).status_code == 204
    assert (await keyed.get(path, headers=A)).status_code == 404
    assert redis_sync.exists(keys.job(path[-32:]), keys.experiment(path[-32:])) == 0
    assert redis_sync.zcard(f"{keys.ENDED}done") == redis_sync.zcard(keys.EXPERIMENTS) == 0


async def test_no_text_stays_in_the_store(
    client: httpx.AsyncClient, worker: Any, redis_sync: redis.Redis
) -> None:
    def texts() -> bool:
        found = (redis_sync.dump(key) or b"" for key in redis_sync.keys("*"))
        return any(b"nobody else" in value for value in found)

    asked = await client.post("/v1/experiments", json=body())
    assert texts()
    await client.delete(asked.headers["location"])
    assert not texts()
    await client.post("/v1/experiments", json=body())
    worker.store.finish(worker.claim(), RESULT)
    assert not texts()
    assert redis_sync.hget(keys.STATS, keys.TEXTS_DROPPED) == b"2", "the log is rewritten as well"


async def test_a_dry_run_estimates_and_queues_nothing(
    client: httpx.AsyncClient, worker: Any
) -> None:
    found = await client.post("/v1/experiments", json=body(dry_run=True))
    assert found.status_code == 200
    estimate = found.json()
    assert (estimate["questions"], estimate["prompts"]) == (2, 12)
    assert estimate["multiply_adds"] > 0
    assert estimate["minutes"] == pytest.approx(estimate["multiply_adds"] / 1.7e10 / 60, rel=1e-4)
    assert estimate["warnings"] == ["2 questions are too few: no verdict is given below 12"]
    assert worker.idle()
    unknown = await client.post("/v1/experiments", json=body(dry_run=True, model="of/nobody"))
    assert unknown.json()["multiply_adds"] is None


@pytest.mark.parametrize(
    ("changes", "status", "code", "field"),
    [
        ({"model": "demo:nothing"}, 404, "model_not_found", "model"),
        ({"model": "endpoint:nothing"}, 404, "endpoint_unknown", "model"),
        ({"model": "preset:gpt2"}, 422, "invalid_request", "model"),
        ({"orders": ["advised"], "profile_id": "f" * 32}, 404, "profile_not_found", None),
        ({"orders": ["advised"]}, 422, "invalid_request", "body"),
        ({"scoring": "regex", "questions": None}, 422, "invalid_request", "questions"),
        ({"budget": {"max_calls": 1}}, 422, "too_large", "budget.max_calls"),
        ({"template": {"jinja": "{% for"}}, 422, "invalid_request", None),
        ({"template": {"jinja": "Q {{ question }}"}}, 422, "invalid_request", "template"),
        ({"orders": ["relevance_first"]}, 422, "invalid_request", "orders"),
    ],
)
async def test_what_no_worker_could_run_is_refused_before_it_waits(
    client: httpx.AsyncClient,
    worker: Any,
    changes: dict[str, Any],
    status: int,
    code: str,
    field: str | None,
) -> None:
    for dry in (False, True):
        refused = await client.post("/v1/experiments", json=body(dry_run=dry, **changes))
        assert (refused.status_code, refused.json()["code"]) == (status, code), refused.text
        if field is not None:
            assert refused.json()["errors"][0]["field"] == field
    assert worker.idle()


async def test_too_costly_says_what_fits(gateway: Any) -> None:
    client = await gateway(max_cost=5e10)
    refused = await client.post(
        "/v1/experiments", json=body(questions=body()["questions"][:1] * 40)
    )
    assert refused.json()["code"] == "too_large"
    assert "of the questions fit" in refused.json()["detail"]


async def test_questions_may_be_longer_than_other_bodies(gateway: Any) -> None:
    client = await gateway(max_body_bytes=2_000, max_experiment_bytes=9_000)
    long = body()
    long["questions"][0]["chunks"][0]["text"] = "x " * 2_000
    assert (await client.post("/v1/profiles", json=long)).status_code == 413
    assert (await client.post("/v1/experiments", json=long)).status_code == 202
    long["questions"][0]["chunks"][0]["text"] = "x " * 5_000
    refused = await client.post("/v1/experiments", json=long)
    assert (refused.status_code, refused.json()["code"]) == (413, "payload_too_large")


async def test_a_failure_is_told_like_that_of_a_profile(
    client: httpx.AsyncClient, worker: Any
) -> None:
    asked = await client.post("/v1/experiments", json=body())
    worker.fail("too_long", "prompts are longer than the model reads", field="questions")
    found = await client.get(f"/v1/experiments/{asked.json()['id']}")
    assert (found.status_code, found.json()["code"]) == (422, "too_long")
    assert found.json()["job"] == asked.headers["location"]
    assert found.json()["errors"][0]["field"] == "questions"


async def test_a_profile_s_job_is_no_experiment(client: httpx.AsyncClient) -> None:
    job = await client.post("/v1/profiles", json={"model": "preset:gpt2", "weights": "random"})
    assert (await client.get(f"/v1/experiments/{job.json()['id']}")).status_code == 404
    assert (await client.get("/v1/experiments/nothing")).status_code == 422
    wrong = await client.get(f"/v1/experiments/{'a' * 32}", headers={"Accept": "image/png"})
    assert wrong.status_code == 406


TABLE = {
    "prod": {
        "base_url": "http://127.0.0.1:9/v1",
        "model": "m",
        "context_length": 4096,
        "key_variable": "PROD_KEY",
        "input_price": 1.0,
        "output_price": 2.0,
    }
}


async def test_an_experiment_with_an_endpoint_waits_for_a_worker_of_endpoints(
    gateway: Any, redis_sync: redis.Redis
) -> None:
    client = await gateway(endpoints=json.dumps(TABLE))
    dry = await client.post("/v1/experiments", json=body(model="endpoint:prod", dry_run=True))
    found = dry.json()
    assert (found["prompts"], found["multiply_adds"]) == (12, None)
    assert found["calls"] >= 12
    spent = found["prompt_tokens"] * 1.0 + found["generated_tokens"] * 2.0
    assert found["cost"] == pytest.approx(spent / 1e6, rel=1e-4)
    cheap = body(model="endpoint:prod", budget={"max_cost": found["cost"] / 2})
    refused = await client.post("/v1/experiments", json=cheap)
    assert (refused.status_code, refused.json()["code"]) == (422, "budget_spent")
    assert "ask fewer questions" in refused.json()["detail"]
    asked = await client.post("/v1/experiments", json=body(model="endpoint:prod"))
    assert (asked.status_code, asked.json()["kind"]) == (202, "experiment")
    assert asked.json()["message"] == "waits for an endpoint worker: none is running"
    assert redis_sync.keys(f"{keys.READY}endpoints:experiment*")
    assert not redis_sync.keys(f"{keys.READY}cpu*")
