"""Has a model moved? Its newest profile against an earlier one that read the same.

Profiles keep a summary of each document, so the influence of the two is compared in pairs on the
documents that both read (`lacuna.evidence.pairs`): masses of tenths, mean density of the earlier
profile's dead zone, total influence. The ends of dead zones are not looked at: they jump between
draws of documents while the model stays as it is.

An earlier profile that the operator pinned is the baseline: it is looked at before younger ones, so
that many small steps add up.

Recall is compared in pairs too, on the same groups of facts: at each depth, and their mean. It is
all that a model behind an endpoint has. A rise needs nobody's attention, so only a fall alarms.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from pydantic import ValidationError

from lacuna.comparisons import kept
from lacuna.contract.base import Wire
from lacuna.contract.endpoints import ServedModel
from lacuna.contract.profiles import DeadZone, DocumentSummaries, ProfileSummary, RequestEcho
from lacuna.contract.recall import RecallCurve
from lacuna.evidence import pairs
from lacuna.evidence.pairs import recall_falls
from lacuna.evidence.summaries import TENTHS
from lacuna.recall_changes import comparable, compared, same_groups
from service.store.profiles import StoredProfile

MAX_MODELS = 50
"""Models, of different settings, that are watched."""
TRIED = 5
"""Earlier profiles of a model that are read in search of one with the same documents."""
MIDDLE = (0.2, 0.8)
"""The stretch that is watched in a model without a dead zone, in shares of the prompt."""
_NOT_SETTINGS = {
    "revision", "seed", "documents_asked", "documents_most", "documents_digest", "recall",
}  # fmt: skip
"""What may differ between two profiles of the same settings: the model's version, and what says
only which documents were read. Shared documents are found by their own digests."""


@dataclass(frozen=True)
class Change:
    """Newest less earlier, for one statistic, with an interval that holds for all together.

    Attributes:
        statistic: of influence: `primacy`, `tenth_2` to `tenth_9` and `recency` are masses;
            `zone_density` is the mean density of the earlier dead zone; `total_influence` is a
            relative change. Of recall: see `RecallDrift`.
    """

    statistic: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class InfluenceDrift:
    """How influence moved.

    Attributes:
        documents: that both read.
        alert: whether anything moved beyond chance and by more than a point of mass (or a tenth of
            the total influence).
        changes: one a statistic.
    """

    documents: int
    alert: bool
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class RecallDrift:
    """How the recall of one probe moved.

    Attributes:
        probe: whose recall it is.
        groups: groups of facts that both asked.
        alert: whether recall fell at some depth, or in the mean, beyond chance and by more than
            five points.
        changes: `depth_1` (the start of the prompt) and so on, and `level`, their mean; in
            probability.
    """

    probe: str
    groups: int
    alert: bool
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class ModelDrift:
    """What the newest profile of a model says, each part against the newest that it pairs with.

    Attributes:
        summary: of the newest.
        influence: None without an earlier profile on the same documents.
        recall: of each probe that an earlier profile asked in the same way.
    """

    summary: ProfileSummary
    influence: InfluenceDrift | None
    recall: tuple[RecallDrift, ...] = ()


class _Measured(Wire):
    summaries: DocumentSummaries


class _Stored(Wire):
    """The part of a profile that drift needs."""

    request: RequestEcho
    measured: _Measured | None
    recall: dict[str, RecallCurve] | None = None
    endpoint: ServedModel | None = None
    dead_zone: DeadZone | None
    method_version: str

    @property
    def settings(self) -> dict[str, object]:
        found = self.request.model_dump(exclude=_NOT_SETTINGS)
        return {**found, "method_version": self.method_version}


Get = Callable[[str], Awaitable[StoredProfile | None]]


class Drifts:
    """Drift of the newest profiles. One per gateway process.

    Profiles never change, so what was found is kept until the newest profiles are others.

    Args:
        get: reads a stored profile, or None.
    """

    def __init__(self, get: Get) -> None:
        self._get = get
        self._found: dict[tuple[str, ...], ModelDrift | None] = {}

    async def among(self, newest_first: Sequence[ProfileSummary]) -> list[ModelDrift]:
        """One for each model whose newest profile can be paired with an earlier one.

        Raises:
            StoreUnavailable: Redis is away.
        """
        found: dict[tuple[str, ...], ModelDrift | None] = {}
        for versions in versions_of_models(newest_first):
            newest, *earlier = versions
            earlier.sort(key=lambda one: not one.pinned)  # a baseline goes first
            tried = [newest, *earlier[:TRIED]]
            if tried[0].weights != "pretrained":  # another seed is another model
                continue
            key = tuple(one.id for one in tried)
            found[key] = self._found[key] if key in self._found else await self._search(tried)
        self._found = found
        return [one for one in found.values() if one is not None]

    async def _search(self, versions: Sequence[ProfileSummary]) -> ModelDrift | None:
        newest, *earlier = versions
        after = await self._get(newest.id) if earlier else None
        if after is None:
            return None
        found = ModelDrift(newest, None)
        no_influence = newest.primacy_mass is None  # of an endpoint
        for one in earlier:
            before = await self._get(one.id)
            if before is not None:
                found = await asyncio.to_thread(_added, found, before.body, after.body)
            if (found.influence or no_influence) and (found.recall or not newest.recall):
                break
        return found if found.influence or found.recall else None


def versions_of_models(newest_first: Iterable[ProfileSummary]) -> list[list[ProfileSummary]]:
    """Profiles that differ only in their version (revision, method) or documents, newest first.

    Only the models of the newest profiles, `MAX_MODELS` of them.
    """
    versions: dict[tuple[str, ...], list[ProfileSummary]] = {}
    for summary in filter(_watched, newest_first):
        versions.setdefault(labels(summary), []).append(summary)
    return list(islice(versions.values(), MAX_MODELS))


def labels(summary: ProfileSummary) -> tuple[str, str, str, str, str]:
    """Model, weights, tokens, objective and documents: what names a model with its settings."""
    return (
        summary.model,
        summary.weights,
        str(summary.sequence_length),
        summary.objective,
        summary.documents_name or summary.documents_source,
    )


def _watched(summary: ProfileSummary) -> bool:
    """Whether two versions would compare. An ablation does not show the model as it is used, one
    document does not show the noise, and a caller's own texts and targets change every time."""
    own = summary.documents_source == "inline" or summary.objective == "target_logprob"
    return summary.as_used and summary.documents > 1 and not own


