"""Answer a placement request along a known curve: nothing but arithmetic.

The path, one file each: `profile_curve` or `curve` (which curve, with its documents), `relevance`
(scores to weights), `assemble` (which chunks stay; pins; the problem), `strategies` and `advice`
(an order, and whether it is worth it), and here the answer with its suggestions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from lacuna.contract import placements as wire
from lacuna.contract.base import rounded
from lacuna.contract.errors import InvalidRequest
from lacuna.contract.placements import (
    MAX_TOKENS,
    Placed,
    PlacementRequest,
    PlacementResponse,
    Suggestion,
)
from lacuna.contract.profiles import DeadZone
from lacuna.placement import advice, strategies
from lacuna.placement.advice import Advice, Candidate
from lacuna.placement.assemble import Assembled, assemble
from lacuna.placement.curve import PlacementCurve
from lacuna.placement.problem import FREE, OrderProblem
from lacuna.placement.search import OrderSolution
from lacuna.views import zone_of

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_EXACT_TOKENS = 16_384
_PARTS = 4_096
_EQUAL = 1e-12
DEAD_SHARE = 1 / 3
"""Share of the relevance in the dead zone from which reordering alone does not help enough."""
_TWICE = 2 / 3
"""Share up to which two prompts are enough."""


def place(
    request: PlacementRequest, curve: PlacementCurve, counts: Sequence[int] | None = None
) -> PlacementResponse:
    """The answer for a known curve.

    Args:
        request: validated.
        curve: of `lacuna.placement.curve`.
        counts: tokens of each chunk; None takes them from the request.

    Raises:
        InvalidRequest, TooLong: as `assemble`; or pins and groups that contradict each other.
    """
    asked = assemble(request, curve, counts)
    try:
        advised = _advise(request, curve, asked)
    except ValueError as error:
        raise InvalidRequest(
            f"`pinned` and `group` contradict each other: {error}", field="chunks"
        ) from error
    return _answer(request, curve, asked, advised)


def _advise(request: PlacementRequest, curve: PlacementCurve, asked: Assembled) -> Advice:
    if not asked.chunks:
        return _nothing(asked.problem)
    curves = curve.curves(max(asked.problem.tokens, 1))
    return advice.advise(
        asked.problem,
        curves,
        by_length=asked.relevance.by_length,
        document_order=_document_order(asked),
        candidate=_candidate(request, curve, asked),
        unsure=curve.unsure_at(asked.problem.tokens),
        margin=curve.margin,
    )


def _nothing(problem: OrderProblem) -> Advice:
    none = np.arange(0)
    solution = OrderSolution(none, 0.0, 0.0, "exact")
    return Advice("keep", "there is nothing to put in order", none, none, "given", {}, solution)


def _document_order(asked: Assembled) -> I64 | None:
    """The order of that name; None unless two chunks are of one document."""
    documents = [chunk.document for chunk in asked.chunks]
    named = [name for name in documents if name is not None]
    if len(set(named)) == len(named):
        return None
    return _by_document(asked)


def _by_document(asked: Assembled) -> I64:
    positions = [
        float(at) if chunk.position is None else chunk.position
        for at, chunk in enumerate(asked.chunks)
    ]
    return strategies.document_order([chunk.document for chunk in asked.chunks], positions)


def _candidate(
    request: PlacementRequest, curve: PlacementCurve, asked: Assembled
) -> Candidate | None:
    """What the strategy makes of the chunks; None for `advised`."""
    problem, by_length = asked.problem, asked.relevance.by_length
    curves = curve.curves(max(problem.tokens, 1))
    if request.strategy == "optimal":
        return strategies.optimal(problem, curves, by_length=by_length)
    if request.strategy == "document_order":
        return strategies.fixed(problem, _by_document(asked), curves)
    if request.strategy == "stable":
        return strategies.stable(problem, curve.cumulative, curves)
    if request.strategy == "cache_prefix":
        ids = [chunk.id for chunk in asked.chunks]
        previous = request.previous_order or []
        return strategies.cache_prefix(problem, ids, previous, curves, by_length=by_length)
    return None


def _answer(
    request: PlacementRequest, curve: PlacementCurve, asked: Assembled, advised: Advice
) -> PlacementResponse:
    """The whole answer for an order."""
    problem, order = asked.problem, advised.order
    ids = [chunk.id for chunk in asked.chunks]
    length = asked.prompt_tokens
    measured = curve.as_measured(problem.tokens)
    whole = problem.cumulative if measured is None else measured
    zone = _dead_zone(whole[: length + 1], request.dead_zone_threshold)
    placed = _placed(problem, order, ids, zone, length)
    weights = problem.relevance[order]
    total = float(weights.sum())
    value = problem.value(order)
    bound = max(value, advised.solution.upper_bound)
    exact = value >= bound * (1 - _EQUAL)
    return PlacementResponse(
        order=[one.id for one in placed],
        placements=placed,
        strategy=request.strategy,
        advice=_wire_advice(advised, ids),
        gain=_gain(advised, certain=curve.unsure is None),
        dropped=asked.dropped,
        value=value,
        mean_visibility=float(weights @ problem.visibilities(order)) / total if total > 0 else 0.0,
        method="exact" if exact else "heuristic",
        upper_bound=value if exact else bound,
        gap=_gap(bound, value),
        relevance=_wire_relevance(request, asked),
        objective=request.objective,
        source=curve.source,
        profile_id=curve.profile_id,
        prompt_tokens=length,
        extrapolated=curve.extrapolated(length),
        exceeds_context=None if curve.max_length is None else length > curve.max_length,
        dead_zone=zone,
        suggestions=_suggestions(request, curve, problem, order, placed),
        confidence=curve.confidence(length),
        warnings=[
            *curve.warnings,
            *curve.length_warnings(length),
            *_too_long(curve, length),
            *_none_fit(request, ids),
        ],
    )


def _wire_advice(advised: Advice, ids: list[str]) -> wire.Advice:
    same = bool((advised.order == advised.proposed).all())
    return wire.Advice.model_validate(
        {
            "decision": advised.decision,
            "reason": advised.reason,
            "name": advised.name,
            "order": None if same else [ids[i] for i in advised.proposed.tolist()],
        }
    )


def _gain(advised: Advice, *, certain: bool) -> wire.Gain:
    """By rule; without ends where the curve has no interval."""
    found: dict[str, wire.GainOver | None] = dict.fromkeys(wire.Gain.model_fields)
    for name, one in advised.gain.items():
        if one is not None:
            low, high = (one.low, one.high) if certain else (None, None)
            found[name] = wire.GainOver(value=one.value, low=low, high=high)
    return wire.Gain(**found)


def _wire_relevance(request: PlacementRequest, asked: Assembled) -> wire.Relevance:
    relevance = asked.relevance
    return wire.Relevance(
        scale=request.relevance_scale,
        basis=relevance.basis,
        by_length=relevance.by_length,
        notes=list(relevance.notes),
    )


def _placed(
    problem: OrderProblem, order: I64, ids: list[str], zone: DeadZone | None, length: int
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


def _gap(bound: float, value: float) -> float | None:
    """bound / value - 1; null where the order is worth nothing but another may not be."""
    if value <= 0:
        return 0.0 if bound <= 0 else None
    gap = bound / value - 1
    return 0.0 if gap < _EQUAL else gap


def _suggestions(
    request: PlacementRequest,
    curve: PlacementCurve,
    problem: OrderProblem,
    order: I64,
    placed: list[Placed],
) -> list[Suggestion]:
    """What else to do when much of the relevance ends up in the dead zone of this order."""
    relevance = problem.relevance[order]
    dead = np.array([one.in_dead_zone for one in placed], dtype=bool)
    share = float(relevance[dead].sum()) / max(float(relevance.sum()), 1e-300)
    if dead.sum() < 2 or share < DEAD_SHARE:
        return []
    text = f"{share:.0%} of the relevance lies in the dead zone in this order"
    times = min(2 if share < _TWICE else 3, len(placed))
    split = Suggestion(
        kind="split_query",
        chunk_id=None,
        detail=f"{text}: ask {times} times with a part of the chunks each",
    )
    # Of the chunks in the dead zone the most relevant; equals in the caller's order.
    candidate = next(chunk for chunk in problem.ranking if dead[order == chunk][0])
    place = int(np.argmax(order == candidate))
    now = placed[place].visibility
    worth = float(relevance @ problem.visibilities(order))
    better = [
        copy
        for copy in _copies(request, curve, problem, order, place)
        if copy.visibility >= request.dead_zone_threshold
        and copy.visibility > now
        and copy.value > worth
    ]
    if not better:
        return [split]
    copy = max(better, key=lambda one: one.value)
    book_end = Suggestion(
        kind="book_end",
        chunk_id=placed[place].id,
        detail=f"{text}: repeat this chunk, the most relevant of them, as the {copy.end} one, "
        f"where its copy has visibility {copy.visibility:.3g} instead of {now:.3g}",
    )
    return [book_end, split]


@dataclass(frozen=True)
class _Copy:
    """A second copy of a chunk at one end."""

    end: Literal["first", "last"]
    visibility: float
    value: float
    """Sum of weight x visibility with it, each chunk where it is seen best."""


def _copies(
    request: PlacementRequest,
    curve: PlacementCurve,
    problem: OrderProblem,
    order: I64,
    place: int,
) -> list[_Copy]:
    """A copy of the chunk at `place` at either end, in the prompt that the copy lengthens.

    None where an end is pinned, and none when the budget is spent.
    """
    chunk = int(order[place])
    length = problem.tokens + int(problem.stride[chunk])
    if length > min(MAX_TOKENS, request.max_tokens or MAX_TOKENS):
        return []
    if isinstance(request.max_chunks, int) and order.size >= request.max_chunks:
        return []
    cumulative = curve.cumulative(length)
    ends: list[tuple[Literal["first", "last"], I64]] = []
    if _free(problem, int(order[-1])):
        ends.append(("last", np.append(order, chunk)))
    if _free(problem, int(order[0])):
        ends.append(("first", np.insert(order, 0, chunk)))
    copies = []
    for end, longer in ends:
        at = problem.offsets(longer)
        span = problem.span[longer]
        seen = np.maximum(cumulative[at + span] - cumulative[at], 0.0) * length / span
        copy, rest = (seen[-1], seen[:-1]) if end == "last" else (seen[0], seen[1:])
        best = rest.copy()
        best[place] = max(copy, rest[place])
        value = float(problem.relevance[order] @ best)
        copies.append(_Copy(end, float(copy), value))
    return copies


def _free(problem: OrderProblem, chunk: int) -> bool:
    """Whether another chunk may take the place of this one at an end."""
    return problem.slots is None or int(problem.slots[chunk]) == FREE
