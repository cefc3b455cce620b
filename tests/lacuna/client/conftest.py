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
from lacuna.client.offline import curve_of, place_along
from lacuna.contract.placements import PlacementRequest

Handler = Callable[[httpx.Request], httpx.Response]


EXAMPLES = Path(__file__).parents[3] / "openapi" / "examples"


def example(name: str) -> dict[str, Any]:
    """An answer as the API's documentation shows it."""
    found: dict[str, Any] = json.loads((EXAMPLES / f"{name}.response-200.json").read_text())
    return found


def placed(request: httpx.Request) -> httpx.Response:
    """Reverses the chunks: an order that no client makes up by itself."""
    body = json.loads(request.content)
    kept = body["chunks"][::-1][: body.get("max_chunks")]
    chunks = [
        {"id": chunk["id"], "tokens": chunk["tokens"], "relevance": 1.0, "pinned": place}
        for place, chunk in enumerate(kept)
    ]
    asked = PlacementRequest.model_validate({"density": [1.0], "chunks": chunks})
    answer = json.loads(place_along(asked, curve_of(asked)).model_dump_json())
    return httpx.Response(200, json={**answer, "new_in_some_later_version": 1})


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
