"""Both clients: retries, waiting, errors. Every case runs blocking and async."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from lacuna import (
    AsyncClient,
    Chunk,
    Client,
    JobFailed,
    LacunaError,
    Profile,
    Refused,
    ServiceAway,
    UnexpectedAnswer,
    WaitedTooLong,
)
from lacuna.client.errors import FieldError
from lacuna.comparisons import compare

Call = Callable[..., Any]
NO_MODELS = {"demo": [], "presets": [], "architectures": [], "workers": []}


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


def served(profile: Profile) -> httpx.Response:
    return httpx.Response(200, content=profile.model_dump_json())


def busy(seconds: str | None, status: int = 429) -> httpx.Response:
    headers = {} if seconds is None else {"Retry-After": seconds}
    return httpx.Response(status, json={"code": "queue_full", "detail": "busy"}, headers=headers)


def test_both_clients_offer_the_same_calls() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")} - {"close", "aclose"}

    assert public(Client) == public(AsyncClient)


def test_retry_after_is_honoured(call: Call, naps: list[float]) -> None:
    script = Script(busy("3"), busy("0.5", 503), ok(NO_MODELS))
    assert call(script, "models").workers == []
    assert naps == [3.0, 0.5]
    assert len(script.seen) == 3


def test_without_retry_after_pauses_grow(call: Call, naps: list[float]) -> None:
    script = Script(*[busy(None, status) for status in (502, 503, 504, 429)], ok(NO_MODELS))
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
    script = Script(httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), ok(NO_MODELS))
    assert call(script, "models").demo == []
    with pytest.raises(ServiceAway, match="refused"):
        call(Script(httpx.ConnectError("refused")), "models", client={"retries": 1})


def test_refusals_are_not_retried_and_say_why(call: Call, naps: list[float]) -> None:
    problem = {
        "code": "invalid_request", "detail": "a field is wrong", "request_id": "r1",
        "errors": [{"field": "chunks.0.relevance", "message": "Field required"}],
    }  # fmt: skip
    script = Script(ok(problem, 422))
    with pytest.raises(Refused, match=r"chunks\.0\.relevance: Field required") as caught:
        call(script, "place", [Chunk(id="a", tokens=3, relevance=1.0)], model="gpt2")
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
    error = Refused.of_problem(422, {"code": "x", "detail": detail, "errors": fields})
    assert str(error) == said
    assert error.errors == tuple(FieldError(*pair) for pair in errors)
    assert error.field == errors[0][0]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"status_code": 404, "text": "<html>"}, "404: Not Found"),
        ({"status_code": 404, "json": ["no", "problem"]}, "404: Not Found"),
        ({"status_code": 422, "json": {"errors": 3, "detail": "no"}}, "422: no"),
        ({"status_code": 403, "json": {"code": "model_gated", "detail": "a"}}, "model_gated: a"),
        ({"status_code": 301, "headers": {"Location": "/"}}, "301: Moved Permanently"),
    ],
)
def test_refusals_of_others_are_told_in_one_line(
    call: Call, answer: dict[str, Any], said: str
) -> None:
    with pytest.raises(Refused) as refusal:
        call(Script(httpx.Response(**answer)), "profiles")
    assert str(refusal.value) == said
    assert not refusal.value.retryable


def test_another_server_at_the_address_is_noticed(call: Call) -> None:
    page = httpx.Response(200, text="<html>It works!</html>")
    other = ok({"id": 3})
    for answer in (page, other):
        for method, arguments in (("profiles", []), ("submit", ["gpt2"]), ("cancel", ["b" * 32])):
            with pytest.raises(UnexpectedAnswer, match=r"http://test/v1/.* that this version can"):
                call(Script(answer), method, *arguments)


def test_answers_of_newer_services_are_read(call: Call, profile: Profile) -> None:
    document = {**json.loads(profile.model_dump_json()), "new": 1}
    document["shape"]["class"] = "w_shaped"
    assert call(Script(ok(document)), "get_profile", "a" * 32).shape.class_ == "w_shaped"


def test_every_error_is_a_lacuna_error_with_code_and_sentence(call: Call) -> None:
    cases = {
        "service_away": httpx.ConnectError("refused"),
        "unexpected_answer": httpx.Response(200, text="hello"),
        "profile_not_found": ok({"code": "profile_not_found", "detail": "none"}, 404),
    }
    for code, answer in cases.items():
        with pytest.raises(LacunaError) as caught:
            call(Script(answer), "get_profile", "a" * 32, client={"retries": 0})
        assert (caught.value.code, bool(caught.value.detail)) == (code, True)
        assert caught.value.retryable is (code == "service_away")


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"url": "nowhere"}, "url"),
        ({"url": "http://[::1"}, "url"),
        ({"url": "http://host:port"}, "url"),
        ({"url": "http://"}, "url"),
        ({"api_key": "schlüssel"}, "api_key"),
        ({"api_key": "two\nlines"}, "api_key"),
        ({"api_key": " \n"}, "api_key"),
    ],
)
def test_a_wrong_address_or_key_is_found_before_any_request(
    kind: type[Client | AsyncClient], arguments: dict[str, str], field: str
) -> None:
    with pytest.raises(Refused) as refusal:
        kind(**arguments)
    assert refusal.value.field == field


def test_faults_of_the_service_are_not_refusals(call: Call) -> None:
    with pytest.raises(ServiceAway):
        call(Script(httpx.Response(500, text="oops")), "models")


def test_a_known_profile_comes_at_once(call: Call, profile: Profile) -> None:
    script = Script(served(profile))
    assert call(script, "profile", "gpt2", sequence_length=64) == profile
    assert json.loads(script.seen[0].content) == {"model": "gpt2", "sequence_length": 64}
    assert len(script.seen) == 1


def test_a_new_profile_is_waited_for_with_progress(call: Call, profile: Profile) -> None:
    queued = job("queued", position=1, progress=0.0)
    script = Script(ok(queued, 202), ok(job("running")), ok(DONE), served(profile))
    seen: list[str] = []
    found = call(script, "profile", "gpt2", on_progress=lambda one: seen.append(one.state))
    assert found == profile
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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, naps: list[float]) -> None:
    """Time passes by sleeping alone."""
    monkeypatch.setattr(time, "monotonic", lambda: sum(naps))


@pytest.mark.usefixtures("clock")
def test_a_wait_bears_a_service_that_starts_again(call: Call, naps: list[float]) -> None:
    away = httpx.Response(503, headers={"Retry-After": "7"})
    soon = httpx.Response(429, headers={"Retry-After": "soon"})
    gone = httpx.ConnectError("refused")
    script = Script(ok(job("queued"), 202), away, gone, soon, ok(job("running")), ok(DONE))
    seen: list[str] = []
    asked = call(script, "submit", "gpt2")
    options = {"on_progress": lambda one: seen.append(one.state), "client": {"retries": 0}}
    assert call(script, "wait", asked, **options).profile_id == "a" * 32
    assert seen == ["queued", "running", "done"]
    assert naps[0] == 7
    assert all(pause <= 1 for pause in naps[1:])


@pytest.mark.usefixtures("clock")
def test_a_wait_ends_when_the_service_stays_away(call: Call, naps: list[float]) -> None:
    for answer in (httpx.ConnectError("refused"), httpx.Response(503)):
        naps.clear()
        asked = call(Script(ok(job("queued"), 202)), "submit", "gpt2")
        with pytest.raises(ServiceAway):
            call(Script(answer), "wait", asked, client={"retries": 0})
        assert 50 < sum(naps) <= 60
        naps.clear()
        with pytest.raises(ServiceAway):
            call(Script(answer), "wait", asked, timeout=5, client={"retries": 0})
        assert sum(naps) <= 5


def test_what_a_callback_raises_ends_the_wait(call: Call) -> None:
    def watch(seen: Any) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        call(Script(ok(job("queued"), 202)), "profile", "gpt2", on_progress=watch)


def test_waiting_ends_and_hands_over_the_job(call: Call) -> None:
    with pytest.raises(WaitedTooLong, match="running at 50%") as caught:
        call(Script(ok(job("running"), 202)), "profile", "gpt2", timeout=0)
    assert caught.value.job.id == "b" * 32


def test_submit_wait_and_cancel(call: Call, profile: Profile) -> None:
    queued = call(Script(ok(job("queued"), 202)), "submit", "gpt2")
    assert queued.state == "queued"
    assert call(Script(served(profile)), "submit", "gpt2") == profile
    assert call(Script(ok(DONE)), "wait", queued).profile_id == "a" * 32
    assert call(Script(ok(DONE)), "job", "b" * 32).finished
    script = Script(ok(job("cancelled")))
    assert call(script, "cancel", "b" * 32).finished
    assert script.seen[0].method == "DELETE"


def test_a_profile_is_exported_as_it_is_sent(call: Call) -> None:
    for form in ("json", "svg"):
        script = Script(httpx.Response(200, content=b"as it is\n"))
        assert call(script, "export", "a" * 32, form) == b"as it is\n"
        assert script.seen[0].url.path == f"/v1/profiles/{'a' * 32}.{form}"


def test_listing_follows_the_cursor(call: Call, profile: Profile) -> None:
    verdict = json.loads(profile.model_dump_json())["dead_zone_verdict"]
    row = {
        "id": "a" * 32, "model": "gpt2", "revision": None, "weights": "pretrained",
        "sequence_length": 8, "objective": "jacobian", "documents": 2, "shape": "flat",
        "dead_zone": None, "dead_zone_verdict": verdict, "primacy_mass": 0.1,
        "recency_mass": 0.1, "created_at": "",
    }  # fmt: skip
    script = Script(
        ok({"items": [row] * 100, "next": "c1"}), ok({"items": [row] * 20, "next": None})
    )
    found = call(script, "profiles", "gpt2", limit=150)
    assert (len(found.items), found.next) == (120, None)
    assert dict(script.seen[0].url.params) == {"model": "gpt2", "limit": "100"}
    assert dict(script.seen[1].url.params) == {"model": "gpt2", "limit": "50", "cursor": "c1"}
    script = Script(ok({"items": [row] * 3, "next": "c1"}))
    assert call(script, "profiles", limit=3).next == "c1"
    assert len(script.seen) == 1


def test_rollouts_and_comparisons(call: Call, answer_of: Any, profile: Profile) -> None:
    rollout = answer_of("post_v1_rollouts")
    answered = call(Script(ok(rollout)), "rollout", sequence_length=1, layers=2)
    assert answered.predictions.keys() == rollout["predictions"].keys()
    answer = compare(profile, profile)
    script = Script(ok({**json.loads(answer.model_dump_json()), "more": 1}))
    assert call(script, "compare", "a" * 32, "b" * 32, bins=10) == answer
    assert dict(script.seen[0].url.params) == {"a": "a" * 32, "b": "b" * 32, "bins": "10"}


def test_placing_changes_nothing_of_the_callers(call: Call, reversing: Any) -> None:
    chunks = [
        {"id": "a", "tokens": 3, "relevance": 1.0},
        Chunk(id="b", tokens=4, relevance=0.5, pinned="last"),
    ]
    before = [dict(chunks[0]), chunks[1]]
    answer = call(reversing, "place", chunks, profile_id="a" * 32)
    assert answer.order == ["b", "a"]
    assert [one.tokens for one in answer.placements] == [4, 3]
    assert chunks == before
    with pytest.raises(LacunaError, match="profile_id"):
        call(reversing, "place", chunks)


@pytest.mark.parametrize("around", ["", "\n", " ", "\r\n"])
def test_the_key_is_sent_without_the_blanks_of_its_file(call: Call, around: str) -> None:
    script = Script(ok(NO_MODELS))
    call(script, "models", client={"api_key": f"{around}{'k' * 20}{around}"})
    assert script.seen[0].headers["Authorization"] == f"Bearer {'k' * 20}"


def test_threads_share_a_client(reversing: Any) -> None:
    with Client("http://test", transport=httpx.MockTransport(reversing)) as one:
        found: list[list[str]] = []
        chunks = [
            Chunk(id="a", tokens=1, relevance=1.0),
            Chunk(id="b", tokens=1, relevance=0.0),
        ]
        threads = [
            threading.Thread(target=lambda: found.append(one.place(chunks, model="m").order))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [["b", "a"]] * 8
