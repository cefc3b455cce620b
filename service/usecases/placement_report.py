"""What a placement answer says beside the order: visibilities, gains, dead zone, suggestions."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from service.contract.curves import DeadZone
from service.contract.placements import (
    Gain,
    Placed,
    PlacementRequest,
    PlacementResponse,
    Suggestion,
)
from service.theory import placement
from service.usecases.placement_curves import PlacementCurve
from service.usecases.views import zone_of

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Rule = Literal["as_given", "shifted", "inverted"]

DEAD_SHARE = 1 / 3
"""Share of the relevance in the dead zone from which reordering alone does not help enough."""
_ZONE_BINS = 1_024


def respond(
    request: PlacementRequest,
    curve: PlacementCurve,
    problem: placement.Problem,
    solution: placement.Solution,
    ids: list[str],
    length: int,
    rule: Rule,
) -> PlacementResponse:
    """The whole answer for a solved problem; `ids` are the names of its chunks."""
    order = solution.order
    zone = _dead_zone(problem.cumulative, length, request.dead_zone_threshold)
    placed = _placed(problem, order, ids, zone, length)
    relevance = problem.relevance[order]
    visibility = problem.visibilities(order)
    weight = float(relevance.sum())
    kept = set(ids)
    value = solution.value
    return PlacementResponse(
        order=[one.id for one in placed],
        placements=placed,
        dropped=[chunk.id for chunk in request.chunks if chunk.id not in kept],
        value=value,
        mean_visibility=float(relevance @ visibility) / weight if weight > 0 else 0.0,
        gain=_gains(problem, value),
        method=solution.method,
        upper_bound=solution.upper_bound,
        gap=_gain(solution.upper_bound, value) or 0.0,
        relevance=rule,
        objective=request.objective,
        source=curve.source,
        profile_id=curve.profile_id,
        prompt_tokens=length,
        extrapolated=curve.extrapolated(length),
        exceeds_context=None if curve.max_length is None else length > curve.max_length,
        dead_zone=zone,
        suggestions=_suggestions(problem, order, placed, length),
        confidence=curve.confidence(length),
        warnings=[*curve.warnings, *_too_long(curve, length)],
    )


def _placed(
    problem: placement.Problem, order: I64, ids: list[str], zone: DeadZone | None, length: int
) -> list[Placed]:
    placed = []
    columns = zip(
        order.tolist(),
        problem.offsets(order).tolist(),
        problem.lengths[order].tolist(),
        problem.visibilities(order).tolist(),
        strict=True,
    )
    for chunk, offset, tokens, visibility in columns:
        inside = False
        if zone is not None:
            shared = min(offset + tokens, zone.end) - max(offset, zone.start)
            inside = 2 * shared > tokens if tokens else zone.start <= offset < zone.end
        placed.append(
            Placed(
                id=ids[chunk],
                offset=offset,
                tokens=tokens,
                visibility=visibility,
                mass=visibility * tokens / max(length, 1),
                in_dead_zone=inside,
            )
        )
    return placed


def _dead_zone(cumulative: F64, length: int, threshold: float) -> DeadZone | None:
    """The dead zone at the prompt's own length; long prompts are looked at in 1,024 bins."""
    if length < 1:
        return None
    if length <= _ZONE_BINS:
        return zone_of(np.diff(cumulative[: length + 1]), threshold)
    edges = np.arange(_ZONE_BINS + 1) * length // _ZONE_BINS
    zone = zone_of(np.diff(cumulative[edges]) / np.diff(edges), threshold)
    if zone is None:
        return None
    start, end = int(edges[zone.start]), int(edges[zone.end])
    return zone.model_copy(
        update={
            "start": start,
            "end": end,
            "argmin": int(edges[zone.argmin]),
            "fraction": (end - start) / length,
        }
    )


def _suggestions(
    problem: placement.Problem, order: I64, placed: list[Placed], length: int
) -> list[Suggestion]:
    """What else to do when much of the relevance ends up in the dead zone."""
    relevance = problem.relevance[order]
    dead = np.array([one.in_dead_zone for one in placed], dtype=bool)
    share = float(relevance[dead].sum()) / max(float(relevance.sum()), 1e-300)
    if dead.sum() < 2 or share < DEAD_SHARE:
        return []
    best = int(np.argmax(order == problem.ranking[0]))
    first, last = placed[0], placed[-1]
    at_end = first.visibility >= last.visibility
    end = "last" if at_end else "first"
    chunk = placed[best]
    start = last.offset + last.tokens - chunk.tokens if at_end else first.offset
    span = max(chunk.tokens, 1)
    mass = problem.cumulative[start + span] - problem.cumulative[start]
    seen = float(mass) * length / span
    text = f"{share:.0%} of the relevance lies in the dead zone, whatever the order"
    return [
        Suggestion(
            kind="book_end",
            chunk_id=chunk.id,
            detail=f"{text}: repeat the most relevant chunk as the {end} one, where a chunk of its "
            f"length has visibility {seen:.3g}",
        ),
        Suggestion(
            kind="split_query",
            chunk_id=None,
            detail=f"{text}: ask {2 if share < 2 / 3 else 3} times with a part of the chunks each",
        ),
    ]


def _gains(problem: placement.Problem, value: float) -> Gain:
    against = placement.baselines(problem)
    return Gain(
        given=_gain(value, against.given),
        relevance_first=_gain(value, against.relevance_first),
        zigzag=_gain(value, against.zigzag),
    )


def _too_long(curve: PlacementCurve, length: int) -> list[str]:
    if curve.max_length is None or length <= curve.max_length:
        return []
    return [
        f"the prompt has {length} tokens; the model's configuration declares {curve.max_length}"
    ]


def _gain(value: float, other: float) -> float | None:
    """value / other - 1; null where the other is worth nothing but value is not."""
    if other <= 0:
        return 0.0 if value <= 0 else None
    gain = value / other - 1
    return 0.0 if abs(gain) < 1e-12 else gain
