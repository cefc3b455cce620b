"""Good orders under many curves at once, fast enough to choose one again for every fold."""

from __future__ import annotations

import numpy as np

from lacuna.placement.document_curves import DocumentCurves
from lacuna.placement.problem import F64, I64, OrderProblem

OUTSIDE_IN_LIMIT = 200
"""Chunks up to which ends are filled one chunk at a time; beyond it, equal slots by weight per
token do as well."""


def fast_orders(
    problem: OrderProblem, curves: DocumentCurves, trained: F64, *, by_length: bool
) -> I64:
    """A good order under each of K curves.

    Equal slots are filled by relevance. Where length may decide, they are also filled by weight
    per token, chunks go outside in by that weight, and the order that is worth most under the
    curve wins.

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
    orders = slot_orders(np.round(density, 12), problem.relevance)
    if problem.constrained:
        orders = problem.repair(orders)
    if not by_length or (problem.lengths == problem.lengths[0]).all():
        return orders
    rivals = [slot_orders(np.round(density, 12), problem.weight)]
    if problem.size <= OUTSIDE_IN_LIMIT:
        rivals.append(outside_in(problem, curves, trained))
    if problem.constrained:
        rivals = [problem.repair(one) for one in rivals]
    both = np.stack([orders, *rivals], axis=1)
    rows = np.arange(len(trained))
    start = problem.offsets(both)
    edges = np.stack([start, start + problem.span[both]])
    at = _at_rows(trained, rows[:, None, None], curves.coordinates(edges, problem.tokens))
    value = ((at[1] - at[0]) * problem.weight[both]).sum(axis=2)
    best: I64 = both[rows, value.argmax(axis=1)]
    return best


def slot_orders(density: F64, weight: F64) -> I64:
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


def outside_in(problem: OrderProblem, curves: DocumentCurves, trained: F64) -> I64:
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
