"""The best order of chunks in a prompt, given how much the model listens at each position.

Chunk i of l_i tokens and relevance r_i at offset o has visibility
v_i = (n / l_i) (F(o + l_i) - F(o)), where F is the cumulative influence at the prompt's own length
n (`theory.curve.cumulative`). `best_order` looks for the order with the largest sum of r_i v_i, the
largest relevance-weighted mass, or the largest visibility of the worst-off of the top chunks:

| case | method |
|---|---|
| equal lengths, no groups | rearrangement inequality: sort against slot densities; exact |
| up to 12 chunks | dynamic programming over subsets; exact |
| more | from the ends inwards, then local search; with an upper bound |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from lacuna.placement.optimize import (
    EXACT_ORDER_LIMIT,
    equal_lengths,
    heuristic_order,
    rearrange,
    subset_order,
)
from lacuna.placement.problem import F64, I64, OrderProblem

_EQUAL = 1 - 1e-12
"""Values that differ by less than this factor are equal."""
_PER_CHUNK_WORK = 300_000
"""Offsets times chunks up to which `upper_bound` looks up each chunk's own best offset."""


@dataclass(frozen=True, eq=False)
class OrderSolution:
    """An order, its value, and a bound on what the best order is worth."""

    order: I64
    """Chunk at each place, shape [m]."""
    value: float
    upper_bound: float
    """No order that obeys pins and groups is worth more; equals `value` if `method` is exact."""
    method: Literal["exact", "heuristic"]


def best_order(problem: OrderProblem) -> OrderSolution:
    """Best order of all chunks. Deterministic; equal chunks stay in the caller's order.

    Raises:
        ValueError: no order satisfies the pins and groups.

    >>> from lacuna.theory.curve import cumulative
    >>> F = cumulative(np.array([3.0, 1.0, 1.0, 2.0]), 4)
    >>> problem = OrderProblem(F, np.array([1, 1, 1, 1]), np.array([4.0, 3.0, 2.0, 1.0]))
    >>> best_order(problem).order.tolist()
    [0, 2, 3, 1]
    """
    given = np.arange(problem.size)
    if problem.size == 0:
        return OrderSolution(given, 0.0, 0.0, "exact")
    if problem.constrained:
        given = problem.repair(given[None])[0]
    exact = True
    if equal_lengths(problem) and problem.groups is None:
        order = given
    elif problem.size <= EXACT_ORDER_LIMIT:
        order = subset_order(problem)
    else:
        exact = False
        order = heuristic_order(problem)
    order = rearrange(problem, order)
    # Nothing moves unless something is gained.
    if problem.score(given) >= problem.score(order) * _EQUAL:
        order = rearrange(problem, given, ties_only=True)
    value = problem.value(order)
    bound = value if exact else max(value, upper_bound(problem))
    return OrderSolution(order, value, bound, "exact" if exact else "heuristic")


def upper_bound(problem: OrderProblem) -> float:
    """A value that no order exceeds: the smaller of two bounds, if both can be computed in time.

    For the sums:
    - Each token of a chunk weighs r/l (for mass: r) and takes one position. By rearrangement the
      sum is at most the sorted weights against the sorted influence.
    - No chunk gets more than its own best offset gives it. (Skipped above _PER_CHUNK_WORK.)

    For the worst case:
    - The least visibility of the top chunks is at most their token-weighted mean. With k tokens in
      all of them, that is at most the mean density of the k best positions.
    - It is at most what the worst-off of them gets at its own best offset. (Skipped likewise.)
    """
    if not problem.size:
        return 0.0
    end = problem.start + int(problem.stride.sum()) - problem.separator
    region = problem.cumulative[problem.start : end + 1]
    density = np.sort(np.diff(region))[::-1]
    best = np.concatenate([[0.0], np.cumsum(density)])
    own = (
        _mass_at_best_offset(problem, end)
        if problem.size * region.size <= _PER_CHUNK_WORK
        else None
    )
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
    if order.size < problem.size:
        points = problem.weight[problem.lengths == 0].sum() * _densest_point(problem, end)
        bound += float(points)
    return bound if own is None else min(bound, float(own @ problem.weight))


def _densest_point(problem: OrderProblem, end: int) -> float:
    """Largest influence of any one token where a chunk of length 0 may stand."""
    return float(np.diff(problem.cumulative[problem.start : end + 2]).max())


def _mass_at_best_offset(problem: OrderProblem, end: int) -> F64:
    """For each chunk the largest mass that any offset up to `end` gives it, shape [m]."""
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
