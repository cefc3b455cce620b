"""An upper bound on what any order can reach.

The best order of chunks in a prompt, given how much the model listens at each position.

Chunk i with l_i tokens and relevance r_i at offset o has visibility
v_i = (n / l_i) (F(o + l_i) - F(o)), F the cumulative influence at the prompt's own length
(`calibration.cumulative`). Sought is the order with the largest sum of r_i v_i, the largest
relevance-weighted mass, or the largest visibility of the worst-off of the top chunks.

| case | method |
|---|---|
| equal lengths, no groups | rearrangement inequality: sort against slot densities, exact at any m |
| up to 12 chunks | dynamic programming over subsets, exact |
| more | outside-in construction and local search, with an upper bound |

The parts: `placement_problem` (arrays and values), `placement_exact`, `placement_heuristic`,
`placement_bound`, `placement_budget` (what to drop), `calibration` (F at another length).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from lacuna.placement.optimize import (
    EXACT_LIMIT,
    equal_lengths,
    heuristic,
    rearrange,
    subsets,
    zigzags,
)
from lacuna.placement.problem import F64, I64, Problem

_PER_CHUNK_WORK = 300_000
"""Offsets times chunks up to which each chunk's own best place is looked up."""


def upper_bound(problem: Problem) -> float:
    """No order has a larger value: the least of the bounds below that are affordable.

    - Each token of a chunk weighs r/l (mass: r) and takes one position: by rearrangement the sum
      is at most sorted weights against sorted influence.
    - Each chunk has at most what its own best offset gives it.
    - Worst case: the least of the top chunks is at most their token-weighted mean, hence at most
      the mean density of the best positions as many as they have tokens; and at most what the
      worst-off of them finds at its best offset.
    """
    if not problem.size:
        return 0.0
    end = problem.start + int(problem.stride.sum()) - problem.separator
    region = problem.cumulative[problem.start : end + 1]
    density = np.sort(np.diff(region))[::-1]
    best = np.concatenate([[0.0], np.cumsum(density)])
    own = _best_place(problem, end) if problem.size * region.size <= _PER_CHUNK_WORK else None
    if problem.objective == "worst_case":
        lengths = problem.lengths[problem.is_top]
        bound = np.inf
        if (tokens := int(lengths.sum())) > 0:
            bound = problem.tokens * float(best[tokens]) / tokens
        if own is not None:
            bound = min(bound, float((own * problem.scale)[problem.is_top].min()))
        if not np.isfinite(bound):
            bound = problem.tokens * _densest_point(problem, end)
        return float(bound)
    order = np.argsort(-problem.weight, kind="stable")
    order = order[problem.lengths[order] > 0]
    taken = np.concatenate([[0], np.cumsum(problem.lengths[order])])
    bound = float(problem.weight[order] @ np.diff(best[taken]))
    points = problem.weight[problem.lengths == 0].sum() * _densest_point(problem, end)
    bound += float(points)
    return bound if own is None else min(bound, float(own @ problem.weight))


def _densest_point(problem: Problem, end: int) -> float:
    """Largest influence of one token at which a zero-length chunk may stand."""
    return float(np.diff(problem.cumulative[problem.start : end + 2]).max())


def _best_place(problem: Problem, end: int) -> F64:
    """For each chunk the largest mass that any offset in the region gives it, shape [m]."""
    F = problem.cumulative
    found: dict[int, float] = {}
    result = np.empty(problem.size)
    for i, (length, span) in enumerate(
        zip(problem.lengths.tolist(), problem.span.tolist(), strict=True)
    ):
        if length not in found:
            last = end - length
            window = F[problem.start + span : last + span + 1] - F[problem.start : last + 1]
            found[length] = float(window.max())
        result[i] = found[length]
    return result


_EQUAL = 1 - 1e-12
_CANDIDATES = 200
_CANDIDATE_WORK = 200_000


