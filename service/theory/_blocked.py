"""The causal ALiBi pass of one layer: all heads in a few matrix products, O(n) per head.

With rho_h = exp(d_h + s_h) and g_h(i) = sum_{k < i} q_h^k, token i divides its weight by
Z_h(i) = rho_h + g_h(i), and the layer sends r to

    out_j = sum_h c_h ( rho_h w_hj + sum_{i > j} w_hi q_h^(i-j-1) ),   w_hi = r_i / Z_h(i).

Positions are cut into chunks and chunks into blocks. Inside a block the inner sum is one matrix
product over (head, offset); what leaves a block is a state per head, carried on by a scan. Once
q^i has vanished beside 1, Z_h no longer depends on i: a head that has settled costs nothing per
position, since all settled heads share one Toeplitz matrix. Only products of non-negative numbers
are added, so small values keep their relative accuracy (about 1e-15 in the tests).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.theory._plan import Chunk, Layout, Plan
from service.theory._recursion import F64

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
