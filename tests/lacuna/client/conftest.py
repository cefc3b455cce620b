"""A service made of plain functions, and clients that talk to it without a network."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lacuna import AsyncClient, Client

Handler = Callable[[httpx.Request], httpx.Response]


EXAMPLES = Path(__file__).parents[3] / "openapi" / "examples"


def example(name: str) -> dict[str, Any]:
    """An answer as the API's documentation shows it."""
    found: dict[str, Any] = json.loads((EXAMPLES / f"{name}.response-200.json").read_text())
    return found


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
        **example("post_v1_placements"), "order": [c["id"] for c in chunks],
        "placements": placements, "dropped": [c["id"] for c in dropped],
        "new_in_some_later_version": 1,
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


@pytest.fixture
def answer_of() -> Callable[[str], dict[str, Any]]:
    """See `example`."""
    return example
