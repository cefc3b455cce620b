"""A service made of plain functions, and clients that talk to it without a network."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from lacuna import AsyncClient, Client

Handler = Callable[[httpx.Request], httpx.Response]


def placed(request: httpx.Request) -> httpx.Response:
    """Reverses the chunks: an order that no client makes up by itself."""
    body = json.loads(request.content)
    chunks = body["chunks"][::-1]
    dropped = chunks[body["max_chunks"] :] if body.get("max_chunks") else []
    chunks = [chunk for chunk in chunks if chunk not in dropped]
    placements = [
        {"id": c["id"], "offset": 0, "tokens": c["tokens"], "visibility": 1.0, "mass": 0.1,
         "in_dead_zone": False}
        for c in chunks
    ]  # fmt: skip
    answer = {
        "order": [c["id"] for c in chunks], "placements": placements,
        "dropped": [c["id"] for c in dropped], "value": 1.0, "gain": {"given": 0.1},
        "method": "exact", "upper_bound": 1.0, "extrapolated": False,
        "confidence": {"level": "high"}, "warnings": [], "new_in_some_later_version": 1,
    }  # fmt: skip
    return httpx.Response(200, json=answer)


def away(request: httpx.Request) -> httpx.Response:
    """Nobody listens."""
    raise httpx.ConnectError("connection refused", request=request)


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Sleeping is recorded, not done."""
    taken: list[float] = []

    async def nap(seconds: float) -> None:
        taken.append(seconds)

    monkeypatch.setattr(time, "sleep", taken.append)
    monkeypatch.setattr(asyncio, "sleep", nap)
    return taken


@pytest.fixture
def client() -> Iterator[Callable[..., Client]]:
    """Makes blocking clients of a handler."""
    made: list[Client] = []

    def make(handler: Handler, **options: Any) -> Client:
        one = Client("http://test", transport=httpx.MockTransport(handler), **options)
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


@pytest.fixture
def async_client() -> Callable[..., AsyncClient]:
    """Makes async clients of a handler."""

    def make(handler: Handler, **options: Any) -> AsyncClient:
        return AsyncClient("http://test", transport=httpx.MockTransport(handler), **options)

    return make


@pytest.fixture
def reversing() -> Handler:
    """See `placed`."""
    return placed


@pytest.fixture
def unreachable() -> Handler:
    """See `away`."""
    return away
