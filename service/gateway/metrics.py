"""Prometheus metrics: this gateway process, the queue as the store sees it, profiles by model.

The number of labels is bounded. Routes are labelled by their template and never by the path. Only
the models of the newest profiles are shown, each with its newest version and the one before, so
that drift between the two shows without any history.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from lacuna.contract.placements import PlacementResponse
from lacuna.contract.profiles import DeadZone, ProfileSummary
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
    "run": "Seconds from start to end, of jobs that ended with a profile.",
}
NEWEST: Final = 100
"""How many of the newest profiles are read."""
_MAX_MODELS: Final = 50
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
        self.cache_hits = Counter(
            "lacuna_profile_memory_hits",
            "Profiles answered from this process's memory.",
            registry=self.registry,
        )

        # Looking up a child takes a lock. Their number is bounded, so they are kept here.
        @lru_cache(maxsize=4096)
        def child(method: str, route: str, status: int) -> tuple[_Countable, _Observable]:
            return requests.labels(method, route, str(status)), seconds.labels(route)

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
        self._child = child
        self._submissions = submissions

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        count, histogram = self._child(method if method in _METHODS else "other", route, status)
        count.inc()
        histogram.observe(seconds)

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


_LABELS: Final = ("model", "weights", "tokens", "objective", "documents", "version")
_MEANINGS: Final = {
    "dead_zone_fraction": "Share of the prompt in the dead zone; 0 when there is none.",
    "dead_zone_fraction_low": "Least share that the 95% bands of the zone's ends allow.",
    "dead_zone_fraction_high": "Largest share that the 95% bands of the zone's ends allow.",
    "primacy_mass": "Influence on the first 10% of positions.",
    "recency_mass": "Influence on the last 10% of positions.",
}


class _ModelCollector(Collector):
    def __init__(self, summaries: Sequence[ProfileSummary]) -> None:
        self._rows = list(_rows(summaries))

    def collect(self) -> Iterable[Metric]:
        for name, meaning in _MEANINGS.items():
            gauge = GaugeMetricFamily(f"lacuna_model_{name}", meaning, labels=_LABELS)
            for labels, summary in self._rows:
                gauge.add_metric(labels, _values(summary)[name])
            yield gauge


def model_metrics(summaries: Sequence[ProfileSummary]) -> bytes:
    """Dead zone, primacy and recency by model, in the exposition format.

    Args:
        summaries: of the newest profiles, newest first.
    """
    registry = CollectorRegistry()
    registry.register(_ModelCollector(summaries))
    return generate_latest(registry)


def _rows(summaries: Sequence[ProfileSummary]) -> Iterator[tuple[list[str], ProfileSummary]]:
    """Profiles that differ only in their version (revision, method) or draw are compared."""
    versions: dict[tuple[str, str, str, str, str], list[ProfileSummary]] = {}
    for summary in filter(_comparable, summaries):
        key = (
            summary.model,
            summary.weights,
            str(summary.sequence_length),
            summary.objective,
            summary.documents_name or summary.documents_source,
        )
        versions.setdefault(key, []).append(summary)
    for key, newest_first in islice(versions.items(), _MAX_MODELS):
        for version, summary in zip(("newest", "previous"), newest_first, strict=False):
            yield [*key, version], summary


def _comparable(summary: ProfileSummary) -> bool:
    """Whether two versions would compare. An ablation does not show the model as it is used, one
    document does not show the noise, and a caller's own texts and targets change every time."""
    own = summary.documents_source == "inline" or summary.objective == "target_logprob"
    return summary.as_used and summary.documents > 1 and not own


def _values(summary: ProfileSummary) -> dict[str, float]:
    zone = summary.dead_zone
    undecided = summary.dead_zone_verdict == "undecided"
    low, high = (0.0, float(undecided * summary.sequence_length))
    if zone is not None:
        low, high = _band(zone, summary.sequence_length)
    return {
        "dead_zone_fraction": 0.0 if zone is None else zone.fraction,
        "dead_zone_fraction_low": low / summary.sequence_length,
        "dead_zone_fraction_high": high / summary.sequence_length,
        "primacy_mass": summary.primacy_mass,
        "recency_mass": summary.recency_mass,
    }


def _band(zone: DeadZone, tokens: int) -> tuple[float, float]:
    """Shortest and longest zone, in tokens, that its ends' bands allow."""
    if zone.start_band is None or zone.end_band is None:  # undecided
        return 0.0, float(tokens)
    shortest = max(0.0, zone.end_band.low - zone.start_band.high)
    return shortest, zone.end_band.high - zone.start_band.low
