"""Put chunks in order along a known curve: from wire request to theory and back.

What a placement answer says beside the order: visibilities, gains, dead zone, confidence.

What a placement answer advises beside the order, and only where it really helps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from lacuna.contract.base import rounded
from lacuna.contract.errors import InvalidRequest, TooLong
from lacuna.contract.placements import (
    MAX_TOKENS,
    Chunk,
    Gain,
    Placed,
    PlacementRequest,
    PlacementResponse,
    Suggestion,
)
from lacuna.contract.profiles import DeadZone
from lacuna.placement import search
from lacuna.placement.budget import select_chunks
from lacuna.placement.curve import PlacementCurve
from lacuna.placement.problem import FREE, OrderProblem
from lacuna.views import zone_of

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

STABLE_TOLERANCE = 0.01
"""Share of the value that `order_sensitivity: stable` may cost."""


def place(
    request: PlacementRequest, curve: PlacementCurve, counts: Sequence[int] | None = None
) -> PlacementResponse:
    """The answer for a known curve; nothing but arithmetic.

    Args:
        request: validated.
        curve: of `placement_curves`.
        counts: tokens of each chunk; None takes them from the request.

    Raises:
        InvalidRequest, TooLong: see `answer`.
    """
    chunks = request.chunks
    if counts is None:
        counts = [chunk.tokens or 0 for chunk in chunks]
    tokens = np.array(counts, dtype=np.int64)
    relevance, rule = _relevance(request)
    kept = _select(request, tokens, relevance)
    fixed = request.prefix_tokens + request.suffix_tokens
    between = request.separator_tokens * max(kept.size - 1, 0)
    length = fixed + between + int(tokens[kept].sum())
    if length > MAX_TOKENS:
        raise TooLong(f"the prompt has {length} tokens, the limit is {MAX_TOKENS}", field="chunks")
    slots, groups = _constraints([chunks[i] for i in kept.tolist()])
    cumulative = curve.cumulative(max(length, 1))
    problem = OrderProblem(
        cumulative=cumulative,
        lengths=tokens[kept],
        relevance=relevance[kept],
        start=request.prefix_tokens,
        separator=request.separator_tokens,
        objective=request.objective,
        top=request.top_k,
        slots=slots,
        groups=groups,
    )
    try:
        solution = search.best_order(problem)
    except ValueError as error:
        raise InvalidRequest(
            f"`pinned` and `group` contradict each other: {error}", field="chunks"
        ) from error
    if request.order_sensitivity == "stable":
        solution = search.nearest_to_given(problem, solution, STABLE_TOLERANCE)
    ids = [chunks[i].id for i in kept.tolist()]
    return respond(request, curve, problem, solution, ids, length, rule)


def _relevance(
    request: PlacementRequest,
) -> tuple[F64, Rule]:
    """Non-negative relevances: negative scores are shifted and distances turned round so that
    the worst counts 0; all equal then means all 1."""
    given = np.array([chunk.relevance for chunk in request.chunks], dtype=np.float64)
    if given.size == 0 or (request.higher_is_better and float(given.min()) >= 0):
        return given, "as_given"
    turned = given - given.min() if request.higher_is_better else given.max() - given
    rule: Rule = "shifted" if request.higher_is_better else "inverted"
    return (turned if float(turned.max()) > 0 else np.ones(given.size)), rule


def _select(request: PlacementRequest, tokens: I64, relevance: F64) -> I64:
    """Which chunks fit into the budget."""
    if request.max_tokens is None and request.max_chunks is None:
        return np.arange(tokens.size)
    capacity = None
    if request.max_tokens is not None:
        capacity = request.max_tokens - request.prefix_tokens - request.suffix_tokens
        if capacity < 0:
            raise InvalidRequest(
                f"prefix and suffix alone exceed max_tokens {request.max_tokens}",
                field="max_tokens",
            )
        capacity += request.separator_tokens  # the last chunk has no separator behind it
    pinned = np.array([chunk.pinned is not None for chunk in request.chunks], dtype=bool)
    cost = tokens + request.separator_tokens
    try:
        return select_chunks(cost, relevance, capacity, request.max_chunks, pinned)
    except ValueError as error:
        raise InvalidRequest(str(error), field="max_tokens") from error


def _constraints(chunks: Sequence[Chunk]) -> tuple[I64 | None, I64 | None]:
    """Slots and groups of the kept chunks, as `OrderProblem` has them."""
    size = len(chunks)
    slots = groups = None
    pins = [chunk.pinned for chunk in chunks]
    if any(pin is not None for pin in pins):
        slots = np.full(size, FREE, dtype=np.int64)
        wanted = [i for i, pin in enumerate(pins) if pin == "first"]
        slots[wanted] = np.arange(len(wanted))
        wanted = [i for i, pin in enumerate(pins) if pin == "last"]
        slots[wanted] = np.arange(size - len(wanted), size)
        for i, pin in enumerate(pins):
            if isinstance(pin, int):
                if pin >= size:
                    raise InvalidRequest(
                        f"chunk {chunks[i].id!r} is pinned to place {pin}, but only {size} chunks "
                        "are kept",
                        field="chunks.pinned",
                    )
                slots[i] = pin
        taken = slots[slots != FREE]
        if np.unique(taken).size < taken.size:
            raise InvalidRequest("two chunks are pinned to one place", field="chunks.pinned")
    numbers: dict[str, int] = {}
    named = [chunk.group for chunk in chunks]
    members = [FREE if g is None else numbers.setdefault(g, len(numbers)) for g in named]
    if numbers and len(numbers) < sum(g is not None for g in named):
        groups = np.array(members, dtype=np.int64)
    return slots, groups


Rule = Literal["as_given", "shifted", "inverted"]

_EXACT_TOKENS = 16_384
_PARTS = 4_096


def respond(
    request: PlacementRequest,
    curve: PlacementCurve,
    problem: OrderProblem,
    solution: search.OrderSolution,
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


def _gains(problem: OrderProblem, value: float) -> Gain:
    against = search.baselines(problem)
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


DEAD_SHARE = 1 / 3
"""Share of the relevance in the dead zone from which reordering alone does not help enough."""
_TWICE = 2 / 3
"""Share up to which two prompts are enough."""


@dataclass(frozen=True)
class _Copy:
    """A second copy of a chunk at one end."""

    end: Literal["first", "last"]
    visibility: float
    value: float
    """Sum of relevance x visibility with it, each chunk where it is seen best."""


def suggest(
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
    if request.max_chunks is not None and order.size >= request.max_chunks:
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
