"""Chunks to put in order, as arrays, and what an order is worth. `search.best_order` solves it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lacuna.contract.placements import Objective

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

FREE = -1
"""In `slots`: the chunk is not pinned. In `groups`: the chunk belongs to no group."""
TIE_BREAK = 1e-6
"""Weight of mean visibility for `worst_case`: decides only between equal worst cases."""


@dataclass(frozen=True, eq=False)
class OrderProblem:
    """Chunks 0..m-1 that follow one another in a prompt of n tokens.

    Chunk i of l_i tokens at offset o has visibility v_i(o) = n (F(o + l_i) - F(o)) / l_i. This is
    the mean density over its tokens; 1 is what a model that listens equally everywhere would give.
    A chunk of length 0 has the density at its point.
    """

    cumulative: F64
    """F at token boundaries, shape [n + 2], from `theory.curve.cumulative`."""
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
    """How many of the most relevant chunks `worst_case` considers."""
    slots: I64 | None = None
    """Place in the order of each pinned chunk, else FREE; shape [m]. None: nothing is pinned."""
    groups: I64 | None = None
    """Group of each chunk, else FREE; shape [m]. Members of a group stay in index order."""

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
        """Tokens over which a chunk's density is averaged, at least 1; shape [m]."""
        return np.maximum(self.lengths, 1)

    @cached_property
    def stride(self) -> I64:
        """Tokens from a chunk's offset to the next chunk's offset, shape [m]."""
        return self.lengths + self.separator

    @cached_property
    def adjoining(self) -> bool:
        """Whether every chunk ends where the next one starts, and none is empty."""
        return self.separator == 0 and bool((self.lengths > 0).all())

    @cached_property
    def scale(self) -> F64:
        """Visibility per unit of mass, n / l; shape [m]."""
        return self.tokens / self.span

    @cached_property
    def weight(self) -> F64:
        """Value per unit of mass: r n / l for visibility, r for mass; shape [m]."""
        if self.objective == "total_mass":
            return np.where(self.lengths > 0, self.relevance, 0.0)
        return self.relevance * self.scale

    @cached_property
    def ranking(self) -> I64:
        """Chunks by falling relevance; equally relevant ones in the caller's order."""
        return np.argsort(-self.relevance, kind="stable")

    @cached_property
    def is_top(self) -> NDArray[np.bool_]:
        """Which chunks `worst_case` considers, shape [m]."""
        result = np.zeros(self.size, dtype=bool)
        result[self.ranking[: self.top]] = True
        return result

    @cached_property
    def constrained(self) -> bool:
        """Whether any chunk is pinned or belongs to a group."""
        return self.slots is not None or self.groups is not None

    @cached_property
    def tie_break(self) -> float:
        """What one unit of summed value adds to the score of a worst case."""
        return TIE_BREAK / max(float(self.relevance.sum()), 1e-300)

    def offsets(self, orders: I64) -> I64:
        """Offset of the chunk at each place, shape of `orders` ([m] or [B, m])."""
        strides = self.stride[orders]
        ends: I64 = np.cumsum(strides, axis=-1)
        return ends - strides + self.start

    def masses(self, orders: I64) -> F64:
        """Influence on the chunk at each place, shape of `orders` ([m] or [B, m])."""
        if not self.adjoining:
            at = self.offsets(orders)
            mass: F64 = self.cumulative[at + self.span[orders]] - self.cumulative[at]
            return mass
        # One look-up for each boundary instead of two for each chunk.
        bounds = np.empty((*orders.shape[:-1], self.size + 1), dtype=np.int64)
        bounds[..., 0] = self.start
        bounds[..., 1:] = self.lengths.take(orders)
        np.cumsum(bounds, axis=-1, out=bounds)
        before: F64 = self.cumulative.take(bounds)
        return before[..., 1:] - before[..., :-1]

    def visibilities(self, order: I64) -> F64:
        """Visibility of the chunk at each place, shape [m]."""
        seen: F64 = np.maximum(self.masses(order), 0.0) * self.scale[order]
        return seen

    def scores(self, orders: I64) -> F64:
        """What the search maximises, for a batch of orders [B, m]: the value, with ties broken."""
        return self.scores_of(orders, self.masses(orders))

    def scores_of(self, orders: I64, mass: F64) -> F64:
        """`scores` where the influence on each chunk is known, both of shape [.., m]."""
        total: F64 = (mass * self.weight.take(orders)).sum(axis=-1)
        if self.objective != "worst_case":
            return total
        seen = np.where(self.is_top[orders], mass * self.scale[orders], np.inf)
        least: F64 = seen.min(axis=-1)
        return least + self.tie_break * total

    def score(self, order: I64) -> float:
        """`scores` of one order."""
        return float(self.scores(order[None])[0]) if self.size else 0.0

    def value(self, order: I64) -> float:
        """The objective: the sum of r v, the sum of r mass, or the top chunks' least visibility."""
        if not self.size:
            return 0.0
        seen = self.visibilities(order)
        if self.objective == "worst_case":
            return float(seen[self.is_top[order]].min())
        return float(seen @ (self.weight / self.scale)[order])

    def repair(self, orders: I64) -> I64:
        """The orders [B, m] changed as little as it takes to obey pins and groups; a copy."""
        fixed = orders.copy()
        rows = np.arange(len(fixed))
        if self.slots is not None:
            for chunk in np.flatnonzero(self.slots != FREE):
                slot = int(self.slots[chunk])
                fixed[rows, np.argmax(fixed == chunk, axis=1)] = fixed[:, slot]
                fixed[:, slot] = chunk
        if self.groups is not None:
            # Places sorted by group, then by place; the sorted members of each group go there.
            free = int((self.groups == FREE).sum())
            places = np.argsort(self.groups[fixed], axis=1, kind="stable")[:, free:]
            fixed[rows[:, None], places] = np.argsort(self.groups, kind="stable")[free:]
        return fixed
