"""Which chunks to keep when the prompt has room for some of them only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lacuna.placement.problem import F64, I64

EXACT_SELECTION_LIMIT = 14
"""Up to this many optional chunks every subset is compared."""
_MAX_WORK = 20_000_000
"""Pairs compared over all exchanges: bounds the time for thousands of chunks."""


def select_chunks(
    cost: I64,
    relevance: F64,
    capacity: int | None,
    count: int | None,
    required: NDArray[np.bool_],
) -> I64:
    """Which chunks to keep: most relevance in all, then most chunks, then fewest tokens.

    A chunk that still fits is never dropped. Up to `EXACT_SELECTION_LIMIT` optional chunks the
    choice is exact. Above, chunks are taken greedily by relevance per token (and, as a rival, by
    relevance alone), and then single chunks are exchanged while that helps.

    Args:
        cost: tokens that each chunk takes, separator included, shape [m].
        relevance: non-negative, shape [m].
        capacity: tokens for all of them, never exceeded; None: no limit.
        count: how many may stay; None: no limit.
        required: chunks that must stay, shape [m].

    Returns:
        Indices of the kept chunks, ascending.

    Raises:
        ValueError: the required chunks alone exceed capacity or count.

    >>> from numpy import array, zeros
    >>> select_chunks(array([6, 5, 5]), array([9.0, 5, 5]), 10, None, zeros(3, bool)).tolist()
    [1, 2]
    """
    room = int(cost.sum()) if capacity is None else capacity
    places = int(cost.size) if count is None else count
    room -= int(cost[required].sum())
    places -= int(required.sum())
    if room < 0 or places < 0:
        raise ValueError("the pinned chunks alone exceed the budget")
    optional = np.flatnonzero(~required)
    if optional.size <= places and int(cost[optional].sum()) <= room:
        return np.arange(cost.size)
    choose = _enumerate if optional.size <= EXACT_SELECTION_LIMIT else _fill
    kept = choose(cost[optional], relevance[optional], room, places)
    return np.sort(np.concatenate([np.flatnonzero(required), optional[kept]]))


def _enumerate(cost: I64, relevance: F64, room: int, places: int) -> I64:
    """The best of all 2^m subsets. Each chunk doubles the table of sums over subsets."""
    size = cost.size
    subsets = np.arange(1 << size)
    spent = np.zeros(1 << size, dtype=np.int64)
    gained = np.zeros(1 << size)
    many = np.zeros(1 << size, dtype=np.int64)
    for i in range(size):
        half, rest = slice(0, 1 << i), slice(1 << i, 2 << i)
        spent[rest] = spent[half] + cost[i]
        gained[rest] = gained[half] + relevance[i]
        many[rest] = many[half] + 1
    possible = subsets[(spent <= room) & (many <= places)]
    # Rounded, so that rounding errors do not decide. Of equal subsets, earlier chunks win.
    worth = np.round(gained[possible] / max(float(relevance.max()), 1e-300), 12)
    best = possible[np.lexsort((possible, spent[possible], -many[possible], -worth))[0]]
    return np.flatnonzero((best >> np.arange(size)) & 1)


def _fill(cost: I64, relevance: F64, room: int, places: int) -> I64:
    """The better of two greedy selections, then exchanges of one chunk for another."""
    selections = [
        _greedy(cost, np.argsort(-key, kind="stable"), room, places)
        for key in (relevance / np.maximum(cost, 1), relevance)
    ]
    kept = max(selections, key=lambda one: (float(relevance[one].sum()), int(one.sum())))
    work = 0
    while (work := work + int(kept.sum()) * int((~kept).sum())) <= _MAX_WORK:
        inside, outside = np.flatnonzero(kept), np.flatnonzero(~kept)
        spare = room - int(cost[inside].sum())
        gain = relevance[outside][None, :] - relevance[inside][:, None]
        gain[cost[outside][None, :] - cost[inside][:, None] > spare] = -np.inf
        if gain.size == 0 or float(gain.max()) <= 1e-12 * float(relevance.max()):
            break
        leaves, enters = np.unravel_index(int(np.argmax(gain)), gain.shape)
        kept[inside[leaves]] = False
        kept[outside[enters]] = True
        # An exchange may free room for more.
        order = np.concatenate([np.flatnonzero(kept), outside[np.argsort(-relevance[outside])]])
        kept = _greedy(cost, order, room, places)
    return np.flatnonzero(kept)


def _greedy(cost: I64, order: I64, room: int, places: int) -> NDArray[np.bool_]:
    """Go through `order` and take every chunk that still fits."""
    kept = np.zeros(cost.size, dtype=bool)
    for i in order.tolist():
        if places > 0 and cost[i] <= room and not kept[i]:
            kept[i] = True
            room -= int(cost[i])
            places -= 1
    return kept
