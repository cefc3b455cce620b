"""Prometheus metrics: of this gateway process, of the queue as the store sees it, of the models.

The number of labels is bounded. Routes are labelled by their template and never by the path. Only
the models of the newest profiles are shown, each with its newest profile and the one before; drift
compares the newest with an earlier one in pairs (`service.answers.drift`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
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
from service.answers.drift import Change, ModelDrift, labels, versions_of_models
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
        requests = self._counter("http_requests", "Requests answered.", "method", "route", "status")
        seconds = self._histogram(
            "http_request_seconds", "Time to the end of the answer.", "route", buckets=_BUCKETS
        )
        self._submissions = self._counter(
            "submissions",
            "Accepted requests for profiles and experiments by what became of them.",
            "outcome",
        )
        self.refused = self._counter(
            "requests_refused", "Requests refused for their key, its role or its rate.", "reason"
        )
        callers = self._counter(
            "caller_requests",
            "Requests answered, by the name of the API key and the class of the status.",
            "caller",
            "status",
        )
        self.cache_hits = self._counter(
            "profile_memory_hits", "Profiles answered from this process's memory."
        )
        self._placements = self._counter(
            "placements", "Placements answered, by strategy and by what was advised.",
            "strategy", "decision",
        )  # fmt: skip
        self._placement_gain = self._histogram(
            "placement_gain",
            "Gain of the judged order over the caller's, as a fraction.",
            "decision",
            buckets=_GAINS,
        )

        # Looking up a child takes a lock. Their number is bounded, so they are kept here.
        @lru_cache(maxsize=4096)
        def child(method: str, route: str, status: int) -> tuple[_Countable, _Observable]:
            return requests.labels(method, route, str(status)), seconds.labels(route)

        @lru_cache(maxsize=4096)
        def of_caller(caller: str, status: str) -> _Countable:
            return callers.labels(caller, status)

        self._child, self._of_caller = child, of_caller

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"lacuna_{name}", meaning, labels, registry=self.registry)

    def _histogram(
        self, name: str, meaning: str, *labels: str, buckets: tuple[float, ...]
    ) -> Histogram:
        return Histogram(f"lacuna_{name}", meaning, labels, buckets=buckets, registry=self.registry)

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
        """Count one accepted request for a profile or an experiment: cached, joined or created."""
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


# By model

NEWEST: Final = 100
"""How many of the newest profiles are read."""
_MODEL_LABELS: Final = ("model", "weights", "tokens", "objective", "documents")
_MODEL_MEANINGS: Final = {
    "dead_zone_fraction": "Share of the prompt in the dead zone; 0 when there is none. Not given "
    "while the documents leave it open.",
    "dead_zone_fraction_low": "Least share that the 95% bands of the zone's ends allow.",
    "dead_zone_fraction_high": "Largest share that the 95% bands of the zone's ends allow.",
    "primacy_mass": "Influence on the first 10% of positions.",
    "recency_mass": "Influence on the last 10% of positions.",
    "recall_spread": "Largest less smallest probability of recalling a fact over depths.",
}
_DRIFT_MEANINGS: Final = {
    "drift": "Change since the profile before, on the same documents: of the mass on the first, "
    "each further and the last tenth, of the mean density in the dead zone before (without one, in "
    "the middle 60%), and of the total influence (relative).",
    "drift_low": "Lower end of the interval of lacuna_model_drift, for all statistics together.",
    "drift_high": "Its upper end.",
    "drift_documents": "Documents that both profiles read.",
    "drift_alert": "1 if something moved beyond chance and by more than a point of mass or a tenth "
    "of the total influence; else 0.",
}
_RECALL_MEANINGS: Final = {
    "recall_drift": "Change of the probability of recalling a fact since the profile before, on "
    "the same groups of facts: at each depth (depth_1 is the start of the prompt) and in the mean "
    "(level).",
    "recall_drift_low": "Lower end of the interval of lacuna_model_recall_drift, for all depths "
    "and probes of a model together.",
    "recall_drift_high": "Its upper end.",
    "recall_drift_groups": "Groups of facts that both profiles asked.",
    "recall_drift_alert": "1 if recall fell at some depth, or in the mean, beyond chance and by "
    "more than five points; else 0.",
}


class _ModelCollector(Collector):
    def __init__(self, summaries: Sequence[ProfileSummary], drifts: Sequence[ModelDrift]) -> None:
        self._rows = list(_versions(summaries))
        self._drifts = drifts

    def collect(self) -> Iterable[Metric]:
        for name, meaning in _MODEL_MEANINGS.items():
            gauge = GaugeMetricFamily(
                f"lacuna_model_{name}", meaning, labels=(*_MODEL_LABELS, "version")
            )
            for found, summary in self._rows:
                if (value := _values(summary).get(name)) is not None:
                    gauge.add_metric(found, value)
            yield gauge
        yield from self._of_drift()

    def _of_drift(self) -> Iterator[Metric]:
        moved = _Gauges(_DRIFT_MEANINGS, "drift", "documents", _MODEL_LABELS)
        recall = _Gauges(_RECALL_MEANINGS, "recall_drift", "groups", (*_MODEL_LABELS, "probe"))
        for one in self._drifts:
            named = labels(one.summary)
            if (found := one.influence) is not None:
                moved.add(named, found.documents, found.alert, found.changes)
            for probe in one.recall:
                recall.add((*named, probe.probe), probe.groups, probe.alert, probe.changes)
        yield from moved
        yield from recall


class _Gauges:
    """The five gauges of a kind of drift: changes with both ends, how many pairs, and the alert."""

    def __init__(
        self, meanings: Mapping[str, str], kind: str, pairs: str, names: tuple[str, ...]
    ) -> None:
        self._kind, self._pairs = kind, pairs
        of_pairs = {f"{kind}_{pairs}", f"{kind}_alert"}
        self._gauges = {
            name: GaugeMetricFamily(
                f"lacuna_model_{name}",
                meaning,
                labels=names if name in of_pairs else (*names, "statistic"),
            )
            for name, meaning in meanings.items()
        }

    def add(self, named: Sequence[str], pairs: int, alert: bool, changes: Iterable[Change]) -> None:
        gauges, kind = self._gauges, self._kind
        gauges[f"{kind}_{self._pairs}"].add_metric(named, pairs)
        gauges[f"{kind}_alert"].add_metric(named, alert)
        for one in changes:
            statistic = (*named, one.statistic)
            gauges[kind].add_metric(statistic, one.value)
            gauges[f"{kind}_low"].add_metric(statistic, one.low)
            gauges[f"{kind}_high"].add_metric(statistic, one.high)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._gauges.values())


def model_metrics(summaries: Sequence[ProfileSummary], drifts: Sequence[ModelDrift] = ()) -> bytes:
    """Dead zone, primacy, recency and drift by model, in the exposition format.

    Args:
        summaries: of the newest profiles, newest first.
        drifts: among them, at most one a model with its settings.
    """
    registry = CollectorRegistry()
    registry.register(_ModelCollector(summaries, drifts))
    return generate_latest(registry)


def _versions(summaries: Sequence[ProfileSummary]) -> Iterator[tuple[list[str], ProfileSummary]]:
    for newest_first in versions_of_models(summaries):
        for version, summary in zip(("newest", "previous"), newest_first, strict=False):
            yield [*labels(summary), version], summary


def _values(summary: ProfileSummary) -> dict[str, float]:
    zone, tokens = summary.dead_zone, summary.sequence_length
    undecided = summary.dead_zone_verdict == "undecided"
    found = {} if summary.recall_spread is None else {"recall_spread": summary.recall_spread}
    if summary.primacy_mass is None or summary.recency_mass is None:
        return found  # of an endpoint: no influence
    found |= {"primacy_mass": summary.primacy_mass, "recency_mass": summary.recency_mass}
    if undecided:
        return found | {"dead_zone_fraction_low": 0.0, "dead_zone_fraction_high": 1.0}
    low, high = (0.0, 0.0) if zone is None else _band(zone, tokens)
    return found | {
        "dead_zone_fraction": 0.0 if zone is None else zone.fraction,
        "dead_zone_fraction_low": low / tokens,
        "dead_zone_fraction_high": high / tokens,
    }


def _band(zone: DeadZone, tokens: int) -> tuple[float, float]:
    """Shortest and longest zone, in tokens, that its ends' bands allow."""
    if zone.start_band is None or zone.end_band is None:
        return 0.0, float(tokens)
    shortest = max(0.0, zone.end_band.low - zone.start_band.high)
    return shortest, zone.end_band.high - zone.start_band.low
