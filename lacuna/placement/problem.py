"""One placement problem in arrays, and the value of an order. See `lacuna.placement.search`.

Which chunks to keep when the prompt has room for some of them only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Objective = Literal["mean_visibility", "total_mass", "worst_case"]

FREE = -1
"""Marks a chunk that is not pinned to a slot, or belongs to no group."""
TIE_BREAK = 1e-6
"""Weight of mean visibility beside the worst case: decides only between equal worst cases."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Chunks 0..m-1 to be laid one after another into a prompt of n tokens.

    Chunk i at offset o has visibility v_i(o) = n (F(o + l_i) - F(o)) / l_i, the mean density over
    its tokens (1 = what a model that listens everywhere alike would give); a chunk of zero length
    has the density at its point.
    """

    cumulative: F64
    """F at token boundaries, shape [n + 2] as `calibration.cumulative` gives it."""
    lengths: I64
    """Tokens of each chunk, shape [m]."""
    relevance: F64
    """Non-negative, shape [m]."""
    start: int = 0
    """Tokens before the first chunk."""
    separator: int = 0
    """Tokens between neighbours."""
    objective: Objective = "mean_visibility"
    top: int = 3
    """How many of the most relevant chunks `worst_case` looks at."""
    slots: I64 | None = None
    """Place of each pinned chunk in the order, or FREE, shape [m]."""
    groups: I64 | None = None
    """Group of each chunk, or FREE, shape [m]: members keep their index order."""

    @cached_property
    def size(self) -> int:
        """Number of chunks m."""
        return int(self.lengths.size)

    @cached_property
    def tokens(self) -> int:
        """Length n of the prompt."""
        return int(self.cumulative.size) - 2

    @cached_property
    def span(self) -> I64:
        """Tokens over which a chunk's density is averaged: at least one."""
        return np.maximum(self.lengths, 1)

    @cached_property
    def stride(self) -> I64:
        """What a chunk moves its successor by."""
        return self.lengths + self.separator

    @cached_property
    def scale(self) -> F64:
        """Visibility per unit of mass: n / l."""
        return self.tokens / self.span

    @cached_property
    def weight(self) -> F64:
        """Value per unit of mass: r n / l for visibility, r for mass."""
        if self.objective == "total_mass":
            return np.where(self.lengths > 0, self.relevance, 0.0)
        return self.relevance * self.scale

    @cached_property
    def ranking(self) -> I64:
        """Chunks by falling relevance; equals in the caller's order."""
        return np.argsort(-self.relevance, kind="stable")

    @cached_property
    def is_top(self) -> NDArray[np.bool_]:
        """The chunks that `worst_case` looks at."""
        result = np.zeros(self.size, dtype=bool)
        result[self.ranking[: self.top]] = True
        return result

    @cached_property
    def constrained(self) -> bool:
        """Whether any chunk is pinned or belongs to a group."""
        return self.slots is not None or self.groups is not None

    @cached_property
    def tie_break(self) -> float:
        """What a unit of summed value counts beside the worst case."""
        return TIE_BREAK / max(float(self.relevance.sum()), 1e-300)

    def offsets(self, orders: I64) -> I64:
        """Offset of the chunk at each place, shape of `orders` ([m] or [B, m])."""
        strides = self.stride[orders]
        ends: I64 = np.cumsum(strides, axis=-1)
        return ends - strides + self.start

    def visibilities(self, order: I64) -> F64:
        """Visibility of each chunk, in the order's order."""
        at = self.offsets(order)
        mass = self.cumulative[at + self.span[order]] - self.cumulative[at]
        seen: F64 = np.maximum(mass, 0.0) * self.scale[order]
        return seen

    def scores(self, orders: I64) -> F64:
        """What the search maximises, for a batch of orders [B, m]: value, with ties broken."""
        at = self.offsets(orders)
        mass = self.cumulative[at + self.span[orders]] - self.cumulative[at]
        total: F64 = (mass * self.weight[orders]).sum(axis=-1)
        if self.objective != "worst_case":
            return total
        seen = np.where(self.is_top[orders], mass * self.scale[orders], np.inf)
        least: F64 = seen.min(axis=-1)
        return least + self.tie_break * total

    def score(self, order: I64) -> float:
        """`scores` of one order."""
        return float(self.scores(order[None])[0]) if self.size else 0.0

    def value(self, order: I64) -> float:
        """The objective: sum of r v, sum of r mass, or the least visibility of the top chunks."""
        if not self.size:
            return 0.0
        seen = self.visibilities(order)
        if self.objective == "worst_case":
            return float(seen[self.is_top[order]].min())
        return float(seen @ (self.weight / self.scale)[order])

    def repair(self, orders: I64) -> I64:
        """Nearest orders that keep pins and groups; a copy, shape [B, m]."""
        fixed = orders.copy()
        rows = np.arange(len(fixed))
        if self.slots is not None:
            for chunk in np.flatnonzero(self.slots != FREE):
                slot = int(self.slots[chunk])
                fixed[rows, np.argmax(fixed == chunk, axis=1)] = fixed[:, slot]
                fixed[:, slot] = chunk
        if self.groups is not None:
            # Places by group, then by place: the members of a group, in their order, go there.
            free = int((self.groups == FREE).sum())
            places = np.argsort(self.groups[fixed], axis=1, kind="stable")[:, free:]
            fixed[rows[:, None], places] = np.argsort(self.groups, kind="stable")[free:]
        return fixed


