"""A layer of causal ALiBi heads without a window, applied to a row in O(n) per head.

With rho_h = exp(d_h + s_h), q_h = exp(-s_h) and g_h(i) = sum_{k < i} q_h^k, token i divides its
weight by the normaliser Z_h(i) = rho_h + g_h(i), and the layer sends r to

    out_j = sum_h c_h ( rho_h w_hj + sum_{i > j} w_hi q_h^(i-j-1) ),   w_hi = r_i / Z_h(i).

Positions are cut into segments, and segments into blocks. Inside a block the inner sum is one
matrix product over (head, offset). What leaves a block towards lower positions is one state per
head, and a scan carries the states on from block to block. Once q^i is too small to change g_h(i),
Z_h no longer depends on i and the head has settled. All settled heads of a segment share one
Toeplitz matrix, so they cost nothing per position.

Only products of non-negative numbers are added, and nothing is subtracted, so that small results
keep their relative accuracy (about 1e-15 in the tests). Derivation: ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lacuna.theory._recursion import F64, geometric, running_scan

SETTLED = 39.0
"""s i from which q^i counts as 0: exp(-39) is below half a unit in the last place of 1."""
EXPONENT_LIMIT = 600.0
"""exp() of more than this times a weight could leave the range of float64."""
MOST_SPANS = 4
"""Scans in more spans than this are slower than a scan by doubling."""
NEAR_BLOCK, NEAR_ELEMENTS, NEAR_MINIMUM = 16, 1 << 15, 256
"""Segments with heads that have not settled: block, positions x heads, least positions."""
FAR_BLOCK, FAR_BLOCKS = 64, 128
"""Segments in which all heads have settled: block, most blocks."""
TINY = 1e-270
"""Smaller weights count as 0: arithmetic on denormal products is a hundred times slower."""
SERIAL = 4 * 65_536
"""OpenBLAS multiplies matrices on one thread up to this product of the three dimensions."""


@dataclass(frozen=True, eq=False)
class HeadContent:
    """The content logits of one layer's H heads, as rho_h = exp(d_h + s_h)."""

    rho: F64
    """[H, 1]; may be inf."""
    itself: F64
    """[H]: c_h rho_h; 0 where rho dwarfs all other weights."""
    own: F64
    """[H]: c_h where rho dwarfs all other weights, so that rho w is r itself; else 0."""
    dominant: bool
    """Whether `own` has any entry."""


