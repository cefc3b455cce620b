"""The fixed orders that people use, and the optimum when length may not decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from lacuna.placement.optimize import equal_lengths
from lacuna.placement.problem import I64, OrderProblem
from lacuna.placement.search import OrderSolution, best_order, upper_bound

RULES = (
    "given",
    "relevance_first",
    "relevance_last",
    "zigzag_best_first",
    "zigzag_best_last",
    "document_order",
)


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


def by_rank(problem: OrderProblem) -> OrderSolution:
    """The best order as if all chunks had their mean length: ranks and the curve decide.

    The value is that of the real lengths; the bound is the one of `place`. No chunk gets a better
    place than one of higher relevance because it is shorter.

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
