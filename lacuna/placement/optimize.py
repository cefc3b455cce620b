"""Algorithms that order chunks; `search.best_order` chooses between them.

- `rearrange`: exact for chunks of equal length, by sorting.
- `subset_order`: exact for few chunks, by dynamic programming over subsets.
- `heuristic_order`: for many chunks, an order built from the ends inwards and then improved.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lacuna.placement.problem import F64, FREE, I64, OrderProblem

EXACT_ORDER_LIMIT = 12
"""Chunks up to which `subset_order` is used: m 2^(m-1) transitions, 24,576 at 12."""
STATES = 1_024
"""Lengths placed on the left that `outside_in` tells apart; longer prompts share a state."""
PAIRWISE_LIMIT = 40
"""Chunks up to which every swap and every move is tried: m^3 numbers a step."""
RELOCATION_LIMIT = 1_000
"""Chunks up to which, with pins or groups, moves of the chunks with most weight are tried."""
_RELOCATED = 60
_RELOCATION_PLACES = 64
_RELOCATION_STEPS = 4
MAX_STEPS = 60


def equal_lengths(problem: OrderProblem) -> bool:
    """Whether all chunks have one length, so that `rearrange` is exact."""
    return problem.size < 2 or bool((problem.lengths == problem.lengths[0]).all())


def rearrange(problem: OrderProblem, order: I64, *, ties_only: bool = False) -> I64:
    """Sort chunks of one length over the slots they hold. The result is never worse.

    By the rearrangement inequality the sum of r v over chunks of one length is largest when the
    most relevant chunk stands where the density is highest. Equally relevant chunks take the
    better places in the caller's order. Chunks of equal length exchange places without moving
    any other chunk.

    Args:
        problem: pinned chunks and members of groups stay where they are.
        order: a permutation, shape [m].
        ties_only: exchange only chunks of equal length and equal relevance.

    Returns:
        The sorted order, shape [m].
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
    # Rounded, so that slots whose densities differ by rounding alone keep their order.
    seen = np.round(problem.visibilities(order), 12)
    result = order.copy()
    for places in held.values():
        if len(places) > 1:
            slots = np.array(places)
            chunks = np.sort(order[slots])
            best_first = slots[np.argsort(-seen[slots], kind="stable")]
            result[best_first] = chunks[np.argsort(-problem.relevance[chunks], kind="stable")]
    return result


def subset_order(problem: OrderProblem) -> I64:
    """Best order by dynamic programming over subsets, O(m 2^m).

    A chunk's offset depends only on which chunks stand before it, not on their order. So the best
    order of each subset follows from the best orders of the subsets with one chunk less. Pins and
    groups forbid transitions. The worst case is solved in two passes: first the largest minimum,
    then the largest sum that keeps it.

    Returns:
        The order, shape [m].

    Raises:
        ValueError: no order satisfies the pins and groups.
    """
    program = _program(problem.size)
    at = np.zeros(1 << problem.size, dtype=np.int64)
    for i in range(problem.size):
        np.add(at[: 1 << i], problem.stride[i], out=at[1 << i : 2 << i])
    at += problem.start
    # Offsets of non-full subsets only: after the last chunk, its separator would pass the end.
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


def _forbidden(problem: OrderProblem, program: _Program) -> NDArray[np.bool_] | None:
    """Which transitions break a pin or a group; None without either."""
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
    """All transitions "chunk joins the subset before it" for m chunks, by size of the subset.

    They do not depend on the chunks, so they are built once for each m. `before`, `chunk` and
    `place` list them all, shape [m 2^(m-1)]; a layer holds the ones that reach subsets of one size.
    """

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
        """The largest sum (or largest minimum) of gains over all orders, and such an order."""
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


@lru_cache(maxsize=EXACT_ORDER_LIMIT + 1)
def _program(size: int) -> _Program:
    return _Program(size)