@dataclass(frozen=True, eq=False)
class BlockLayout:
    """How a segment of `block * blocks` positions is cut, with the powers of q that it needs.

    A segment is stored offset first and last block first, so that influence flows towards higher
    indices: entry (u, b) is position (blocks - 1 - b) * block + u.
    """

    block: int
    blocks: int
    powers: F64
    """[H, 1, block]: q^u."""
    outgoing: F64
    """[block, H]: c q^(block-1-v)."""
    decay: F64
    """[H]: q^block."""
    scale: F64 | None
    """[H, span]: q^(block b). None where spans within the exponent's range would be too short."""
    inverse: F64 | None
    """[H, span]: 1 / scale."""
    toeplitz: npt.NDArray[np.intp]
    """[block(u), block(v)]: block - 1 + u - v."""

    @classmethod
    def of(cls, slopes: F64, weights: F64, block: int, blocks: int) -> BlockLayout:
        """For H heads of ascending slopes [H] and weights [H]."""
        powers = np.exp(-slopes[:, None] * np.arange(block, dtype=np.float64))
        steepest = float(slopes[-1]) * block
        span = blocks if steepest * blocks <= EXPONENT_LIMIT else int(EXPONENT_LIMIT // steepest)
        short = span * MOST_SPANS >= blocks
        exponent = slopes[:, None] * (block * np.arange(span, dtype=np.float64))
        offsets = np.arange(block)
        return cls(
            block=block,
            blocks=blocks,
            powers=np.ascontiguousarray(powers[:, None, :]),
            outgoing=np.ascontiguousarray((weights[:, None] * powers[:, ::-1]).T),
            decay=np.exp(-slopes * block),
            scale=np.exp(-exponent) if short else None,
            inverse=np.exp(exponent) if short else None,
            toeplitz=block - 1 + offsets[:, None] - offsets[None, :],
        )

    @property
    def size(self) -> int:
        """Positions per segment."""
        return self.block * self.blocks

    def scan(self, states: F64, carry: F64) -> tuple[F64, F64]:
        """Carry states from block to block.

        Args:
            states: [H, blocks], what each block sends.
            carry: [H], what arrives from the segment before (at higher positions).

        Returns:
            What arrives in each block [H, blocks], and what leaves the segment [H].
        """
        into = np.empty_like(states)
        into[:, 0] = carry
        into[:, 1:] = states[:, :-1]
        if self.scale is None or self.inverse is None:
            running_scan(into, self.decay)
        else:
            # A running sum of x_b / q^(block b), scaled back; in spans, so that nothing overflows.
            span = self.scale.shape[1]
            for first in range(0, self.blocks, span):
                part = into[:, first : first + span]
                if first:
                    part[:, 0] += self.decay * into[:, first - 1]
                part *= self.inverse[:, : part.shape[1]]
                np.cumsum(part, axis=1, out=part)
                part *= self.scale[:, : part.shape[1]]
        return into, states[:, -1] + self.decay * into[:, -1]


@dataclass(frozen=True, eq=False)
class Segment:
    """A segment in which the first `active` heads (gentlest slopes first) have not settled."""

    start: int
    active: int
    inside: F64
    """[block, active*block]: entry (v, (h, u)) = c_h q_h^(u-v-1) for u > v, else 0."""
    fall: F64
    """[active, 1]: q^start."""
    seen: F64
    """[active, 1]: g(start)."""

    @classmethod
    def of(cls, slopes: F64, inside: F64, start: int) -> Segment:
        """Of the heads [H] with `inside` [block, H*block]."""
        active = int(np.searchsorted(slopes * start, SETTLED))
        gentle = slopes[:active, None]
        return cls(
            start=start,
            active=active,
            inside=inside[:, : active * inside.shape[0]],
            fall=np.exp(-gentle * start),
            seen=geometric(gentle, np.array([float(start)])),
        )


@dataclass(frozen=True, eq=False)
class CausalTables:
    """Everything about a layer that does not depend on its content."""

    length: int
    slopes: F64
    """[H], ascending."""
    weights: F64
    limit: F64
    """[H]: g(infinity) = 1/(1-q); inf for slope 0, which never settles."""
    near: BlockLayout
    """Of the segments with heads that have not settled."""
    geometric: F64
    """[H, near.size]: g of the offset inside a segment, in storage order."""
    segments: tuple[Segment, ...]
    """From the last to the first."""
    far_start: int
    """Position from which all heads have settled."""
    far: BlockLayout | None
    """Of the positions from `far_start` on."""


def causal_tables(length: int, slopes: F64, weights: F64) -> CausalTables:
    """Tables for these heads.

    Args:
        length: n >= 1.
        slopes: [H], ascending, >= 0.
        weights: [H], > 0.
    """
    size = min(length, max(NEAR_MINIMUM, NEAR_ELEMENTS // slopes.size))
    near = BlockLayout.of(slopes, weights, NEAR_BLOCK, -(-size // NEAR_BLOCK))
    segments = -(-length // near.size)
    if slopes[0] * length > SETTLED:
        segments = min(segments, int(-(-SETTLED / slopes[0] // near.size)))
    rest = length - segments * near.size
    far = None
    if rest > 0:
        far = BlockLayout.of(slopes, weights, FAR_BLOCK, min(FAR_BLOCKS, -(-rest // FAR_BLOCK)))
    inside = _inside(slopes, weights, near.block)
    block, blocks = np.arange(near.block)[:, None], np.arange(near.blocks)[::-1]
    offsets = blocks * near.block + block
    return CausalTables(
        length=length,
        slopes=slopes,
        weights=weights,
        limit=geometric(slopes, np.array([np.inf])),
        near=near,
        geometric=geometric(slopes[:, None], offsets.ravel()[None, :].astype(np.float64)),
        segments=tuple(
            Segment.of(slopes, inside, start)
            for start in range((segments - 1) * near.size, -1, -near.size)
        ),
        far_start=segments * near.size,
        far=far,
    )


def _inside(slopes: F64, weights: F64, block: int) -> F64:
    """`Segment.inside` of all heads."""
    steps = np.arange(block, dtype=np.float64)
    gap = (steps[None, :] - steps[:, None] - 1)[:, None, :]  # [v, 1, u]
    table = np.exp(-slopes[None, :, None] * np.maximum(gap, 0.0))
    table *= (gap >= 0) * weights[None, :, None]
    return table.reshape(block, slopes.size * block)


def apply_causal(tables: CausalTables, content: HeadContent, row: F64) -> F64:
    """sum_h c_h (row @ A_h). `row`: [n], >= 0; returns [n]."""
    size = tables.near.size
    padded = np.zeros(max(tables.length, tables.far_start))
    padded[: tables.length] = row
    padded[padded < TINY] = 0.0
    padded[0] = 0.0  # the first token sees only itself: added at the end
    out = np.empty_like(padded)
    carry = np.zeros(tables.slopes.size)
    if tables.far is not None:
        far, where = tables.far, slice(tables.far_start, None)
        carry = _apply_far(tables, far, content, padded[where], out[where], carry)
    scratch = np.empty(tables.segments[-1].active * size)
    for segment in tables.segments:
        where = slice(segment.start, segment.start + size)
        carry = _apply_near(tables, segment, content, padded[where], out[where], carry, scratch)
    out[0] += row[0]
    return out[: tables.length]


def _apply_near(
    tables: CausalTables,
    segment: Segment,
    content: HeadContent,
    row: F64,
    out: F64,
    carry: F64,
    scratch: F64,
) -> F64:
    """One segment: writes `out` [near.size], returns what leaves it [H]."""
    layout, active = tables.near, segment.active
    block, blocks = layout.block, layout.blocks
    by_block = row.reshape(blocks, block)[::-1]
    flat = by_block.T.ravel()
    w = scratch[: active * row.size].reshape(active, row.size)
    _normalisers(tables, segment, content.rho[:active], w)
    np.divide(flat, w, out=w)
    total = product(segment.inside, w.reshape(active * block, blocks))
    total += weighted(content.itself[:active], w).reshape(block, blocks)
    if content.dominant:
        total += content.own[:active].sum() * flat.reshape(block, blocks)
    states = np.empty((tables.slopes.size, blocks))
    np.matmul(
        layout.powers[:active],
        w.reshape(active, block, blocks),
        out=states[:active].reshape(active, 1, blocks),
    )
    if active < tables.slopes.size:
        kernel, passing = _settled(tables, layout, content, active)
        total += product(by_block, kernel).T
        states[active:] = product(passing, by_block.T)
    into, leaving = layout.scan(states, carry)
    total += product(layout.outgoing, into)
    out.reshape(blocks, block)[::-1] = total.T
    return leaving


def _normalisers(tables: CausalTables, segment: Segment, rho: F64, out: F64) -> None:
    """Writes Z = g + rho of the active heads at a segment's positions to `out`, [active, size]."""
    if segment.start == 0:
        np.add(tables.geometric, rho, out=out)
        out[:, tables.near.blocks - 1] = 1.0  # position 0: its Z may be 0, and its weight is 0
    else:
        # g(start + k) = g(start) + q^start g(k)
        np.multiply(tables.geometric[: segment.active], segment.fall, out=out)
        out += rho + segment.seen


def _apply_far(
    tables: CausalTables, layout: BlockLayout, content: HeadContent, row: F64, out: F64, carry: F64
) -> F64:
    """All positions where every head has settled: writes `out`, returns what leaves them [H]."""
    kernel, passing = _settled(tables, layout, content, 0)
    for start in range((row.size - 1) // layout.size * layout.size, -1, -layout.size):
        part = row[start : start + layout.size]
        full = part
        if part.size < layout.size:
            full = np.zeros(layout.size)
            full[: part.size] = part
        by_block = full.reshape(layout.blocks, layout.block)[::-1]
        inside = product(by_block, kernel)
        into, carry = layout.scan(product(passing, by_block.T), carry)
        inside += product(into.T, layout.outgoing.T)
        out[start : start + part.size] = inside[::-1].reshape(-1)[: part.size]
    return carry


def _settled(
    tables: CausalTables, layout: BlockLayout, content: HeadContent, first: int
) -> tuple[F64, F64]:
    """For the settled heads `first`.. : their summed kernel in a block [u, v], and their states.

    The states are q_h^u / Z_h, [h, u]: what one unit at offset u sends out of its block.
    """
    block = layout.block
    scale = 1.0 / (content.rho[first:, 0] + tables.limit[first:])
    passing = scale[:, None] * layout.powers[first:, 0, :]
    tail = np.zeros(2 * block - 1)
    tail[block:] = (tables.weights[first:, None] * passing[:, :-1]).sum(axis=0)
    tail[block - 1] = float((content.itself[first:] * scale).sum())
    if content.dominant:
        tail[block - 1] += content.own[first:].sum()
    return tail[layout.toeplitz], passing


def product(left: F64, right: F64) -> F64:
    """left @ right in pieces too small for BLAS to start its threads.

    On a busy machine, waiting for a second thread costs up to a thousand times the product itself.
    A vector times a matrix starts threads even sooner, see `weighted`.
    """
    rows = max(2, SERIAL // right.size)
    if left.shape[0] <= rows:
        return np.asarray(left @ right)
    out = np.empty((left.shape[0], right.shape[1]))
    for first in range(0, left.shape[0], rows):
        np.matmul(left[first : first + rows], right, out=out[first : first + rows])
    return out


def weighted(weights: F64, rows: F64) -> F64:
    """weights [H] @ rows [H, m]; a second row of zeros makes it a matrix product, see `product`."""
    left = np.zeros((2, weights.size))
    left[0] = weights
    return np.asarray(product(left, rows)[0])
