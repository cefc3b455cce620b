"""What a placement answer suggests next to the order, only where it really helps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from lacuna.contract.placements import MAX_TOKENS, Placed, PlacementRequest, Suggestion
from lacuna.placement.curve import PlacementCurve
from lacuna.placement.problem import FREE, OrderProblem

I64 = npt.NDArray[np.int64]


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
    """Sum of weight x visibility with it, each chunk where it is seen best."""


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
