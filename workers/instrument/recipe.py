"""From the additions that the tracker saw to taps that plain hooks can read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from workers.instrument.sites import Site, Tap
from workers.instrument.symbols import Terms, ratio
from workers.instrument.tracker import Branch, Place, ResidualTracker

Preference = Callable[[Place, float], tuple[float, ...]]


@dataclass(frozen=True)
class Recipe:
    """The sites found and, if any attention core has none, why.

    ``cores`` counts the softmax operations of one forward pass.
    """

    sites: tuple[Site, ...]
    problems: tuple[str, ...]
    cores: int


def write(tracker: ResidualTracker) -> Recipe:
    """Turn the tracker's branches into sites, one per update."""
    sites: dict[tuple[object, ...], Site] = {}
    problems: list[str] = []
    for branch in tracker.branches:
        key = (branch.sums_before, *sorted(branch.update.items()))
        if branch.met and key in sites:  # differential attention: two cores, one update
            first = sites[key]
            sites[key] = Site(first.update, first.stream, (*first.cores, branch.core), first.block)
            continue
        found = _site(tracker, branch)
        if isinstance(found, str):
            problems.append(found)
        else:
            sites[key] = found
    return Recipe(
        tuple(sites.values()), tuple(dict.fromkeys(problems)), cores=len(tracker.branches)
    )


def _site(tracker: ResidualTracker, branch: Branch) -> Site | str:
    if not branch.met:
        return (
            "the attention output is never added to the stream it was computed from: that is "
            "rescaled, interpolated or split on the way (learned scales, hyper-connections)"
        )
    later = [terms for terms in tracker.sums[branch.sums_before :] if _contains(terms, branch)]
    if later and not any(set(branch.update) <= set(terms) for terms in later):
        return "the attention update is not carried on along the residual stream"
    update = _find(tracker, branch.update, _outermost_output)
    stream = _find(tracker, branch.stream, _input_around(branch.path))
    if update is None or stream is None:
        missing = "update" if update is None else "stream"
        return f"no module's input or output carries the attention {missing}"
    if update.coefficient <= 0 or stream.coefficient <= 0:
        return (
            f"the residual stream enters with the factor {stream.coefficient:.3g} and the "
            f"attention update with {update.coefficient:.3g}: an interpolated residual"
        )
    return Site(update, stream, (branch.core,), _block(tracker, branch, later))


def _contains(terms: Terms, branch: Branch) -> bool:
    return set(branch.stream) <= set(terms)


def _block(
    tracker: ResidualTracker, branch: Branch, later: list[Terms]
) -> Literal["sequential", "parallel"]:
    """Is the next branch that joins the stream computed from the update, or beside it?"""
    update = sum(1 << atom for atom in branch.update)
    for terms in [branch.total, *later]:
        others = [a for a in terms if a not in branch.stream and a not in branch.update]
        if others:
            sequential = all(tracker.symbols.atoms[a].ancestors & update for a in others)
            return "sequential" if sequential else "parallel"
    return "sequential"


def _find(tracker: ResidualTracker, wanted: Terms, prefer: Preference) -> Tap | None:
    best: tuple[tuple[float, ...], Tap] | None = None
    for found, place in tracker.seen:
        factor = ratio(wanted, found)
        if factor is None:
            continue
        rank = prefer(place, factor)
        if best is None or rank > best[0]:
            tap = Tap(
                place.path,
                place.side,
                place.key,
                factor,
                place.call,
                tracker.calls[place.path],
            )
            best = (rank, tap)
    return best[1] if best else None


def _outermost_output(place: Place, _factor: float) -> tuple[float, ...]:
    """Outputs before inputs; of those the module closest to the addition."""
    return (place.side == "output", -place.path.count("."))


def _input_around(core_path: str) -> Preference:
    """The input of a module around the core, the innermost first; then any input."""

    def prefer(place: Place, _factor: float) -> tuple[float, ...]:
        is_input = place.side == "input"
        around = bool(place.path) and core_path.startswith(place.path + ".")
        return (is_input and around, is_input, place.path.count("."))

    return prefer
