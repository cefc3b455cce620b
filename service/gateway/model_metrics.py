"""Prometheus metrics of the newest profiles: dead zone, primacy, recency and drift by model.

Only the models of the newest profiles are shown, each with its newest profile and the one before.
Drift compares the newest with an earlier one in pairs (`service.answers.drift`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lacuna.contract.profiles import DeadZone, ProfileSummary
from service.answers.drift import Change, ModelDrift, labels, versions_of_models

NEWEST: Final = 100
"""How many of the newest profiles are read."""
_LABELS: Final = ("model", "weights", "tokens", "objective", "documents")
_MEANINGS: Final = {
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
        self._rows = list(_rows(summaries))
        self._drifts = drifts

    def collect(self) -> Iterable[Metric]:
        for name, meaning in _MEANINGS.items():
            gauge = GaugeMetricFamily(f"lacuna_model_{name}", meaning, labels=(*_LABELS, "version"))
            for found, summary in self._rows:
                if (value := _values(summary).get(name)) is not None:
                    gauge.add_metric(found, value)
            yield gauge
        yield from self._of_drift()

    def _of_drift(self) -> Iterator[Metric]:
        moved = _Gauges(_DRIFT_MEANINGS, "drift", "documents", _LABELS)
        recall = _Gauges(_RECALL_MEANINGS, "recall_drift", "groups", (*_LABELS, "probe"))
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


def _rows(summaries: Sequence[ProfileSummary]) -> Iterator[tuple[list[str], ProfileSummary]]:
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