def _added(found: ModelDrift, before: bytes, after: bytes) -> ModelDrift:
    """With what an earlier profile tells that none after it did."""
    try:
        old, new = (_Stored.of_stored(body) for body in (before, after))
    except ValidationError:  # of another version of ours
        return found
    if old.settings != new.settings:
        return found
    return ModelDrift(
        found.summary,
        found.influence or _influence_drift(old, new),
        found.recall or _recall_drifts(old, new),
    )


def _influence_drift(old: _Stored, new: _Stored) -> InfluenceDrift | None:
    """None unless the two share enough documents."""
    if old.measured is None or new.measured is None:
        return None
    start, end = MIDDLE
    if old.dead_zone is not None:
        tokens = old.request.sequence_length
        start, end = old.dead_zone.start / tokens, old.dead_zone.end / tokens
    found = pairs.drift(
        kept(old.measured.summaries), kept(new.measured.summaries), stretch=(start, end)
    )
    if not found.comparison.differences:
        return None
    *tenths, stretch, total = found.comparison.differences
    names = ["primacy", *(f"tenth_{number}" for number in range(2, TENTHS)), "recency"]
    changes = [
        Change(name, one.value, one.low, one.high) for name, one in zip(names, tenths, strict=True)
    ]
    ends = (stretch.value, stretch.low, stretch.high)
    changes.append(Change("zone_density", *(mass / (end - start) for mass in ends)))
    logs = (total.value, total.low, total.high)
    changes.append(Change("total_influence", *map(math.expm1, logs)))
    return InfluenceDrift(found.comparison.documents, found.alert, tuple(changes))


def _recall_drifts(old: _Stored, new: _Stored) -> tuple[RecallDrift, ...]:
    """Of each probe that both asked in one form on the same groups; all probes share one level."""
    alike = [
        probe
        for probe in comparable(old, new)
        if same_groups(old, new, probe) and _form(old, probe) == _form(new, probe)
    ]
    drifts = []
    for probe in alike:
        found = compared(old, new, probe, alpha=pairs.ALPHA / len(alike))
        if found.differences:
            changes = (Change(d.name, d.value, d.low, d.high) for d in found.differences)
            alert = bool(recall_falls(found))
            drifts.append(RecallDrift(probe, found.documents, alert, tuple(changes)))
    return tuple(drifts)


def _form(side: _Stored, probe: str) -> str:
    return (side.recall or {})[probe].form
