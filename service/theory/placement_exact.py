"""Exact placement: rearrangement for equal lengths, dynamic programming over subsets otherwise."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from service.theory.placement_problem import F64, FREE, I64, Problem

EXACT_LIMIT = 12
"""Chunks up to which the subset program is used: m 2^(m-1) transitions, 24,576 at 12."""


def equal_lengths(problem: Problem) -> bool:
    """Whether every chunk fits every slot, so that sorting is exact."""
    return problem.size < 2 or bool((problem.lengths == problem.lengths[0]).all())


def rearrange(problem: Problem, order: I64, *, ties_only: bool = False) -> I64:
    """Sort chunks of one length over the slots they hold: never worse, and settles ties.

    By the rearrangement inequality the sum of r v over chunks of one length is largest when the
    most relevant stands where the density is highest; equally relevant chunks take the better
    places in the caller's order. Slots move nobody else, since lengths are equal.

    Args:
        problem: chunks, pinned ones and group members stay where they are.
        order: a permutation, shape [m].
        ties_only: exchange only chunks of equal length and equal relevance.
    """
    held: dict[tuple[float, ...], list[int]] = {}
    lengths, relevance = problem.lengths.tolist(), problem.relevance.tolist()
    for place, chunk in enumerate(order.tolist()):
        if problem.slots is not None and problem.slots[chunk] != FREE:
            continue
        if problem.groups is not None and problem.groups[chunk] != FREE:
            continue
        kind = (lengths[chunk], relevance[chunk]) if ties_only else (lengths[chunk],)
        held.setdefault(kind, []).append(place)
    if len(held) == problem.size:
        return order
    # Rounded, so that slots of equal density keep their order whatever the last bit says.
    seen = np.round(problem.visibilities(order), 12)
    result = order.copy()
    for places in held.values():
        if len(places) > 1:
            slots = np.array(places)
            chunks = np.sort(order[slots])
            best_first = slots[np.argsort(-seen[slots], kind="stable")]
            result[best_first] = chunks[np.argsort(-problem.relevance[chunks], kind="stable")]
    return result


def subsets(problem: Problem) -> I64:
    """Best order by dynamic programming over subsets, O(m 2^m): the offset of a chunk depends
    only on the set placed before it. Pins and groups forbid transitions.

    Raises:
        ValueError: no order satisfies the pins and groups.
    """
    program = _program(problem.size)
    at = np.zeros(1 << problem.size, dtype=np.int64)
    for i in range(problem.size):
        np.add(at[: 1 << i], problem.stride[i], out=at[1 << i : 2 << i])
    at += problem.start
    # Looked up before a chunk only: behind the full set a last separator would run off the end.
    before = problem.cumulative[at[program.before]]
    mass = problem.cumulative[at[program.before] + problem.span[program.chunk]] - before
    gain = mass * problem.weight[program.chunk]
    forbidden = _forbidden(problem, program)
    if forbidden is not None:
        gain[forbidden] = -np.inf
    if problem.objective == "worst_case":
        seen = np.where(problem.is_top[program.chunk], mass * problem.scale[program.chunk], np.inf)
        if forbidden is not None:
            seen[forbidden] = -np.inf
        floor = program.solve(seen, bottleneck=True)[0]
        gain[seen < floor * (1 - 1e-12)] = -np.inf
    value, order = program.solve(gain)
    if value == -np.inf:
        raise ValueError("no order satisfies the pins and groups")
    return order


def _forbidden(problem: Problem, program: _Program) -> NDArray[np.bool_] | None:
    if not problem.constrained:
        return None
    result = np.zeros(program.chunk.size, dtype=bool)
    if problem.slots is not None:
        slot = problem.slots[program.chunk]
        taken = np.zeros(problem.size, dtype=bool)
        taken[problem.slots[problem.slots != FREE]] = True
        result |= np.where(slot != FREE, slot != program.place, taken[program.place])
    if problem.groups is not None:
        earlier = np.zeros(problem.size, dtype=np.int64)
        for chunk, group in enumerate(problem.groups.tolist()):
            if group != FREE:
                members = np.flatnonzero(problem.groups[:chunk] == group)
                earlier[chunk] = (1 << members).sum()
        needed = earlier[program.chunk]
        result |= (program.before & needed) != needed
    return result


class _Program:
    """All transitions of the subset program for m chunks, layer by layer; built once per m."""

    def __init__(self, size: int) -> None:
        self.size = size
        members = [[] for _ in range(size + 1)]  # type: list[list[int]]
        for subset in range(1, 1 << size):
            members[subset.bit_count()].append(subset)
        self.layers: list[tuple[int, int, I64, I64, I64]] = []
        before: list[I64] = []
        chunk: list[I64] = []
        first = 0
        bits = np.arange(size)
        for count in range(1, size + 1):
            layer = np.array(members[count], dtype=np.int64)
            inside = np.nonzero((layer[:, None] >> bits) & 1)[1].reshape(-1, count)
            previous = layer[:, None] ^ (1 << inside)
            last = first + inside.size
            self.layers.append((first, last, layer, inside, previous))
            before.append(previous.ravel())
            chunk.append(inside.ravel())
            first = last
        self.before = np.concatenate(before)
        self.chunk = np.concatenate(chunk)
        self.place = np.repeat(np.arange(size), [layer[1] - layer[0] for layer in self.layers])

    def solve(self, gain: F64, *, bottleneck: bool = False) -> tuple[float, I64]:
        """Largest sum (or largest minimum) of gains over chains of subsets, and its order."""
        best = np.full(1 << self.size, -np.inf)
        best[0] = np.inf if bottleneck else 0.0
        choice = np.zeros(1 << self.size, dtype=np.int64)
        for first, last, layer, inside, previous in self.layers:
            step = gain[first:last].reshape(inside.shape)
            reached = best[previous]
            total = np.minimum(reached, step) if bottleneck else reached + step
            taken = total.argmax(axis=1)
            rows = np.arange(len(layer))
            best[layer] = total[rows, taken]
            choice[layer] = inside[rows, taken]
        order = np.empty(self.size, dtype=np.int64)
        rest = (1 << self.size) - 1
        for place in range(self.size - 1, -1, -1):
            order[place] = choice[rest]
            rest ^= 1 << int(choice[rest])
        return float(best[-1]), order


@lru_cache(maxsize=EXACT_LIMIT + 1)
def _program(size: int) -> _Program:
    return _Program(size)
