"""Both clients: retries, waiting, errors. Every case runs blocking and async."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest

from lacuna import (
    AsyncClient,
    Chunk,
    Client,
    JobFailed,
    LacunaError,
    Placement,
    Profile,
    Refused,
    Rollout,
    ServiceAway,
    WaitedTooLong,
)
from lacuna.client.flows import retry_after

Call = Callable[..., Any]
PROFILE = {
    "id": "a" * 32,
    "model": {"id": "gpt2"},
    "measured": {"influence": [0.5, 0.5]},
    "dead_zone": {"start": 1, "end": 2, "fraction": 0.5, "mean_density": 0.4,
                  "min_density": 0.4, "argmin": 1, "threshold": 0.75},
    "shape": {"class": "u_shaped"},
    "warnings": [],
}  # fmt: skip


def job(state: str, **more: Any) -> dict[str, Any]:
    return {
        "id": "b" * 32, "state": state, "attempt": 1, "progress": 0.5, "message": "measuring",
        "position": None, "eta_seconds": None, "failure": None, "profile": None,
        "created_at": "", "started_at": None, "finished_at": None, **more,
    }  # fmt: skip


DONE = job("done", progress=1.0, profile=f"/v1/profiles/{'a' * 32}")


class Script:
    """Answers in turn; the last one repeats."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.seen: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(params=["blocking", "async"])
