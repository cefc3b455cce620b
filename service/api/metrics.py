"""Prometheus metrics of the gateway. Labels are bounded: routes by template, never by path."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class _Countable(Protocol):
    def inc(self, amount: float = 1) -> None: ...


class _Observable(Protocol):
    def observe(self, amount: float) -> None: ...


class Metrics:
    """Counters of one gateway process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        requests = Counter(
            "lacuna_http_requests",
            "Requests answered.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        seconds = Histogram(
            "lacuna_http_request_seconds",
            "Time to the end of the answer.",
            ("route",),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        submissions = Counter(
            "lacuna_submissions",
            "Accepted profile requests by what became of them.",
            ("outcome",),
            registry=self.registry,
        )
        self.refused = Counter(
            "lacuna_requests_refused",
            "Requests refused before routing.",
            ("reason",),
            registry=self.registry,
        )
        self.memory_hits = Counter(
            "lacuna_profile_memory_hits",
            "Profiles answered from this process's memory.",
            registry=self.registry,
        )
        self._gauges: dict[str, Gauge] = {}

        # Children are looked up under a lock; their number is bounded, so keep them at hand.
        @lru_cache(maxsize=4096)
        def child(method: str, route: str, status: int) -> tuple[_Countable, _Observable]:
            return requests.labels(method, route, str(status)), seconds.labels(route)

        self._child = child
        self._submissions = submissions

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        count, histogram = self._child(method if method in _METHODS else "other", route, status)
        count.inc()
        histogram.observe(seconds)

    def submission(self, outcome: str) -> None:
        """Count one accepted profile request: cached, joined or created."""
        self._submissions.labels(outcome).inc()

    def gauge(self, name: str, help_text: str, value: float) -> None:
        """Set a gauge that is read from the store at scrape time."""
        if name not in self._gauges:
            self._gauges[name] = Gauge(name, help_text, registry=self.registry)
        self._gauges[name].set(value)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
