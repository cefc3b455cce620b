"""Prometheus metrics of this gateway process and of the queue as the store sees it.

The number of labels is bounded. Routes are labelled by their template and never by the path.
"""

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

from lacuna.contract.placements import PlacementResponse
from service.store.monitoring import COUNTERS, StoreMetrics
from service.store.monitoring import Histogram as StoreHistogram

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
    "run": "Seconds from start to end, of jobs that ended with a result.",
}
_GAINS = (-0.1, -0.05, -0.02, 0, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
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
            "Accepted requests for profiles and experiments by what became of them.",
            ("outcome",),
            registry=self.registry,
        )
        self.refused = Counter(
            "lacuna_requests_refused",
            "Requests refused for their key, its role or its rate.",
            ("reason",),
            registry=self.registry,
        )
        callers = Counter(
            "lacuna_caller_requests",
            "Requests answered, by the name of the API key and the class of the status.",
            ("caller", "status"),
            registry=self.registry,
        )
        self.cache_hits = Counter(
            "lacuna_profile_memory_hits",
            "Profiles answered from this process's memory.",
            registry=self.registry,
        )

        # Looking up a child takes a lock. Their number is bounded, so they are kept here.
        @lru_cache(maxsize=4096)
        def child(method: str, route: str, status: int) -> tuple[_Countable, _Observable]:
            return requests.labels(method, route, str(status)), seconds.labels(route)

        @lru_cache(maxsize=4096)
        def of_caller(caller: str, status: str) -> _Countable:
            return callers.labels(caller, status)

        self._placements = Counter(
            "lacuna_placements",
            "Placements answered, by strategy and by what was advised.",
            ("strategy", "decision"),
            registry=self.registry,
        )
        self._placement_gain = Histogram(
            "lacuna_placement_gain",
            "Gain of the judged order over the caller's, as a fraction.",
            ("decision",),
            buckets=_GAINS,
            registry=self.registry,
        )
        self._child, self._of_caller = child, of_caller
        self._submissions = submissions

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        count, histogram = self._child(method if method in _METHODS else "other", route, status)
        count.inc()
        histogram.observe(seconds)

    def caller(self, name: str, status: int) -> None:
        """Count one answered request of a key, by its name."""
        self._of_caller(name, f"{status // 100}xx").inc()

    def placement(self, answer: PlacementResponse) -> None:
        """Count one placement: what was advised, and the gain where it has an interval."""
        decision = answer.advice.decision
        self._placements.labels(answer.strategy, decision).inc()
        if answer.gain.given is not None and answer.gain.given.low is not None:
            self._placement_gain.labels(decision).observe(answer.gain.given.value)

    def submission(self, outcome: str) -> None:
        """Count one accepted profile request: cached, joined or created."""
        self._submissions.labels(outcome).inc()

    def text(self, store: StoreMetrics | None) -> bytes:
        """This process and the queue, in the exposition format.

        Args:
            store: what the store knows of the queue; None when it is away.
        """
        up = Gauge("lacuna_store_up", "Whether Redis answers.", registry=None)
        up.set(store is not None)
        registry = CollectorRegistry()
        registry.register(up)
        if store is not None:
            registry.register(_QueueCollector(store))
        return generate_latest(self.registry) + generate_latest(registry)


class _QueueCollector(Collector):
    """The store's numbers at the time of the scrape; the same from every gateway process."""

    def __init__(self, store: StoreMetrics) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        """One family for each number."""
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