def call(request: pytest.FixtureRequest, naps: list[float]) -> Call:
    """Calls one method of a client of the parametrised kind."""

    def blocking(handler: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        options = kwargs.pop("client", {})
        with Client("http://test", transport=httpx.MockTransport(handler), **options) as one:
            return getattr(one, method)(*args, **kwargs)

    def asynchronous(handler: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        options = kwargs.pop("client", {})

        async def run() -> Any:
            transport = httpx.MockTransport(handler)
            async with AsyncClient("http://test", transport=transport, **options) as one:
                return await getattr(one, method)(*args, **kwargs)

        return asyncio.run(run())

    return blocking if request.param == "blocking" else asynchronous


def ok(body: Any, status: int = 200, **headers: str) -> httpx.Response:
    return httpx.Response(status, json=body, headers=headers)


def busy(seconds: str | None, status: int = 429) -> httpx.Response:
    headers = {} if seconds is None else {"Retry-After": seconds}
    return httpx.Response(status, json={"code": "queue_full", "detail": "busy"}, headers=headers)


def test_both_clients_offer_the_same_calls() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")} - {"close", "aclose"}

    assert public(Client) == public(AsyncClient)


def test_retry_after_is_honoured(call: Call, naps: list[float]) -> None:
    script = Script(busy("3"), busy("0.5", 503), ok({"workers": []}))
    assert call(script, "models") == {"workers": []}
    assert naps == [3.0, 0.5]
    assert len(script.seen) == 3


def test_without_retry_after_pauses_grow(call: Call, naps: list[float]) -> None:
    script = Script(*[busy(None, status) for status in (502, 503, 504, 429)], ok({}))
    call(script, "models")
    assert len(naps) == 4
    for pause, most in zip(naps, (0.25, 0.5, 1.0, 2.0), strict=True):
        assert most / 2 <= pause <= most


def test_a_retry_after_beyond_patience_is_not_waited_for(call: Call, naps: list[float]) -> None:
    with pytest.raises(ServiceAway, match="queue_full"):
        call(Script(busy("3600")), "models")
    assert naps == []


def test_retries_end(call: Call, naps: list[float]) -> None:
    script = Script(busy("1"))
    with pytest.raises(ServiceAway):
        call(script, "models", client={"retries": 2})
    assert len(script.seen) == 3
    assert naps == [1.0, 1.0]


def test_connection_errors_are_retried(call: Call) -> None:
    script = Script(httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), ok({}))
    assert call(script, "models") == {}
    with pytest.raises(ServiceAway, match="refused"):
        call(Script(httpx.ConnectError("refused")), "models", client={"retries": 1})


def test_refusals_are_not_retried_and_say_why(call: Call, naps: list[float]) -> None:
    problem = {
        "code": "invalid_request", "detail": "a field is wrong", "request_id": "r1",
        "errors": [{"field": "chunks.0.relevance", "message": "Field required"}],
    }  # fmt: skip
    script = Script(ok(problem, 422))
    with pytest.raises(Refused, match=r"chunks\.0\.relevance: Field required") as caught:
        call(script, "place", [Chunk("a", 3, 1.0)], model="gpt2")
    assert (caught.value.status, caught.value.code) == (422, "invalid_request")
    assert caught.value.request_id == "r1"
    assert len(script.seen) == 1
    assert naps == []


@pytest.mark.parametrize(
    ("detail", "errors", "said"),
    [
        ("model: Field required", [("model", "Field required")], "x: model: Field required"),
        ("`model` is odd", [("model", "`model` is odd")], "x: `model` is odd"),
        (
            "model: Field required (and 1 more)",
            [("model", "Field required"), ("seed", "Field required")],
            "x: model: Field required (and 1 more) (seed: Field required)",
        ),
    ],
)
def test_a_refusal_says_everything_once(
    detail: str, errors: list[tuple[str, str]], said: str
) -> None:
    fields = [{"field": field, "message": message} for field, message in errors]
    error = Refused(422, {"code": "x", "detail": detail, "errors": fields})
    assert str(error) == said
    assert error.errors == fields


def test_answers_print_short() -> None:
    long = {**PROFILE, "measured": {"influence": [1 / 4096] * 4096}}
    text = repr(Profile.from_json(long))
    assert "tokens=4096" in text
    assert "u_shaped" in text
    assert len(text) < 200
    placed = {
        "order": [f"chunk-{i}" for i in range(900)], "placements": [], "dropped": [], "value": 1.5,
        "gain": {}, "method": "exact", "upper_bound": 1.5, "extrapolated": False,
        "confidence": {"level": "low"}, "warnings": [],
    }  # fmt: skip
    text = repr(Placement.from_json(placed))
    assert "chunk-0" in text
    assert "low" in text
    assert len(text) < 250
    rollout = {"predictions": {"residual": {"influence": [0.1] * 900, "dead_zone": None}}}
    assert repr(Rollout.from_json(rollout)) == "Rollout(predictions=['residual'], tokens=900)"


def test_faults_of_the_service_are_not_refusals(call: Call) -> None:
    with pytest.raises(ServiceAway):
        call(Script(httpx.Response(500, text="oops")), "models")


def test_a_known_profile_comes_at_once(call: Call) -> None:
    script = Script(ok(PROFILE))
    profile = call(script, "profile", "gpt2", sequence_length=64)
    assert profile.id == "a" * 32
    assert profile.dead_zone.start == 1
    assert json.loads(script.seen[0].content) == {"model": "gpt2", "sequence_length": 64}
    assert len(script.seen) == 1


def test_a_new_profile_is_waited_for_with_progress(call: Call) -> None:
    script = Script(
        ok(job("queued", position=1, progress=0.0), 202), ok(job("running")), ok(DONE), ok(PROFILE)
    )
    seen: list[str] = []
    profile = call(script, "profile", "gpt2", on_progress=lambda one: seen.append(one.state))
    assert profile.shape == "u_shaped"
    assert seen == ["queued", "running", "done"]
    assert script.seen[1].headers["Prefer"].startswith("wait=")
    assert script.seen[-1].url.path == f"/v1/profiles/{'a' * 32}"


def test_failed_and_cancelled_jobs_raise(call: Call) -> None:
    failure = {"code": "out_of_memory", "detail": "128 tokens fit", "retryable": False}
    with pytest.raises(JobFailed, match="128 tokens fit") as caught:
        call(Script(ok(job("queued"), 202), ok(job("failed", failure=failure))), "profile", "gpt2")
    assert caught.value.code == "out_of_memory"
    assert not caught.value.retryable
    with pytest.raises(JobFailed, match="cancelled"):
        call(Script(ok(job("queued"), 202), ok(job("cancelled"))), "profile", "gpt2")


def test_a_job_that_failed_before_the_answer_is_not_retried(call: Call) -> None:
    problem = {"code": "worker_lost", "detail": "lost 3 times", "job": "/v1/jobs/x"}
    script = Script(ok(problem, 503))
    with pytest.raises(JobFailed) as caught:
        call(script, "profile", "gpt2")
    assert caught.value.retryable
    assert len(script.seen) == 1


def test_waiting_ends_and_hands_over_the_job(call: Call) -> None:
    with pytest.raises(WaitedTooLong, match="running at 50%") as caught:
        call(Script(ok(job("running"), 202)), "profile", "gpt2", timeout=0)
    assert caught.value.job.id == "b" * 32


def test_submit_wait_and_cancel(call: Call) -> None:
    assert call(Script(ok(job("queued"), 202)), "submit", "gpt2").state == "queued"
    known = call(Script(ok(PROFILE)), "submit", "gpt2")
    assert known.finished
    assert known.profile_id == "a" * 32
    assert call(Script(ok(DONE)), "wait", known).profile_id == "a" * 32
    script = Script(ok(job("cancelled")))
    assert call(script, "cancel", "b" * 32).finished
    assert script.seen[0].method == "DELETE"


def test_listing_follows_the_cursor(call: Call) -> None:
    row = {"id": "a", "model": "gpt2", "sequence_length": 8, "shape": "flat", "created_at": ""}
    script = Script(
        ok({"items": [row] * 100, "next": "c1"}), ok({"items": [row] * 20, "next": None})
    )
    assert len(call(script, "profiles", "gpt2", limit=150)) == 120
    assert dict(script.seen[0].url.params) == {"model": "gpt2", "limit": "100"}
    assert dict(script.seen[1].url.params) == {"model": "gpt2", "limit": "50", "cursor": "c1"}


def test_rollouts_and_comparisons(call: Call) -> None:
    rollout = {"predictions": {"residual": {"influence": [1.0], "dead_zone": None, "shape": {}}}}
    answered = call(Script(ok(rollout)), "rollout", sequence_length=1, layers=2)
    assert answered.influence == {"residual": [1.0]}
    script = Script(ok({"wasserstein": 0.1, "spearman": None, "more": 1}))
    compared = call(script, "compare", "a" * 32, "b" * 32)
    assert compared.wasserstein == 0.1
    assert compared.raw["more"] == 1


def test_placing_changes_nothing_of_the_callers(call: Call, reversing: Any) -> None:
    chunks = [{"id": "a", "tokens": 3, "relevance": 1.0}, Chunk("b", 4, 0.5, pinned="last")]
    before = [dict(chunks[0]), chunks[1]]
    answer = call(reversing, "place", chunks, profile_id="a" * 32)
    assert answer.order == ["b", "a"]
    assert [one.tokens for one in answer.placements] == [4, 3]
    assert chunks == before
    with pytest.raises(LacunaError, match="profile_id"):
        call(reversing, "place", chunks)


def test_the_key_is_sent(call: Call) -> None:
    script = Script(ok({}))
    call(script, "models", client={"api_key": "k" * 20})
    assert script.seen[0].headers["Authorization"] == f"Bearer {'k' * 20}"


def test_retry_after_dates_and_nonsense() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert retry_after(later) == pytest.approx(30, abs=2)
    earlier = format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True)
    assert retry_after(earlier) == 0
    assert retry_after("-3") == 0
    assert retry_after("soon") is None
    assert retry_after(None) is None


def test_threads_share_a_client(reversing: Any) -> None:
    with Client("http://test", transport=httpx.MockTransport(reversing)) as one:
        found: list[list[str]] = []
        chunks = [Chunk("a", 1, 1.0), Chunk("b", 1, 0.0)]
        threads = [
            threading.Thread(target=lambda: found.append(one.place(chunks, model="m").order))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [["b", "a"]] * 8
