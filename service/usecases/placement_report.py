"""What a placement answer says beside the order: visibilities, gains, dead zone, confidence."""

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
    rounded,
)
from service.theory import placement
from service.usecases.placement_curves import PlacementCurve
from service.usecases.placement_suggestions import suggest
from service.usecases.views import zone_of

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Rule = Literal["as_given", "shifted", "inverted"]

_EXACT_TOKENS = 16_384
_PARTS = 4_096


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
    zone = _dead_zone(problem.cumulative[: length + 1], request.dead_zone_threshold)
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
        gap=_gain(solution.upper_bound, value),
        relevance=rule,
        objective=request.objective,
        source=curve.source,
        profile_id=curve.profile_id,
        prompt_tokens=length,
        extrapolated=curve.extrapolated(length),
        exceeds_context=None if curve.max_length is None else length > curve.max_length,
        dead_zone=zone,
        suggestions=suggest(request, curve, problem, order, placed),
        confidence=curve.confidence(length),
        warnings=[*curve.warnings, *_too_long(curve, length), *_none_fit(request, ids)],
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
        # A chunk may be heard well although it touches the zone, and its own density is not
        # smoothed: only one that is heard badly counts.
        touches = zone is not None and offset < zone.end and offset + max(tokens, 1) > zone.start
        inside = touches and zone is not None and rounded(visibility) < zone.threshold
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


def _dead_zone(cumulative: F64, threshold: float) -> DeadZone | None:
    """The dead zone at the prompt's own length.

    Beyond 16,384 tokens the prompt is read in 4,096 parts of equal width (a fraction of a token
    wherever it falls), so that an end may lie one part further in.
    """
    length = cumulative.size - 1
    if length < 1:
        return None
    if length <= _EXACT_TOKENS:
        return zone_of(np.diff(cumulative), threshold)
    edges = np.linspace(0, length, _PARTS + 1)
    mass = np.diff(np.interp(edges, np.arange(length + 1.0), cumulative))
    zone = zone_of(np.maximum(mass, 0.0), threshold)
    if zone is None:
        return None
    start, end = int(np.ceil(edges[zone.start])), int(edges[zone.end])
    argmin = min(max(int(edges[zone.argmin]), start), end - 1)
    fraction = (end - start) / length
    update = {"start": start, "end": end, "argmin": argmin, "fraction": fraction}
    return zone.model_copy(update=update)


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


def _none_fit(request: PlacementRequest, kept: list[str]) -> list[str]:
    if kept or not request.chunks:
        return []
    return [
        f"no chunk fits: with prefix and suffix the prompt may have {request.max_tokens} tokens, "
        "and each chunk alone exceeds that"
    ]


def _gain(value: float, other: float) -> float | None:
    """value / other - 1; null where the other is worth nothing but value is not."""
    if other <= 0:
        return 0.0 if value <= 0 else None
    gain = value / other - 1
    return 0.0 if abs(gain) < 1e-12 else gain
