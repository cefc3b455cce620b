"""How the positions and heads of a layer are cut for the blocked pass (see `_blocked`).

The causal ALiBi pass of one layer: all heads in a few matrix products, O(n) per head.

With rho_h = exp(d_h + s_h) and g_h(i) = sum_{k < i} q_h^k, token i divides its weight by
Z_h(i) = rho_h + g_h(i), and the layer sends r to

    out_j = sum_h c_h ( rho_h w_hj + sum_{i > j} w_hi q_h^(i-j-1) ),   w_hi = r_i / Z_h(i).

Positions are cut into chunks and chunks into blocks. Inside a block the inner sum is one matrix
product over (head, offset); what leaves a block is a state per head, carried on by a scan. Once
q^i has vanished beside 1, Z_h no longer depends on i: a head that has settled costs nothing per
position, since all settled heads share one Toeplitz matrix. Only products of non-negative numbers
are added, so small values keep their relative accuracy (about 1e-15 in the tests).

The causal ALiBi pass of one layer with a sliding window: blocked like `_blocked`, O(n).

With window W = m B + e (B positions per block, 0 <= e < B), a token in block b sees the tokens
after it in its own block, blocks b+1 .. b+m-1 whole, and parts of blocks b+m and b+m+1. The three
partial blocks are matrix products over (head, offset); the whole ones a windowed sum of one state
per block and head. Nothing that left the window is ever subtracted.

From position W-1 on every head's normaliser is constant, so that w_h = r / Z_h is the same row up
to a factor: there the three products of all heads are one small matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from lacuna.theory._recursion import F64, SideWeights, geometric, running_scan, windowed_suffix_sums

SETTLED = 39.0
"""exp(-39) is below half a unit in the last place of 1."""
EXPONENT_LIMIT = 600.0
"""exp() of more than this times a weight could leave the range of float64."""
MOST_SPANS = 4
NEAR_BLOCK, NEAR_ELEMENTS, NEAR_MINIMUM = 16, 1 << 15, 256
FAR_BLOCK, FAR_BLOCKS = 64, 128


@dataclass(frozen=True, eq=False)
class Layout:
    """How a chunk of `block * blocks` positions is cut, with the powers of q that it needs.

    Inside a chunk, entries are stored offset-first and the last block first, so that influence
    flows towards higher indices: entry (u, b) is position (blocks - 1 - b) * block + u.
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
    """[H, span]: decay^b; the scan is a running sum while the inverse stays within range."""
    inverse: F64 | None
    toeplitz: npt.NDArray[np.intp]
    """[block(u), block(v)]: block - 1 + u - v."""

    @property
    def size(self) -> int:
        """Positions per chunk."""
        return self.block * self.blocks

    def scan(self, states: F64, carry: F64) -> tuple[F64, F64]:
        """States arriving in each block [H, blocks], and the one that leaves the chunk [H]."""
        into = np.empty_like(states)
        into[:, 0] = carry
        into[:, 1:] = states[:, :-1]
        if self.scale is None or self.inverse is None:
            running_scan(into, self.decay)
        else:
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
class Chunk:
    """A chunk in which the first `active` heads (gentlest slopes first) have not settled."""

    start: int
    active: int
    inside: F64
    """[block, active*block]: entry (v, (h, u)) = c_h q_h^(u-v-1) for u > v, else 0."""
    fall: F64
    """[active, 1]: q^start."""
    seen: F64
    """[active, 1]: g(start)."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything about one layer that its content does not change."""

    length: int
    slopes: F64
    """[H], ascending."""
    weights: F64
    limit: F64
    """[H]: g(infinity) = 1/(1-q); inf for slope 0, which never settles."""
    near: Layout
    geometric: F64
    """[H, near.size]: g of the offset inside a chunk, in storage order."""
    chunks: tuple[Chunk, ...]
    """From the last to the first."""
    far_start: int
    far: Layout | None


def plan(length: int, slopes: F64, weights: F64) -> Plan:
    """The plan for these heads; equal arguments share one, so that layers share their tables.

    Args:
        length: n >= 1.
        slopes: [H], ascending, >= 0.
        weights: [H], > 0.
    """
    return _plan(length, slopes.tobytes(), weights.tobytes())


