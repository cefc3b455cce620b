"""How the recall of one profile differs from another's, depth by depth and in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from lacuna.contract.base import rounded
from lacuna.contract.comparisons import DepthChange, RecallChange
from lacuna.contract.endpoints import ServedModel
from lacuna.contract.profiles import RequestEcho
from lacuna.contract.recall import PROBES_BY_WORTH, Probe, RecallCurve
from lacuna.evidence import pairs
from lacuna.evidence.pairs import compare_recall


class Recalled(Protocol):
    """What of a profile tells how its recall was measured."""

    @property
    def request(self) -> RequestEcho: ...  # noqa: D102
    @property
    def recall(self) -> Mapping[str, RecallCurve] | None: ...  # noqa: D102
    @property
    def endpoint(self) -> ServedModel | None: ...  # noqa: D102


def comparable(a: Recalled, b: Recalled) -> list[Probe]:
    """Probes whose curves mean the same on both sides, the most telling first: the same depths, and
    probabilities or right texts on both."""
    found = []
    for probe in PROBES_BY_WORTH:
        first, second = ((side.recall or {}).get(probe) for side in (a, b))
        if first is None or second is None or len(first.depth) != len(second.depth):
            continue
        if (first.rung == "text") == (second.rung == "text"):
            found.append(probe)
    return found


def recall_changes(a: Recalled, b: Recalled) -> list[RecallChange]:
    """The change of each probe that can be compared, the most telling probe first."""
    return [
        _recall_change(
            probe, (a.recall or {})[probe], (b.recall or {})[probe], compared(a, b, probe)
        )
        for probe in comparable(a, b)
    ]


def compared(
    a: Recalled, b: Recalled, probe: str, *, alpha: float = pairs.ALPHA
) -> pairs.Comparison:
    """The test of one of the `comparable` probes, in pairs where both asked the same groups."""
    first, second = (a.recall or {})[probe], (b.recall or {})[probe]
    return compare_recall(
        first.by_group,
        second.by_group,
        paired=same_groups(a, b, probe),
        alpha=alpha,
        step=1 / first.facts if first.rung == "text" else 0.0,
    )


def same_groups(a: Recalled, b: Recalled, probe: str) -> bool:
    """Whether both asked the same groups, in one order: groups that one lost shift the others."""
    left, right = a.request, b.request
    if left.recall is None or right.recall is None or left.seed != right.seed:
        return False
    if left.recall.passages_digest != right.recall.passages_digest and probe == "documents":
        return False
    whole = all(
        side.endpoint is None or not side.endpoint.groups_lost.get(probe) for side in (a, b)
    )
    return whole and left.recall.question == right.recall.question


def _recall_change(
    probe: str, first: RecallCurve, second: RecallCurve, tested: pairs.Comparison
) -> RecallChange:
    plain = np.subtract(second.probability, first.probability).tolist()
    values = [*plain, float(np.mean(plain))]
    places = [*first.depth, 0.5]
    ones: list[pairs.Difference | None] = [*tested.differences] or [None] * len(places)
    changes = [
        DepthChange(
            depth=place,
            value=rounded(value if one is None else one.value),
            low=None if one is None else rounded(one.low),
            high=None if one is None else rounded(one.high),
            p=None if one is None else rounded(one.p),
        )
        for place, value, one in zip(places, values, ones, strict=True)
    ]
    return RecallChange(
        probe=probe,
        verdict=tested.verdict,
        paired=tested.paired,
        groups=tested.documents,
        alpha=tested.alpha,
        margin=tested.margin,
        detectable=rounded(tested.detectable) if tested.differences else None,
        depths=changes[:-1],
        level=changes[-1],
    )


def recall_in_words(found: RecallChange | None) -> str:
    """How recall changed, in a sentence without its full stop."""
    if found is None:
        return "not tested: the two have no probe in common, read alike and at the same depths"
    where = f"on {'the same' if found.paired else 'different'} groups of facts ({found.groups})"
    if found.level.low is None:
        return f"undecided: it takes {pairs.MIN_PAIRS} groups on each side"
    name = f"recall of {found.probe}"
    if found.verdict == "no_difference":
        return f"no difference in {name}, {where}"
    if found.verdict == "undecided":
        seen = points(found.detectable or 0.0)
        return f"undecided, {where}: a change of less than {seen} in {name} may be missed"
    certain = [one for one in found.depths if one.p is not None and one.p <= found.alpha]
    largest = max(certain or [found.level], key=lambda one: abs(one.value))
    at = f" at {largest.depth:.0%} of the prompt" if certain else ""
    way = "higher" if largest.value > 0 else "lower"
    low, high = sorted((abs(largest.low or 0.0), abs(largest.high or 0.0)))
    text = f"{name} is {points(abs(largest.value))} {way}{at} ({figure(low)} to {figure(high)})"
    return f"{text}, {where}"


def points(mass: float) -> str:
    """A share in points, with the word."""
    said = figure(mass)
    return f"{said} {'point' if said == '1' else 'points'}"


def figure(mass: float) -> str:
    """A mass in points: one decimal, two digits below one point."""
    points = 100 * mass
    return f"{points:.1f}".removesuffix(".0") if abs(points) >= 0.95 else f"{points:.2g}"
