"""What an order of chunks says to OpenTelemetry, where the application has its API installed.

Each order is a span named `retrieval`, below the application's current span, as the conventions for
generative AI describe a retrieval (`gen_ai.retrieval`). It carries no text and no id of a document.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from lacuna.contract.placements import PlacementResponse


class OrderSpan:
    """The span of one order; without OpenTelemetry it does nothing.

    Args:
        span: of OpenTelemetry, or None.
    """

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def placed(self, answer: PlacementResponse, outcome: str = "placed") -> None:
        """Note an answer: what it advises, what it gains over the given order, and what it drops.

        Args:
            answer: of a placer.
            outcome: `placed`, or `fallback` where the placer had failed.
        """
        gain = answer.gain.given
        self._set(
            {
                "lacuna.outcome": outcome,
                "lacuna.advice": answer.advice.decision,
                "lacuna.strategy": answer.strategy,
                "lacuna.profile_id": answer.profile_id,
                "lacuna.source": answer.source,
                "lacuna.confidence": answer.confidence.level,
                "lacuna.gain": None if gain is None else gain.value,
                "lacuna.gain.low": None if gain is None else gain.low,
                "lacuna.gain.high": None if gain is None else gain.high,
                "lacuna.documents.dropped": len(answer.dropped),
            }
        )

    def failed(self, code: str) -> None:
        """Note why the placer gave no order: the error's code."""
        self._set({"error.type": code})

    def kept(self) -> None:
        """Note that the given order stands."""
        self._set({"lacuna.outcome": "kept"})

    def _set(self, attributes: dict[str, Any]) -> None:
        if self._span is None:
            return
        known = {name: value for name, value in attributes.items() if value is not None}
        self._span.set_attributes(known)


@contextmanager
def order_span(documents: int) -> Iterator[OrderSpan]:
    """A span for one order of `documents` documents."""
    tracer = _tracer()
    if tracer is None:
        yield OrderSpan()
        return
    about = {"gen_ai.operation.name": "retrieval", "lacuna.documents": documents}
    with tracer.start_as_current_span("retrieval", attributes=about) as span:
        yield OrderSpan(span)


@cache
def _tracer() -> Any:
    """The application's tracer; None where OpenTelemetry is not installed."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace.get_tracer("lacuna")