def heuristic_order(problem: OrderProblem) -> I64:
    """A good order, shape [m]; deterministic, and never worth less than a fixed rule.

    Starts from the best of `outside_in`, relevance first and last, and both zigzags, all repaired
    to obey pins and groups. Then improves it in turns: by all swaps and moves if m allows, else by
    exchanges of neighbours; and by sorting chunks of equal length over their slots.
    """
    ranked = problem.ranking
    rules = [ranked, ranked[::-1], best_first(ranked), best_last(ranked)]
    starts = problem.repair(np.stack([outside_in(problem), *rules]))
    order: I64 = starts[int(np.argmax(problem.scores(starts)))]
    search, steps = (_pairwise if problem.size <= PAIRWISE_LIMIT else _neighbours), MAX_STEPS
    if problem.constrained and PAIRWISE_LIMIT < problem.size <= RELOCATION_LIMIT:
        search, steps = _relocations, _RELOCATION_STEPS
    score = problem.score(order)
    for _ in range(steps):
        found = search(problem, order)
        order = rearrange(problem, found)
        improved = problem.score(order)
        # A search of all swaps and moves finds nothing more where it ended.
        at_its_end = search is _pairwise and bool((order == found).all())
        if at_its_end or improved <= score * (1 + 1e-12):
            break
        score = improved
    return order


def best_first(ranked: I64) -> I64:
    """Ranks 0 2 4 .. 5 3 1 of `ranked`, chunks by falling relevance [m]."""
    return np.concatenate([ranked[0::2], ranked[1::2][::-1]])


def best_last(ranked: I64) -> I64:
    """Ranks 1 3 5 .. 4 2 0 of `ranked`, chunks by falling relevance [m]."""
    return np.concatenate([ranked[1::2], ranked[0::2][::-1]])


def outside_in(problem: OrderProblem) -> I64:
    """Fill the prompt from both ends inwards, shape [m]; O(m min(n, STATES)).

    Chunks are taken by falling key. Each goes to the left or the right end of the open gap;
    dynamic programming over the length placed on the left decides which.

    The key is relevance per token for visibility, because exchanging neighbours i, j of a and b
    tokens at offset o changes the value by
    (r_i/l_i - r_j/l_j) (F(o+a) + F(o+b) - F(o) - F(o+a+b)). It is relevance for mass. For the worst
    case the top chunks come first; a state is worth the least visibility among them, plus the
    sum that breaks ties.
    """
    F, weight, span, stride = problem.cumulative, problem.weight, problem.span, problem.stride
    worst = problem.objective == "worst_case"
    if worst:
        ranked = np.lexsort((-weight, ~problem.is_top))
        weight = np.where(problem.is_top, problem.scale, weight * problem.tie_break)
    else:
        ranked = np.argsort(-weight, kind="stable")
    whole = int(stride.sum())
    step = np.rint(stride * min(1.0, STATES / max(whole, 1))).astype(np.int64)
    # Per state, the tokens placed on the left in steps: the best value, and the left block's end.
    value = np.full(int(step.sum()) + 1, -np.inf)
    end = np.full(value.size, problem.start)
    value[0], used, placed = np.inf if worst else 0.0, 1, 0
    went_left: list[NDArray[np.bool_]] = []
    for place, i in enumerate(ranked.tolist()):
        join = np.minimum if worst and place < problem.top else np.add
        w, tokens, moves, k = float(weight[i]), int(span[i]), int(stride[i]), int(step[i])
        at, so_far = end[:used], value[:used]
        moved = at + moves
        on_left = w * (F[tokens:].take(at) - F.take(at))
        join(so_far, on_left, out=on_left)
        gap = whole - placed - moves  # from the left block's end to the chunk on the right
        on_right = w * (F[gap + tokens :].take(at) - F[gap:].take(at))
        join(so_far, on_right, out=so_far)
        target = value[k : used + k]
        wins = on_left > target
        np.copyto(target, on_left, where=wins)
        np.copyto(end[k : used + k], moved, where=wins)
        went_left.append(wins)
        used, placed = used + k, placed + moves
    return _walk_back(ranked, step, went_left, int(np.argmax(value)))


