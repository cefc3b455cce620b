"""An upper bound on what any order can reach."""

from __future__ import annotations

import numpy as np

from service.theory.placement_problem import F64, Problem

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
