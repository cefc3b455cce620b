"""Prometheus metrics of the gateway. Labels are bounded: routes by template, never by path."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from service.store.metrics import COUNTERS, StoreMetrics
from service.store.metrics import Histogram as StoreHistogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_PER_QUEUE = {
    "depth": "Jobs that wait.",
    "oldest_seconds": "How long the oldest of them has waited.",
    "running": "Jobs under a lease.",
    "workers": "Live workers.",
}
_TOTALS = {
    "dead_letters": "Jobs kept as dead letters.",
    "profiles": "Profiles in the store.",
    "profile_bytes": "Their size.",
}
_HISTOGRAMS = {
    "wait": "Seconds from creation to the first start.",
    "run": "Seconds from start to end, of jobs that ended with a profile.",
}
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

    def text(self, store: StoreMetrics | None) -> bytes:
        """The exposition format.

        Args:
            store: what the store knows of the queue; None when it is away.
        """
        up = Gauge("lacuna_store_up", "Whether Redis answers.", registry=None)
        up.set(store is not None)
        registry = CollectorRegistry()
        registry.register(up)
        if store is not None:
            registry.register(_Queue(store))
        return generate_latest(self.registry) + generate_latest(registry)


class _Queue(Collector):
    """The store's numbers, as they are at scrape time; the same from every gateway process."""

    def __init__(self, store: StoreMetrics) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        """All families."""
        store = self._store
        for name, meaning in COUNTERS.items():
            counter = CounterMetricFamily(f"lacuna_jobs_{name.replace(':', '_')}", meaning)
            counter.add_metric([], store.counters[name])
            yield counter
        for field, meaning in _PER_QUEUE.items():
            gauge = GaugeMetricFamily(f"lacuna_queue_{field}", meaning, labels=["queue"])
            for queue in store.queues:
                gauge.add_metric([queue.queue], getattr(queue, field))
            yield gauge
        for field, meaning in _TOTALS.items():
            yield GaugeMetricFamily(f"lacuna_{field}", meaning, value=getattr(store, field))
        for field, meaning in _HISTOGRAMS.items():
            found: StoreHistogram = getattr(store, field)
            buckets = [(_bound(bound), float(n)) for bound, n in found.buckets.items()]
            yield HistogramMetricFamily(
                f"lacuna_job_{field}_seconds", meaning, buckets=buckets, sum_value=found.sum
            )


def _bound(value: float) -> str:
    return "+Inf" if math.isinf(value) else repr(float(value))
