"""Dead zone, primacy and recency by model, for Prometheus, read from the newest profiles.

Labels are bounded: only the models of the newest profiles are told, each with its newest version
and the one before, so that drift between the two shows without any history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.contract.curves import DeadZone
from service.contract.profiles import ProfileSummary

SUMMARIES: Final = 100
"""So many of the newest profiles are looked at."""
SURE: Final = 0.975
"""Share of the draws that must have a zone, for the least of a 95% band to be above 0."""
_MODELS: Final = 50
_LABELS: Final = ("model", "weights", "tokens", "objective", "documents", "version")
_MEANINGS: Final = {
    "dead_zone_fraction": "Share of the prompt in the dead zone; 0 when there is none.",
    "dead_zone_fraction_low": "Least share that the 95% bands of the zone's ends allow.",
    "dead_zone_fraction_high": "Largest share that the 95% bands of the zone's ends allow.",
    "primacy_mass": "Influence on the first 10% of positions.",
    "recency_mass": "Influence on the last 10% of positions.",
}


class _Models(Collector):
    def __init__(self, summaries: Sequence[ProfileSummary]) -> None:
        self._rows = list(_rows(summaries))

    def collect(self) -> Iterable[Metric]:
        for name, meaning in _MEANINGS.items():
            gauge = GaugeMetricFamily(f"lacuna_model_{name}", meaning, labels=_LABELS)
            for labels, summary in self._rows:
                gauge.add_metric(labels, _values(summary)[name])
            yield gauge


def text(summaries: Sequence[ProfileSummary]) -> bytes:
    """The exposition format.

    Args:
        summaries: of the newest profiles, newest first.
    """
    registry = CollectorRegistry()
    registry.register(_Models(summaries))
    return generate_latest(registry)


def _rows(summaries: Sequence[ProfileSummary]) -> Iterator[tuple[list[str], ProfileSummary]]:
    """Profiles that differ in nothing but their version (revision, method) or draw compare."""
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
    for key, newest_first in islice(versions.items(), _MODELS):
        for version, summary in zip(("newest", "previous"), newest_first, strict=False):
            yield [*key, version], summary


def _comparable(summary: ProfileSummary) -> bool:
    """An ablation says nothing of the model as it is used, one document nothing of its noise, and
    a caller's own texts and targets are others every time."""
    own = summary.documents_source == "inline" or summary.objective == "target_logprob"
    return summary.as_used and summary.documents > 1 and not own


def _values(summary: ProfileSummary) -> dict[str, float]:
    zone = summary.dead_zone
    low, high = (0.0, 0.0) if zone is None else _band(zone)
    return {
        "dead_zone_fraction": 0.0 if zone is None else zone.fraction,
        "dead_zone_fraction_low": low / summary.sequence_length,
        "dead_zone_fraction_high": high / summary.sequence_length,
        "primacy_mass": summary.primacy_mass,
        "recency_mass": summary.recency_mass,
    }


def _band(zone: DeadZone) -> tuple[float, float]:
    """Shortest and longest zone, in tokens, that its ends' bands allow."""
    if zone.start_band is None or zone.end_band is None:
        return float(zone.end - zone.start), float(zone.end - zone.start)
    shortest = max(0.0, zone.end_band.low - zone.start_band.high)
    if zone.support is not None and zone.support < SURE:
        shortest = 0.0  # the bands are of the draws that have a zone; others have none
    return shortest, zone.end_band.high - zone.start_band.low
