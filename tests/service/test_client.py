"""The command line's client: what it bears while it waits, and what it makes of strange answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest

from lacuna.contract.jobs import Failure, Job
from lacuna.contract.profiles import ProfilePage
from service import client as module
from service.client import Client, Refused, Unfamiliar

ID = "a" * 32
Answers = Callable[[httpx.Request], httpx.Response]


def job(**fields: object) -> httpx.Response:
    made = Job.model_validate(
        {
            "id": ID, "state": "queued", "attempt": 0, "progress": 0.0, "message": "",
            "position": 0, "eta_seconds": None, "failure": None, "profile": None,
            "created_at": "2026-01-01T00:00:00Z", "started_at": None, "finished_at": None,
            **fields,
        }
    )  # fmt: skip
    return httpx.Response(202, content=made.model_dump_json())


DONE = {"state": "done", "progress": 1.0, "profile": f"/v1/profiles/{'b' * 32}"}


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Time passes at once; the pauses that were made."""
    made: list[float] = []
    monkeypatch.setattr(module.time, "sleep", made.append)
    monkeypatch.setattr(module.time, "monotonic", lambda: sum(made))
    return made


def client(*answers: httpx.Response | Exception) -> Client:
    left = list(answers)

    def handle(request: httpx.Request) -> httpx.Response:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Client("http://lacuna.invalid", transport=httpx.MockTransport(handle))


def wait(asked: Client) -> tuple[str, list[Job]]:
    seen: list[Job] = []
    with asked:
        found = asked.profile({"model": "gpt2"}, on_job=seen.append, check=lambda: None)
    return found, seen


def test_a_known_profile_is_not_waited_for(pauses: list[float]) -> None:
    assert wait(client(httpx.Response(200, json={"id": "b" * 32, "more": 1}))) == ("b" * 32, [])
    assert pauses == []


def test_a_wait_bears_a_service_that_starts_again(pauses: list[float]) -> None:
    away = httpx.Response(503, headers={"Retry-After": "7"})
    busy = httpx.Response(429, headers={"Retry-After": "soon"})
    gone = httpx.ConnectError("refused")
    found, seen = wait(client(job(), away, gone, busy, job(state="running"), job(**DONE)))
    assert found == "b" * 32
    assert [one.state for one in seen] == ["running", "done"]
    assert pauses[0] == 7
    assert all(pause <= 1 for pause in pauses[1:])


def test_a_wait_ends_when_the_service_stays_away(pauses: list[float]) -> None:
    with pytest.raises(httpx.ConnectError):
        wait(client(job(), httpx.ConnectError("refused")))
    assert 50 < sum(pauses) < 70
    with pytest.raises(Refused, match=r"^503: Service Unavailable$"):
        wait(client(job(), httpx.Response(503)))


def test_a_wait_ends_when_the_check_says_so() -> None:
    def check() -> None:
        raise RuntimeError("the worker ended")

    with client(job()) as asked, pytest.raises(RuntimeError, match="the worker ended"):
        asked.profile({"model": "gpt2"}, on_job=lambda job: None, check=check)


def test_a_failed_job_is_refused_with_its_reason() -> None:
    failure = Failure(code="not_finite", detail="gradients are NaN", retryable=False)
    failed = job(state="failed", failure=failure)
    with pytest.raises(Refused, match=r"^not_finite: gradients are NaN$"):
        wait(client(job(), failed))
    with pytest.raises(Refused, match="cancelled"):
        wait(client(job(), job(state="cancelled")))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (httpx.Response(404, text="<html>"), "404: Not Found"),
        (httpx.Response(404, json=["no", "problem"]), "404: Not Found"),
        (httpx.Response(422, json={"errors": 3, "detail": "no"}), "422: Unprocessable Entity"),
        (httpx.Response(403, json={"code": "model_gated", "detail": "ask"}), "model_gated: ask"),
        (httpx.Response(301, headers={"Location": "/"}), "301: Moved Permanently"),
    ],
)
def test_refusals_are_told_in_one_line(answer: httpx.Response, message: str) -> None:
    with client(answer) as asked, pytest.raises(Refused) as refusal:
        asked.read(ProfilePage, "/v1/profiles")
    assert str(refusal.value) == message


def test_another_server_at_the_address_is_noticed() -> None:
    page = httpx.Response(200, text="<html>It works!</html>")
    with client(page) as asked:
        for call in (
            lambda: asked.read(ProfilePage, "/v1/profiles"),
            lambda: asked.submit({"model": "gpt2"}),
            lambda: asked.cancel(ID),
        ):
            with pytest.raises(Unfamiliar, match=r"http://lacuna\.invalid/v1/"):
                call()


def test_the_key_is_sent() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        assert request.headers["Authorization"] == "Bearer secret"
        return httpx.Response(200, json={"items": [], "next": None})

    with Client("http://x", "secret", transport=httpx.MockTransport(handle)) as asked:
        assert asked.read(ProfilePage, "/v1/profiles").items == []