@dataclass(frozen=True, eq=False)
class Solution:
    """An order with its value and how far it can be from the best."""

    order: I64
    """Chunk at each place, shape [m]."""
    value: float
    upper_bound: float
    """No order that keeps pins and groups is worth more; equals `value` when exact."""
    method: Literal["exact", "heuristic"]


@dataclass(frozen=True)
class Baselines:
    """Values of the orders that people use, under the same pins and groups."""

    given: float
    relevance_first: float
    zigzag: float
    """The better of the two families of zigzag."""


def place(problem: Problem) -> Solution:
    """Best order of all chunks. Deterministic; equals keep the caller's order of preference.

    Raises:
        ValueError: no order satisfies the pins and groups.

    >>> from lacuna.theory.curve import cumulative
    >>> F = cumulative(np.array([3.0, 1.0, 1.0, 2.0]), 4)
    >>> place(Problem(F, np.array([1, 1, 1, 1]), np.array([4.0, 3.0, 2.0, 1.0]))).order.tolist()
    [0, 2, 3, 1]
    """
    given = np.arange(problem.size)
    if problem.size == 0:
        return Solution(given, 0.0, 0.0, "exact")
    if problem.constrained:
        given = problem.repair(given[None])[0]
    exact = True
    if equal_lengths(problem) and problem.groups is None:
        order = given
    elif problem.size <= EXACT_LIMIT:
        order = subsets(problem)
    else:
        exact = False
        order = heuristic(problem)
    order = rearrange(problem, order)
    if problem.score(given) >= problem.score(order) * _EQUAL:
        order = rearrange(problem, given, ties_only=True)
    value = problem.value(order)
    bound = value if exact else max(value, upper_bound(problem))
    return Solution(order, value, bound, "exact" if exact else "heuristic")


def nearest_to_given(problem: Problem, solution: Solution, tolerance: float) -> Solution:
    """An order near the caller's, at a cost of at most `tolerance` of the value.

    The k most relevant chunks take the places of the solution, all others fill the rest in the
    caller's order; the least such k that is good enough is taken. For readers to whom the order
    of the chunks itself means something. Moving other chunks might do with fewer of them.
    """
    size = problem.size
    if size < 2:
        return solution
    steps = min(size, _CANDIDATES, max(8, _CANDIDATE_WORK // size))
    counts = np.unique(np.linspace(0, size, steps + 1).astype(np.int64))
    candidates = np.empty((counts.size, size), dtype=np.int64)
    rank = np.empty(size, dtype=np.int64)
    rank[problem.ranking] = np.arange(size)
    for row, count in enumerate(counts.tolist()):
        moved = rank < count
        places = moved[solution.order]
        candidates[row, places] = solution.order[places]
        candidates[row, ~places] = np.flatnonzero(~moved)
    if problem.constrained:
        candidates = problem.repair(candidates)
    values = [problem.value(one) for one in candidates]
    least = solution.value * (1 - tolerance) * _EQUAL
    first = next((row for row, value in enumerate(values) if value >= least), None)
    if first is None or candidates[first].tolist() == solution.order.tolist():
        return solution
    bound = solution.upper_bound
    best = values[first] >= bound * _EQUAL
    return Solution(
        candidates[first],
        values[first],
        max(bound, values[first]),
        "exact" if best else "heuristic",
    )


def baselines(problem: Problem) -> Baselines:
    """What the given order, most relevant first and the zigzags of the usual reorderers reach."""
    if problem.size == 0:
        return Baselines(0.0, 0.0, 0.0)
    orders = np.stack([np.arange(problem.size), problem.ranking, *zigzags(problem)])
    if problem.constrained:
        orders = problem.repair(orders)
    given, first, one, other = _values(problem, orders)
    return Baselines(given, first, max(one, other))


def _values(problem: Problem, orders: I64) -> list[float]:
    if problem.objective == "worst_case":
        return [problem.value(order) for order in orders]
    found: F64 = problem.scores(orders)
    return [float(value) for value in found]
