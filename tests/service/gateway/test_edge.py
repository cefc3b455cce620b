from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from lacuna.contract.errors import PayloadTooLarge, QueueFull
from lacuna.contract.validation import SMALL_BYTES
from service.gateway.access import ApiKeys
from service.gateway.bodies import BodyTooSlow
from service.gateway.edge import (
    MAX_HEADERS,
    MAX_TARGET,
    BodyBudget,
    BodyLimit,
    CachedProfiles,
    Edge,
)
from service.gateway.metrics import Metrics
from service.gateway.representations import RepresentationCache, represent
from service.settings import ApiKey

ID = "a" * 32


def scope(method: str = "GET", path: str = "/x", **headers: str) -> Scope:
    raw = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    return {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": raw,
        "client": ("1.2.3.4", 1),
    }


async def call(app: Any, given: Scope, *chunks: bytes) -> list[Message]:
    sent: list[Message] = []
    waiting = list(chunks) or [b""]

    async def receive() -> Message:
        body = waiting.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(waiting)}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(given, receive, send)
    return sent


async def reads_all(given: Scope, receive: Receive, send: Send) -> None:
    more = True
    while more:
        more = (await receive())["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def fails_late(given: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise RuntimeError("too late for a problem")


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
async def test_what_is_not_http_passes_through(kind: str) -> None:
    seen: list[Scope] = []

    async def app(given: Scope, receive: Receive, send: Send) -> None:
        seen.append(given)

    metrics = Metrics()
    stack = CachedProfiles(app, RepresentationCache(), metrics)
    keys = [ApiKey("key-1", "measure", "0" * 64)]
    stack = Edge(ApiKeys(BodyLimit(stack, 10), keys, 1, metrics), metrics)  # type: ignore[assignment]
    await call(stack, {"type": kind})
    assert seen == [{"type": kind}]


async def test_head_reaches_the_app_as_get_and_loses_its_body() -> None:
    methods = []

    async def app(given: Scope, receive: Receive, send: Send) -> None:
        methods.append(given["method"])
        await reads_all(given, receive, send)

    start, body = await call(Edge(app, Metrics()), scope("HEAD"))
    assert methods == ["GET"]
    assert start["status"] == 200
    assert body["body"] == b""


async def test_an_error_after_the_first_byte_breaks_the_connection() -> None:
    metrics = Metrics()
    with pytest.raises(RuntimeError):
        await call(Edge(fails_late, metrics), scope())
    assert b'status="200"' in metrics.text(None)


async def test_a_body_is_counted_while_it_is_read() -> None:
    app = BodyLimit(reads_all, 10)
    assert (await call(app, scope("POST"), b"12345", b"67890"))[0]["status"] == 200
    with pytest.raises(PayloadTooLarge):
        await call(app, scope("POST"), b"12345", b"678901")


@pytest.mark.parametrize("length", ["11", "9" * 30])
async def test_a_declared_length_is_refused_unread(length: str) -> None:
    read = []

    async def app(given: Scope, receive: Receive, send: Send) -> None:
        read.append(await receive())

    sent = await call(BodyLimit(app, 10), scope("POST", content_length=length))
    assert sent[0]["status"] == 413
    assert read == []


@pytest.mark.parametrize("length", ["10", "x", "-5", ""])
async def test_a_false_length_does_not_help(length: str) -> None:
    app = BodyLimit(reads_all, 10)
    with pytest.raises(PayloadTooLarge):
        await call(app, scope("POST", content_length=length), b"1" * 11)


@pytest.mark.parametrize(
    ("limits", "interval"),
    [({"pause": 0.05}, 5.0), ({"pause": 5.0, "seconds": 0.1}, 0.03), ({"seconds": 0.0}, 5.0)],
)
async def test_a_body_that_stalls_or_drips_is_given_up(
    limits: dict[str, float], interval: float
) -> None:
    async def receive() -> Message:
        await asyncio.sleep(interval)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    started = time.monotonic()
    with pytest.raises(BodyTooSlow):
        await BodyLimit(reads_all, 1_000, **limits)(scope("POST"), receive, send)
    assert time.monotonic() - started < 2


async def test_after_the_body_the_end_of_the_connection_is_waited_for() -> None:
    messages: list[Message] = [{"type": "http.request", "body": b"x"}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await asyncio.sleep(0.2)
        return {"type": "http.disconnect"}

    seen: list[str] = []

    async def app(given: Scope, receive: Receive, send: Send) -> None:
        seen.extend([(await receive())["type"], (await receive())["type"]])

    async def send(message: Message) -> None:
        raise AssertionError(message)

    await BodyLimit(app, 10, pause=0.05, seconds=0.05)(scope("POST"), receive, send)
    assert seen == ["http.request", "http.disconnect"]


def test_the_budget_counts_all_bodies_and_leaves_half_to_others() -> None:
    budget = BodyBudget(100, largest=10)
    budget.take("a", 50)
    with pytest.raises(QueueFull):
        budget.take("a", 1)
    budget.take("b", 30)
    with pytest.raises(QueueFull):
        budget.take("c", 21)
    budget.take("c", 20)
    budget.give("a", 50)
    budget.take("c", 30)


def test_one_body_of_the_largest_size_always_fits() -> None:
    budget = BodyBudget(1, largest=10)
    budget.take("a", 10)
    with pytest.raises(QueueFull):
        budget.take("b", 1)
    budget.give("a", 10)
    budget.take("b", 10)


async def test_long_bodies_that_are_in_memory_are_counted_together() -> None:
    """Half-sent or complete: each counts until its request ends."""
    go, long = asyncio.Event(), b"x" * (SMALL_BYTES + 10)

    async def app(given: Scope, receive: Receive, send: Send) -> None:
        if given["path"] == "/hold":
            await receive()
            await go.wait()
        await reads_all(given, receive, send)

    limited = BodyLimit(app, limit=2 * SMALL_BYTES, budget=25)
    limited.budget = BodyBudget(25, largest=1)
    held = [
        asyncio.create_task(
            call(limited, {**scope("POST", "/hold"), "client": (name, 1)}, long, b"")
        )
        for name in "ab"
    ]
    await asyncio.sleep(0.01)
    with pytest.raises(QueueFull):
        await call(limited, {**scope("POST"), "client": ("c", 1)}, long)
    short = await call(limited, {**scope("POST"), "client": ("c", 1)}, b"x" * SMALL_BYTES)
    assert short[0]["status"] == 200
    go.set()
    await asyncio.gather(*held)
    assert (await call(limited, scope("POST"), long))[0]["status"] == 200


async def test_memory_answers_before_routing_and_only_what_it_holds() -> None:
    memory, reached = RepresentationCache(), []

    async def app(given: Scope, receive: Receive, send: Send) -> None:
        reached.append(given["path"])

    cached = CachedProfiles(app, memory, Metrics())
    memory.put((ID, "json", None, None), represent(b"{}", "json", private=False))
    path = f"/v1/profiles/{ID}"
    for given in (scope(path=path), scope(path=f"{path}.json"), scope(path=path, accept="*/*")):
        sent = await call(cached, given)
        assert sent[1]["body"] == b"{}"
    assert reached == []
    others = [
        scope(path=path, accept="text/csv"),
        scope(path=f"{path}.svg"),
        scope("DELETE", path),
        {**scope(path=path), "query_string": b"bins=3"},
        scope(path=f"/v1/profiles/{'b' * 32}"),
        scope(path=f"{path}/series"),
    ]
    for given in others:
        await call(cached, given)
    assert len(reached) == len(others)


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (scope(accept="x" * MAX_HEADERS), 431),
        (scope(**{f"x-{number:06d}": "" for number in range(MAX_HEADERS // 8 + 1)}), 431),
        (scope(accept="x" * (MAX_HEADERS - 6)), 200),
        (scope(path="/" * (MAX_TARGET + 1)), 414),
        ({**scope(), "query_string": b"&" * MAX_TARGET}, 414),
        ({**scope(), "query_string": b"&" * (MAX_TARGET - 2)}, 200),
    ],
)
async def test_a_head_longer_than_any_that_is_meant_is_read_by_nobody(
    given: Scope, status: int
) -> None:
    reached = []

    async def app(given: Scope, receive: Receive, send: Send) -> None:
        reached.append(given)
        await reads_all(given, receive, send)

    metrics = Metrics()
    start, _ = await call(Edge(app, metrics), given)
    assert start["status"] == status
    assert len(reached) == (status == 200)
    assert f'status="{status}"'.encode() in metrics.text(None)


async def test_a_client_that_leaves_in_mid_body_is_no_fault_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    messages = [
        {"type": "http.request", "body": b'{"mod', "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    async def app(given: Scope, receive: Receive, send: Send) -> None:
        await Request(given, receive).body()

    metrics = Metrics()
    await Edge(BodyLimit(app, 1_000), metrics)(scope("POST"), receive, send)
    assert sent == []
    assert b'status="499"' in metrics.text(None)
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