@lru_cache(maxsize=4)
def _plan(length: int, slopes_: bytes, weights_: bytes) -> Plan:
    slopes, weights = np.frombuffer(slopes_), np.frombuffer(weights_)
    size = min(length, max(NEAR_MINIMUM, NEAR_ELEMENTS // slopes.size))
    near = _layout(slopes, weights, NEAR_BLOCK, -(-size // NEAR_BLOCK))
    chunks = -(-length // near.size)
    if slopes[0] * length > SETTLED:
        chunks = min(chunks, int(-(-SETTLED / slopes[0] // near.size)))
    rest = length - chunks * near.size
    far = None
    if rest > 0:
        far = _layout(slopes, weights, FAR_BLOCK, min(FAR_BLOCKS, -(-rest // FAR_BLOCK)))
    inside = _inside(slopes, weights, near.block)
    block, blocks = np.arange(near.block)[:, None], np.arange(near.blocks)[::-1]
    offsets = blocks * near.block + block
    return Plan(
        length=length,
        slopes=slopes,
        weights=weights,
        limit=geometric(slopes, np.array([np.inf])),
        near=near,
        geometric=geometric(slopes[:, None], offsets.ravel()[None, :].astype(np.float64)),
        chunks=tuple(
            _chunk(slopes, inside, start)
            for start in range((chunks - 1) * near.size, -1, -near.size)
        ),
        far_start=chunks * near.size,
        far=far,
    )


def _layout(slopes: F64, weights: F64, block: int, blocks: int) -> Layout:
    powers = np.exp(-slopes[:, None] * np.arange(block, dtype=np.float64))
    steepest = float(slopes[-1]) * block
    span = blocks if steepest * blocks <= EXPONENT_LIMIT else int(EXPONENT_LIMIT // steepest)
    short = span * MOST_SPANS >= blocks
    exponent = slopes[:, None] * (block * np.arange(span, dtype=np.float64))
    offsets = np.arange(block)
    return Layout(
        block=block,
        blocks=blocks,
        powers=np.ascontiguousarray(powers[:, None, :]),
        outgoing=np.ascontiguousarray((weights[:, None] * powers[:, ::-1]).T),
        decay=np.exp(-slopes * block),
        scale=np.exp(-exponent) if short else None,
        inverse=np.exp(exponent) if short else None,
        toeplitz=block - 1 + offsets[:, None] - offsets[None, :],
    )


def _inside(slopes: F64, weights: F64, block: int) -> F64:
    steps = np.arange(block, dtype=np.float64)
    gap = (steps[None, :] - steps[:, None] - 1)[:, None, :]  # [v, 1, u]
    table = np.exp(-slopes[None, :, None] * np.maximum(gap, 0.0))
    table *= (gap >= 0) * weights[None, :, None]
    return table.reshape(block, slopes.size * block)


def _chunk(slopes: F64, inside: F64, start: int) -> Chunk:
    active = int(np.searchsorted(slopes * start, SETTLED))
    block = inside.shape[0]
    gentle = slopes[:active, None]
    return Chunk(
        start=start,
        active=active,
        inside=inside[:, : active * block],
        fall=np.exp(-gentle * start),
        seen=geometric(gentle, np.array([float(start)])),
    )


TINY = 1e-270
"""Smaller weights are not passed on: arithmetic on denormal products is a hundred times slower."""
SERIAL = 4 * 65_536
"""OpenBLAS multiplies matrices on one thread up to this product of the three dimensions."""


@dataclass(frozen=True, eq=False)
class Content:
    """One layer's content: what rho_h = exp(d_h + s_h) becomes."""

    rho: F64
    """[H, 1]; may be inf."""
    own: F64
    """[H]: c_h where rho dwarfs all other weights, so that w rho is r itself; else 0."""
    itself: F64
    """[H]: c_h rho_h elsewhere."""
    dominant: bool
    """Whether `own` has any entry."""


def apply(plan: Plan, content: Content, row: F64) -> F64:
    """sum_h c_h (row @ A_h) for the causal mask. `row`: [n], >= 0; returns [n]."""
    size = plan.near.size
    padded = np.zeros(max(plan.length, plan.far_start))
    padded[: plan.length] = row
    padded[padded < TINY] = 0.0
    padded[0] = 0.0  # the first token sees itself alone: added at the end
    out = np.empty_like(padded)
    carry = np.zeros(plan.slopes.size)
    if plan.far is not None:
        far, where = plan.far, slice(plan.far_start, None)
        carry = _apply_far(plan, far, content, padded[where], out[where], carry)
    scratch = np.empty(plan.chunks[-1].active * size)
    for chunk in plan.chunks:
        where = slice(chunk.start, chunk.start + size)
        carry = _apply_near(plan, chunk, content, padded[where], out[where], carry, scratch)
    out[0] += row[0]
    return out[: plan.length]


def _apply_near(
    plan: Plan,
    chunk: Chunk,
    content: Content,
    row: F64,
    out: F64,
    carry: F64,
    scratch: F64,
) -> F64:
    layout, active = plan.near, chunk.active
    block, blocks = layout.block, layout.blocks
    by_block = row.reshape(blocks, block)[::-1]
    flat = by_block.T.ravel()
    w = scratch[: active * row.size].reshape(active, row.size)
    rho = content.rho[:active]
    if chunk.start == 0:
        np.add(plan.geometric, rho, out=w)
        w[:, blocks - 1] = 1.0
    else:
        np.multiply(plan.geometric[:active], chunk.fall, out=w)
        w += rho + chunk.seen
    np.divide(flat, w, out=w)
    total = product(chunk.inside, w.reshape(active * block, blocks))
    total += weighted(content.itself[:active], w).reshape(block, blocks)
    if content.dominant:
        total += content.own[:active].sum() * flat.reshape(block, blocks)
    states = np.empty((plan.slopes.size, blocks))
    np.matmul(
        layout.powers[:active],
        w.reshape(active, block, blocks),
        out=states[:active].reshape(active, 1, blocks),
    )
    if active < plan.slopes.size:
        kernel, passing = _settled(plan, layout, content, active)
        total += product(by_block, kernel).T
        states[active:] = product(passing, by_block.T)
    into, leaving = layout.scan(states, carry)
    total += product(layout.outgoing, into)
    out.reshape(blocks, block)[::-1] = total.T
    return leaving


def _apply_far(plan: Plan, layout: Layout, content: Content, row: F64, out: F64, carry: F64) -> F64:
    kernel, passing = _settled(plan, layout, content, 0)
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


def _settled(plan: Plan, layout: Layout, content: Content, first: int) -> tuple[F64, F64]:
    """For heads `first`.. : their summed kernel in a block [u, v], and what they pass on [h, u]."""
    block = layout.block
    scale = 1.0 / (content.rho[first:, 0] + plan.limit[first:])
    passing = scale[:, None] * layout.powers[first:, 0, :]
    tail = np.zeros(2 * block - 1)
    tail[block:] = (plan.weights[first:, None] * passing[:, :-1]).sum(axis=0)
    tail[block - 1] = float((content.itself[first:] * scale).sum())
    if content.dominant:
        tail[block - 1] += content.own[first:].sum()
    return tail[layout.toeplitz], passing


def product(left: F64, right: F64) -> F64:
    """left @ right in pieces too small for BLAS to start its threads.

    Waiting for a second thread costs up to a thousand times the product itself on a busy machine.
    A vector times a matrix starts them even sooner, see `weighted`.
    """
    rows = max(2, SERIAL // right.size)
    if left.shape[0] <= rows:
        return np.asarray(left @ right)
    out = np.empty((left.shape[0], right.shape[1]))
    for first in range(0, left.shape[0], rows):
        np.matmul(left[first : first + rows], right, out=out[first : first + rows])
    return out


def weighted(weights: F64, rows: F64) -> F64:
    """weights @ rows; a second row of zeros makes it a product of matrices, see `product`."""
    left = np.zeros((2, weights.size))
    left[0] = weights
    return np.asarray(product(left, rows)[0])


BLOCK = 16
_NEAR_ELEMENTS = 1 << 15
"""Positions times heads that are weighed at once."""
_STATES = 1 << 21
"""Heads are taken in groups, so that their states stay below this many numbers."""


@dataclass(frozen=True, eq=False)
class WindowPlan:
    """Tables of some heads under one window; content does not change them."""

    length: int
    window: int
    side: SideWeights
    """Of H heads, up to W-1 tokens."""
    parts: F64
    """[3 block, H block]: c q^(k-1) for k = u-v, m B + u-v and (m+1) B + u-v, where 0 < k < W."""
    powers: F64
    """[H, block]: q^u."""
    outgoing: F64
    """[block, H]: c q^(block-1-v)."""


def window_plan(length: int, side: SideWeights, weights: F64, window: int) -> WindowPlan:
    """Tables for BLOCK <= window < length."""
    slopes = side.slopes
    steps = np.arange(BLOCK)
    shift = steps[None, :] - steps[:, None]  # [v, u]
    base = window // BLOCK * BLOCK
    distance = np.concatenate([shift, shift + base, shift + base + BLOCK])[:, None, :]
    parts = np.exp(-slopes[None, :, None] * np.maximum(distance - 1.0, 0.0))
    parts *= ((distance > 0) & (distance < window)) * weights[None, :, None]
    powers = np.exp(-slopes[:, None] * steps)
    return WindowPlan(
        length=length,
        window=window,
        side=side,
        parts=parts.reshape(3 * BLOCK, slopes.size * BLOCK),
        powers=powers,
        outgoing=(weights[:, None] * powers[:, ::-1]).T.copy(),
    )


def apply_windowed(plan: WindowPlan, content: Content, row: F64) -> F64:
    """sum_h c_h (row @ A_h). `row`: [n], >= 0; returns [n]."""
    blocks = -(-plan.length // BLOCK)
    padded = np.zeros(blocks * BLOCK)
    padded[: plan.length] = row
    padded[padded < TINY] = 0.0
    padded[0] = 0.0  # the first token sees itself alone
    by_block = np.ascontiguousarray(padded.reshape(blocks, BLOCK).T)  # [u, b]
    out = np.zeros((BLOCK, blocks))
    group = max(1, _STATES // blocks)
    for first in range(0, plan.side.slopes.size, group):
        _add(plan, content, slice(first, first + group), by_block, out)
    flat = out.T.reshape(-1)
    flat[0] += row[0]
    return flat[: plan.length]


def _add(plan: WindowPlan, content: Content, heads: slice, by_block: F64, out: F64) -> None:
    blocks, count = by_block.shape[1], plan.side.slopes[heads].size
    parts = plan.parts.reshape(3 * BLOCK, -1, BLOCK)[:, heads].reshape(3 * BLOCK, -1)
    sums, states = np.empty((3 * BLOCK, blocks)), np.empty((count, blocks))
    settled = min(blocks, -(-(plan.window - 1) // BLOCK))
    step = max(1, _NEAR_ELEMENTS // (count * BLOCK))
    for first in range(0, settled, step):
        near = slice(first, min(first + step, settled))
        w = _weights(plan, content, heads, near, by_block[:, near])
        flat = w.reshape(count * BLOCK, -1)
        sums[:, near] = product(parts, flat)
        sums[:BLOCK, near] += weighted(content.itself[heads], w.reshape(count, -1)).reshape(
            BLOCK, -1
        )
        states[:, near] = np.matmul(plan.powers[heads, None, :], w)[:, 0]
    most = plan.side.of(heads, np.array([plan.window - 1]))[:, 0]
    scale = 1.0 / (content.rho[heads, 0] + most)
    kernel = (parts.reshape(3 * BLOCK, count, BLOCK) * scale[:, None]).sum(axis=1)
    kernel[range(BLOCK), range(BLOCK)] += (content.itself[heads] * scale).sum()
    both = np.concatenate([kernel, scale[:, None] * plan.powers[heads]])
    step = max(1, SERIAL // both.size)
    for first in range(settled, blocks, step):
        far = slice(first, first + step)
        found = both @ by_block[:, far]
        sums[:, far], states[:, far] = found[: 3 * BLOCK], found[3 * BLOCK :]
    whole = plan.window // BLOCK
    into = windowed_suffix_sums(states, plan.side.slopes[heads] * BLOCK, whole)
    out += sums[:BLOCK]
    for part, reach in ((1, whole), (2, whole + 1)):
        if reach < blocks:
            out[:, :-reach] += sums[part * BLOCK : (part + 1) * BLOCK, reach:]
    step = max(1, SERIAL // (BLOCK * count))
    for first in range(0, blocks, step):
        out[:, first : first + step] += plan.outgoing[:, heads] @ into[:, first : first + step]
    if content.dominant:
        out += content.own[heads].sum() * by_block


def _weights(plan: WindowPlan, content: Content, heads: slice, near: slice, by_block: F64) -> F64:
    """w = r / Z, [H, block, blocks], where some normaliser still grows."""
    position = np.arange(near.start, near.stop) * BLOCK + np.arange(BLOCK)[:, None]
    others = plan.side.of(heads, np.minimum(position, plan.window - 1))
    others += content.rho[heads, :, None]
    if near.start == 0:
        others[:, 0, 0] = 1.0
    return np.asarray(np.divide(by_block, others, out=others))
