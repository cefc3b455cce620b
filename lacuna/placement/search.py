"""Orders of chunks in a prompt, given how much the model listens at each position.

Chunk i of l_i tokens and relevance r_i at offset o has visibility
v_i = (n / l_i) (F(o + l_i) - F(o)), where F is the cumulative influence at the prompt's own length
n (`theory.curve.cumulative`). `best_order` looks for the order with the largest sum of r_i v_i, the
largest relevance-weighted mass, or the largest visibility of the worst-off of the top chunks:

| case | method |
|---|---|
| equal lengths, no groups | rearrangement inequality: sort against slot densities; exact |
| up to 12 chunks | dynamic programming over subsets; exact |
| more | from the ends inwards, then local search; with an upper bound |

`by_rank` is the best order when length may not decide, `fast_orders` a good order under many curves
at once, and `fixed_orders` are the rules of thumb that people use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from lacuna.placement.document_curves import DocumentCurves
from lacuna.placement.optimize import (
    EXACT_ORDER_LIMIT,
    equal_lengths,
    heuristic_order,
    rearrange,
    subset_order,
)
from lacuna.placement.problem import F64, I64, OrderProblem

RULES = (
    "given",
    "relevance_first",
    "relevance_last",
    "zigzag_best_first",
    "zigzag_best_last",
    "document_order",
)
OUTSIDE_IN_LIMIT = 200
"""Chunks up to which ends are filled one chunk at a time; beyond it, equal slots by weight per
token do as well."""
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


def by_rank(problem: OrderProblem) -> OrderSolution:
    """The best order as if all chunks had their mean length: ranks and the curve decide.

    The value and the bound are those of the real lengths. No chunk gets a better place than one of
    higher relevance because it is shorter. Equally long chunks in the order of their ranks are best
    for every objective, hence the simplest is enough.

    Raises:
        ValueError: no order satisfies the pins and groups.
    """
    if equal_lengths(problem):
        return best_order(problem)
    room = int(problem.stride.sum())
    even = replace(
        problem, lengths=np.full(problem.size, room // problem.size), separator=0,
        objective="mean_visibility",
    )  # fmt: skip
    order = best_order(even).order
    value = problem.value(order)
    return OrderSolution(order, value, max(value, upper_bound(problem)), "heuristic")


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


def fixed_orders(problem: OrderProblem, document_order: I64 | None = None) -> Mapping[str, I64]:
    """Orders by name, repaired to keep pins and groups; each a permutation, shape [m].

    Both zigzags put relevance outwards. `zigzag_best_first` is 0 2 4 .. 5 3 1 of the ranking,
    `zigzag_best_last` 1 3 5 .. 4 2 0, whatever the parity.

    Args:
        problem: chunks in the caller's order.
        document_order: permutation (`strategies.document_order`); None leaves that rule out.
    """
    ranked = problem.ranking
    orders = [
        np.arange(problem.size),
        ranked,
        ranked[::-1],
        np.concatenate([ranked[0::2], ranked[1::2][::-1]]),
        np.concatenate([ranked[1::2], ranked[0::2][::-1]]),
    ]
    if document_order is not None:
        orders.append(document_order)
    table = np.stack(orders)
    if problem.constrained:
        table = problem.repair(table)
    return dict(zip(RULES, table, strict=False))


def fast_orders(
    problem: OrderProblem, curves: DocumentCurves, trained: F64, *, by_length: bool
) -> I64:
    """A good order under each of K curves.

    Equal slots are filled by relevance, which is best for every objective when chunks are equally
    long: the top chunks have the best places. Where length may decide, slots are also filled by
    weight per token, chunks go outside in by that weight, and the order that is worth most under
    the curve wins.

    Args:
        problem: chunks, pins and groups; its own cumulative curve is not read.
        curves: how token boundaries map to the curves.
        trained: cumulative curves, shape [K, b + 2].
        by_length: whether length may decide (`relevance.Relevance.by_length`).

    Returns:
        Chunk at each place, shape [K, m].
    """
    edges = problem.start + np.arange(problem.size + 1) * (problem.stride.sum() / problem.size)
    density = np.diff(_at(trained, curves.coordinates(edges, problem.tokens)), axis=1)
    # Rounded, so that slots of equal density keep their order whatever the last bit says.
    orders = _slot_orders(np.round(density, 12), problem.relevance)
    if problem.constrained:
        orders = problem.repair(orders)
    if not by_length or (problem.lengths == problem.lengths[0]).all():
        return orders
    rivals = [_slot_orders(np.round(density, 12), problem.weight)]
    if problem.size <= OUTSIDE_IN_LIMIT:
        rivals.append(_outside_in(problem, curves, trained))
    if problem.constrained:
        rivals = [problem.repair(one) for one in rivals]
    both = np.stack([orders, *rivals], axis=1)
    rows = np.arange(len(trained))
    start = problem.offsets(both)
    edges = np.stack([start, start + problem.span[both]])
    at = _at_rows(trained, rows[:, None, None], curves.coordinates(edges, problem.tokens))
    best: I64 = both[rows, problem.scores_of(both, at[1] - at[0]).argmax(axis=1)]
    return best


def _slot_orders(density: F64, weight: F64) -> I64:
    """For each curve the order that puts the heaviest chunk into the densest slot.

    Args:
        density: of equal slots under K curves, shape [K, m].
        weight: of chunks, shape [m]; equals keep the caller's order.

    Returns:
        Chunk at each place, shape [K, m].
    """
    ranked = np.argsort(-weight, kind="stable")
    places = np.argsort(-density, axis=1, kind="stable")
    orders = np.empty(places.shape, dtype=np.int64)
    np.put_along_axis(orders, places, np.broadcast_to(ranked, places.shape), axis=1)
    return orders


def _outside_in(problem: OrderProblem, curves: DocumentCurves, trained: F64) -> I64:
    """Chunks in falling weight go to the denser end of the gap that is left, for K curves.

    Returns:
        Chunk at each place, shape [K, m]; pins and groups are not looked at.
    """
    count, size = len(trained), problem.size
    value, slope = trained.ravel(), np.diff(trained, append=0.0).ravel()
    x = curves.coordinates(np.arange(problem.tokens + 2), problem.tokens)
    low = np.minimum(x.astype(np.int64), trained.shape[1] - 2)
    part = x - low
    rows = np.arange(count)
    first = rows * trained.shape[1]
    edges = np.empty((4, count), dtype=np.int64)
    left = np.full(count, problem.start)
    right = np.full(count, problem.start + int(problem.stride.sum()))
    head, tail = np.zeros(count, dtype=np.int64), np.full(count, size - 1)
    orders = np.empty((count, size), dtype=np.int64)
    span, stride = problem.span.tolist(), problem.stride.tolist()
    for chunk in np.argsort(-problem.weight, kind="stable").tolist():
        begins = right - stride[chunk]
        edges[0], edges[1], edges[2], edges[3] = left, left + span[chunk], begins, begins
        edges[3] += span[chunk]
        flat = low[edges] + first
        at = value[flat] + part[edges] * slope[flat]
        goes_left = at[1] - at[0] >= at[3] - at[2]
        orders[rows, np.where(goes_left, head, tail)] = chunk
        left = left + stride[chunk] * goes_left
        right = np.where(goes_left, right, begins)
        head += goes_left
        tail -= ~goes_left
    return orders


def _at(cumulative: F64, x: F64) -> F64:
    """All curves at the same coordinates, shape [K, P]."""
    low = np.minimum(x.astype(np.int64), cumulative.shape[1] - 2)
    before = cumulative[:, low]
    found: F64 = before + (x - low) * (cumulative[:, low + 1] - before)
    return found


def _at_rows(cumulative: F64, rows: I64, x: F64) -> F64:
    """Each curve at its own coordinates, shape of x."""
    low = np.minimum(x.astype(np.int64), cumulative.shape[1] - 2)
    before = cumulative[rows, low]
    found: F64 = before + (x - low) * (cumulative[rows, low + 1] - before)
    return found
