"""Rollouts over HTTP: who waits for whom."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from lacuna.contract.rollouts import RolloutRequest
from service.answers import rollouts

Gateway = Callable[..., Awaitable[httpx.AsyncClient]]
KEYS = ["first-key-of-sixteen", "other-key-of-sixteen"]
SMALL = {"layers": 2, "heads": 1, "sequence_length": 16}


class Held:
    """Rollouts of more than ten layers run until `go`, or until nobody waits for them."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.started, self.given_up = 0, 0

    def compute(self, request: RolloutRequest, given_up: Callable[[], bool] = lambda: False) -> Any:
        if request.layers is not None and request.layers > 10:
            self.started += 1
            while not self.go.wait(0.01):
                if given_up():
                    self.given_up += 1
                    raise RuntimeError("nobody waits")
        return compute(request)


compute = rollouts.compute


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    made = Held()
    monkeypatch.setattr(rollouts, "compute", made.compute)
    return made


@pytest.fixture
async def client(gateway: Gateway, held: Held) -> AsyncIterator[httpx.AsyncClient]:
    found = await gateway(api_keys=KEYS)
    yield found
    held.go.set()


def asks(client: httpx.AsyncClient, key: str, layers: int) -> asyncio.Task[httpx.Response]:
    headers = {"X-API-Key": key}
    call = client.post("/v1/rollouts", json={**SMALL, "layers": layers}, headers=headers)
    return asyncio.create_task(call)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def test_another_key_does_not_wait_for_the_rollouts_of_the_first(
    client: httpx.AsyncClient, held: Held
) -> None:
    first = [asks(client, KEYS[0], 20) for _ in range(20)]
    await until(lambda: held.started == 2)
    assert (await asks(client, KEYS[1], 2)).status_code == 200
    assert held.started == 2
    assert not any(one.done() for one in first)
    held.go.set()
    answers = await asyncio.gather(*first)
    assert {one.status_code for one in answers} == {200}


async def test_health_answers_while_every_thread_is_taken(
    client: httpx.AsyncClient, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By construction: neither uses a pool, nor the loop's own threads."""
    first = [asks(client, KEYS[0], 20) for _ in range(30)]
    await until(lambda: held.started == 2)

    def refused(*given: object) -> None:
        raise AssertionError("a thread was asked for")

    monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", refused)
    assert (await client.get("/healthz")).status_code == 200
    assert (await client.get("/readyz")).status_code in (200, 503)  # 503: no worker is running
    monkeypatch.undo()
    assert not any(one.done() for one in first)
    held.go.set()
    await asyncio.gather(*first)


async def test_rollouts_of_a_caller_who_left_make_room_whether_they_wait_or_run(
    client: httpx.AsyncClient, held: Held
) -> None:
    left = asyncio.Event()

    async def leaves() -> None:
        """A connection that sends a long rollout and then goes."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/rollouts",
            "raw_path": b"/v1/rollouts",
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [
                (b"content-type", b"application/json"),
                (b"x-api-key", KEYS[0].encode()),
            ],
            "client": ("1.2.3.4", 5),
            "server": ("test", 80),
        }
        messages = [{"type": "http.request", "body": json.dumps({**SMALL, "layers": 20}).encode()}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: object) -> None:
            raise AssertionError(message)

        transport = client._transport
        assert isinstance(transport, httpx.ASGITransport)
        await transport.app(scope, receive, send)

    leaving = [asyncio.create_task(leaves()) for _ in range(6)]
    await until(lambda: held.started == 2)
    left.set()
    await asyncio.gather(*leaving)
    # `go` is not set: only what was given up can have made room.
    assert (await asks(client, KEYS[0], 2)).status_code == 200
    await until(lambda: held.given_up == 2)
    assert held.started == 2
