"""The causal ALiBi pass of one layer with a sliding window: blocked like `_blocked`, O(n).

With window W = m B + e (B positions per block, 0 <= e < B), a token in block b sees the tokens
after it in its own block, blocks b+1 .. b+m-1 whole, and parts of blocks b+m and b+m+1. The three
partial blocks are matrix products over (head, offset); the whole ones a windowed sum of one state
per block and head. Nothing that left the window is ever subtracted.

From position W-1 on every head's normaliser is constant, so that w_h = r / Z_h is the same row up
to a factor: there the three products of all heads are one small matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.theory._blocked import SERIAL, TINY, Content, product, weighted
from service.theory._recursion import F64, SideWeights, windowed_suffix_sums

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


def apply(plan: WindowPlan, content: Content, row: F64) -> F64:
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
