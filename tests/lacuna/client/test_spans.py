"""What an order says to OpenTelemetry: by a tracer that remembers."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lacuna import AsyncClient, OfflinePlacer, Reorderer
from lacuna.client import spans

trace = pytest.importorskip("opentelemetry.trace")

TEXTS = ["a secret text", "another one", "a third"]
SCORES = [0.1, 0.9, 0.5]


class Span:
    def __init__(self, name: str, attributes: dict[str, Any]) -> None:
        self.name, self.attributes = name, dict(attributes)

    def set_attributes(self, more: dict[str, Any]) -> None:
        for value in more.values():
            assert isinstance(value, str | bool | int | float), "OpenTelemetry takes no other"
        self.attributes |= more


class Tracer:
    def __init__(self) -> None:
        self.spans: list[Span] = []

    @contextmanager
    def start_as_current_span(self, name: str, attributes: dict[str, Any]) -> Iterator[Span]:
        self.spans.append(Span(name, attributes))
        yield self.spans[-1]


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tracer]:
    found = Tracer()
    monkeypatch.setattr(trace, "get_tracer", lambda name: found)
    spans._tracer.cache_clear()
    yield found
    spans._tracer.cache_clear()


def test_a_placed_order_says_what_is_advised(client: Any, reversing: Any, tracer: Tracer) -> None:
    assert len(Reorderer(client(reversing), density=[1.0]).order(TEXTS, SCORES)) == 3
    (span,) = tracer.spans
    assert span.name == "retrieval"
    assert span.attributes["gen_ai.operation.name"] == "retrieval"
    assert span.attributes["lacuna.documents"] == 3
    assert span.attributes["lacuna.outcome"] == "placed"
    assert span.attributes["lacuna.advice"] in {"reorder", "keep", "undecided"}
    assert isinstance(span.attributes["lacuna.gain"], float)
    assert not any("secret" in str(value) for value in span.attributes.values())


async def test_a_failure_says_why_and_what_was_done(
    async_client: Any, unreachable: Any, tracer: Tracer
) -> None:
    one: AsyncClient = async_client(unreachable, retries=0)
    with pytest.warns(RuntimeWarning):
        await Reorderer(one, density=[1.0]).aorder(TEXTS, SCORES)
    assert tracer.spans[0].attributes["error.type"] == "service_away"
    assert tracer.spans[0].attributes["lacuna.outcome"] == "kept"


def test_a_fallback_is_told(client: Any, unreachable: Any, tracer: Tracer, profile: Any) -> None:
    one = client(unreachable, retries=0)
    reorderer = Reorderer(one, model="m", fallback=OfflinePlacer(profile))
    reorderer.order(TEXTS, SCORES)
    (span,) = tracer.spans
    assert (span.attributes["lacuna.outcome"], span.attributes["error.type"]) == (
        "fallback",
        "service_away",
    )
    assert span.attributes["lacuna.profile_id"] == profile.id


def test_without_opentelemetry_nothing_changes(
    client: Any, reversing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *rest, **more)

    spans._tracer.cache_clear()
    monkeypatch.setattr(builtins, "__import__", absent)
    assert len(Reorderer(client(reversing), density=[1.0]).order(TEXTS, SCORES)) == 3
    spans._tracer.cache_clear()
