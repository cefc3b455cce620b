"""Orders for production other than the advised one, as candidates that `advice.advise` judges.

| strategy | order |
|---|---|
| `advised` | `advice.advise` |
| `optimal` | the optimum of the curve, whatever its interval says |
| `document_order` | chunks of a source one after another, in the source's order |
| `stable` | by rank, the same for questions of about the same length |
| `cache_prefix` | what the last prompt began with stays first, the rest as `optimal` |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from lacuna.placement.advice import Candidate
from lacuna.placement.document_curves import DocumentCurves
from lacuna.placement.problem import F64, FREE, I64, OrderProblem
from lacuna.placement.search import OrderSolution, best_order, by_rank, fast_orders, upper_bound

STABLE_LEAST = 64
"""Tokens behind the chunks up to which `stable` gives one order."""


def optimal(problem: OrderProblem, curves: DocumentCurves, *, by_length: bool = True) -> Candidate:
    """The optimum of the curve; chunks count as equally long where length may not decide.

    Without a fold's documents the order is that of `fast_orders`: the optimum of a noisy curve is
    truly worth no more.

    Raises:
        ValueError: no order satisfies the pins and groups.
    """
    solution = best_order(problem) if by_length else by_rank(problem)
    return Candidate("optimal", solution, _unseen(problem, curves, by_length=by_length))


def _unseen(problem: OrderProblem, curves: DocumentCurves, *, by_length: bool) -> I64:
    """Orders chosen without each fold's documents, shape [folds, m]."""
    if not len(curves.trained_on):
        return np.empty((0, problem.size), dtype=np.int64)
    return fast_orders(problem, curves, curves.trained_on, by_length=by_length)


def fixed(problem: OrderProblem, order: I64, curves: DocumentCurves) -> Candidate:
    """`document_order` as a candidate: changed to keep pins and groups; no document chose it."""
    if problem.constrained:
        order = problem.repair(order[None])[0]
    unseen = np.broadcast_to(order, (len(curves.trained_on), problem.size))
    return Candidate("document_order", _solution(problem, order), unseen)


def _solution(problem: OrderProblem, order: I64) -> OrderSolution:
    value = problem.value(order)
    return OrderSolution(order, value, max(value, upper_bound(problem)), "heuristic")


def document_order(sources: Sequence[str | None], positions: Sequence[float]) -> I64:
    """Chunks of a source one after another, by position; sources as they first appear.

    Yu et al. (2024), "In Defense of RAG in the Era of Long-Context Language Models" (OP-RAG), keep
    the chunks of one document in their original order.

    Args:
        sources: name of each chunk's document, shape [m]; None stands for a document of its own.
        positions: where the chunk stands in its document, any rising number, shape [m].

    Raises:
        ValueError: the two differ in length.

    >>> document_order(["b", "a", "b"], [2, 1, 1]).tolist()
    [2, 0, 1]
    """
    if len(sources) != len(positions):
        raise ValueError("sources and positions must have one entry a chunk each")
    first: dict[object, int] = {}
    block = [first.setdefault(i if name is None else name, i) for i, name in enumerate(sources)]
    return np.lexsort((np.asarray(positions, dtype=np.float64), np.array(block)))


def stable(
    problem: OrderProblem, cumulative: Callable[[int], F64], curves: DocumentCurves
) -> Candidate:
    """An order that a longer question hardly changes.

    The tokens behind the chunks (question, suffix) count as the next of STABLE_LEAST, four times
    that, 16 times, .., so that the order can change only where a question crosses one. Chunks
    count as equally long: an order that fits lengths to the curve moves many of them at once.

    Args:
        problem: chunks at their true prompt length.
        cumulative: the curve at a prompt length, shape [n + 2] as `OrderProblem.cumulative`.
        curves: of the documents.
    """
    chunks = int(problem.stride.sum()) - (problem.separator if problem.size else 0)
    behind = max(problem.tokens - problem.start - chunks, 0)
    rounded = STABLE_LEAST
    while rounded < behind:
        rounded *= 4
    length = problem.start + chunks + rounded
    longer = replace(problem, cumulative=cumulative(length))
    unseen = _unseen(longer, curves, by_length=False)
    return Candidate("stable", _solution(problem, by_rank(longer).order), unseen)


def cache_prefix(
    problem: OrderProblem,
    ids: Sequence[str],
    previous: Sequence[str],
    curves: DocumentCurves,
    *,
    by_length: bool = True,
) -> Candidate:
    """What the last prompt began with stays first, so that the server's prefix cache still holds.

    The longest run of chunks from the start of `previous` that are all among the chunks now keeps
    its places; the rest goes where the curve wants it.

    Args:
        problem: chunks; their pins and groups hold, and end the run where they contradict it.
        ids: name of each chunk, shape [m].
        previous: ids of the last prompt in its order.
        curves: of the documents.
        by_length: as in `advice.advise`.
    """
    index = {name: i for i, name in enumerate(ids)}
    run: list[int] = []
    for at, name in enumerate(previous):
        chunk = index.get(name)
        if chunk is None or not _may_stand(problem, chunk, at, run):
            break
        run.append(chunk)
    slots = np.full(problem.size, FREE) if problem.slots is None else problem.slots.copy()
    slots[run] = np.arange(len(run))
    groups = problem.groups
    if groups is not None:
        # Members that stay already keep their order; the others keep it among each other.
        groups = groups.copy()
        groups[run] = FREE
    pinned = replace(problem, slots=slots, groups=groups)
    return replace(optimal(pinned, curves, by_length=by_length), name="cache_prefix")


def _may_stand(problem: OrderProblem, chunk: int, at: int, run: list[int]) -> bool:
    """Whether pins and groups let this chunk follow the run."""
    if chunk in run:
        return False
    if problem.slots is not None:
        pin = int(problem.slots[chunk])
        if pin not in (FREE, at) or (pin == FREE and at in problem.slots.tolist()):
            return False
    if problem.groups is not None and problem.groups[chunk] != FREE:
        mates = np.flatnonzero(problem.groups[:chunk] == problem.groups[chunk]).tolist()
        return set(mates) <= set(run)
    return True