def _walk_back(ranked: I64, step: I64, went_left: list[NDArray[np.bool_]], state: int) -> I64:
    """The order that led to a final state of `outside_in`, from the choices made on the way."""
    head: list[int] = []
    tail: list[int] = []
    for i, wins in zip(ranked[::-1].tolist(), reversed(went_left), strict=True):
        before = state - int(step[i])
        if 0 <= before < wins.size and wins[before]:
            head.append(i)
            state = before
        else:
            tail.append(i)
    return np.array(head[::-1] + tail, dtype=np.int64)


def _pairwise(problem: OrderProblem, order: I64) -> I64:
    """Steepest ascent over all swaps of two chunks and all moves of one, to a local optimum."""
    table = _moves(problem.size)
    score = problem.score(order)
    while True:
        candidates = order[table]
        if problem.constrained:
            candidates = problem.repair(candidates)
        scores = problem.scores(candidates)
        best = int(np.argmax(scores))
        if scores[best] <= score * (1 + 1e-12):
            return order
        order, score = candidates[best], float(scores[best])


def _relocations(problem: OrderProblem, order: I64) -> I64:
    """Exchanges of neighbours, then the chunks with most weight one by one to their best place.

    Pins and groups can keep exchanges of neighbours from reaching such a place step by step.
    """
    order = _neighbours(problem, order)
    score = problem.score(order)
    size = problem.size
    targets = np.unique(np.linspace(0, size - 1, min(size, _RELOCATION_PLACES)).astype(np.int64))
    # Row k: the chunk at place targets[k], all others around it in their order.
    source = np.arange(size) - (np.arange(size) > targets[:, None])
    rows = np.arange(targets.size)
    for chunk in np.argsort(-problem.weight, kind="stable")[:_RELOCATED].tolist():
        candidates = order[order != chunk][np.minimum(source, size - 2)]
        candidates[rows, targets] = chunk
        candidates = problem.repair(candidates)
        scores = problem.scores(candidates)
        best = int(np.argmax(scores))
        if scores[best] > score * (1 + 1e-12):
            order, score = candidates[best], float(scores[best])
    return order


@lru_cache(maxsize=PAIRWISE_LIMIT + 1)
def _moves(size: int) -> I64:
    """Every swap of two places and every move of one to another, as permutations [B, m]."""
    identity = np.arange(size)
    found: list[I64] = []
    for i in range(size):
        for j in range(i + 1, size):
            swapped = identity.copy()
            swapped[[i, j]] = j, i
            found.append(swapped)
        rest = np.delete(identity, i)
        found += [np.insert(rest, j, i) for j in range(size) if abs(i - j) > 1]
    return np.array(found, dtype=np.int64).reshape(-1, size)


def _neighbours(problem: OrderProblem, order: I64) -> I64:
    """Exchange neighbours, at even and odd places in turn: O(m) a pass, all pairs at once.

    The weighted sum alone decides about exchanges. The best order by score is kept, so that a pass
    which lowers the worst case does no harm.
    """
    order = order.copy()
    best, score = order.copy(), problem.score(order)
    for turn in range(2 * MAX_STEPS):
        first = np.arange(turn % 2, problem.size - 1, 2)
        a, b = order[first], order[first + 1]
        at = problem.offsets(order)[first]
        gain = _pair(problem, b, a, at) - _pair(problem, a, b, at)
        better = gain > 1e-12 * max(abs(score), 1e-300)
        if problem.slots is not None:
            better &= (problem.slots[a] == FREE) & (problem.slots[b] == FREE)
        if problem.groups is not None:
            better &= (problem.groups[a] != problem.groups[b]) | (problem.groups[a] == FREE)
        order[first[better]], order[first[better] + 1] = b[better], a[better]
        reached = problem.score(order)
        if reached > score:
            best, score = order.copy(), reached
        elif turn % 2:
            break
    return best


def _pair(problem: OrderProblem, a: I64, b: I64, at: I64) -> F64:
    """Value of chunk a at offset `at` followed by chunk b; all shapes [P]."""
    F = problem.cumulative
    then = at + problem.stride[a]
    on_a: F64 = problem.weight[a] * (F[at + problem.span[a]] - F[at])
    on_b: F64 = problem.weight[b] * (F[then + problem.span[b]] - F[then])
    return on_a + on_b