EXACT_LIMIT = 14
"""Optional chunks up to which every subset is weighed."""
_MAX_WORK = 20_000_000
"""Exchanges times pairs that are looked at: bounds the time for thousands of chunks."""


def select(
    cost: I64,
    relevance: F64,
    capacity: int | None,
    count: int | None,
    required: NDArray[np.bool_],
) -> I64:
    """Indices kept, rising: most relevance, then most chunks, then fewest tokens.

    Nothing that fits is dropped. Up to `EXACT_LIMIT` optional chunks the choice is exact; above,
    relevance per token (and, as a rival, relevance alone) fills the room, then single exchanges.

    Args:
        cost: tokens that each chunk takes, separator included, shape [m].
        relevance: non-negative, shape [m].
        capacity: tokens for all of them; None is no limit. Never exceeded.
        count: how many may stay; None is no limit.
        required: chunks that stay whatever they cost, shape [m].

    Raises:
        ValueError: the required chunks alone exceed capacity or count.

    >>> from numpy import array, zeros
    >>> select(array([6, 5, 5]), array([9.0, 5, 5]), 10, None, zeros(3, bool)).tolist()
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
    choose = _enumerate if optional.size <= EXACT_LIMIT else _fill
    kept = choose(cost[optional], relevance[optional], room, places)
    return np.sort(np.concatenate([np.flatnonzero(required), optional[kept]]))


def _enumerate(cost: I64, relevance: F64, room: int, places: int) -> I64:
    """The best subset of all, by doubling."""
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
    # Sums that differ in the last bits are equal; the earlier chunks win what is still undecided.
    worth = np.round(gained[possible] / max(float(relevance.max()), 1e-300), 12)
    best = possible[np.lexsort((possible, spent[possible], -many[possible], -worth))[0]]
    return np.flatnonzero((best >> np.arange(size)) & 1)


def _fill(cost: I64, relevance: F64, room: int, places: int) -> I64:
    """The better of two greedy fillings, then exchanges of one chunk for another."""
    fillings = [
        _greedy(cost, np.argsort(-key, kind="stable"), room, places)
        for key in (relevance / np.maximum(cost, 1), relevance)
    ]
    kept = max(fillings, key=lambda one: (float(relevance[one].sum()), int(one.sum())))
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
    """Take what still fits, in this order."""
    kept = np.zeros(cost.size, dtype=bool)
    for i in order.tolist():
        if places > 0 and cost[i] <= room and not kept[i]:
            kept[i] = True
            room -= int(cost[i])
            places -= 1
    return kept
