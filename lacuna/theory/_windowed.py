"""A layer of causal ALiBi heads with a sliding window, applied to a row in O(n) per head.

Notation as in `_blocked`. With window W = m B + e (B positions per block, 0 <= e < B), a token in
block b receives from the later tokens of its own block, from the whole blocks b+1 .. b+m-1, and
from parts of the blocks b+m and b+m+1. The three partial blocks are matrix products over (head,
offset). The whole ones are a windowed sum of one state per block and head. Nothing that left the
window is ever subtracted, so small results keep their digits.

From position W-1 on every head's normaliser Z_h is constant, and w_h = r / Z_h is the same row for
all heads up to a factor: there the three products of all heads become one small matrix.
Derivation: ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lacuna.theory._blocked import SERIAL, TINY, HeadContent, product, weighted
from lacuna.theory._recursion import F64, SideWeights, windowed_suffix_sums

BLOCK = 16
_NEAR_ELEMENTS = 1 << 15
"""Positions x heads for which w is held at once."""
_STATES = 1 << 21
"""Heads are taken in groups, so that their states stay below this many numbers."""


@dataclass(frozen=True, eq=False)
class WindowTables:
    """Everything about H heads under one window that does not depend on their content."""

    length: int
    window: int
    side: SideWeights
    """Of H heads, up to W-1 tokens."""
    parts: F64
    """[3 B, H B]: c q^(k-1) for k = u-v, m B + u-v and (m+1) B + u-v, where 0 < k < W; else 0."""
    powers: F64
    """[H, B]: q^u."""
    outgoing: F64
    """[B, H]: c q^(B-1-v)."""


def window_tables(length: int, side: SideWeights, weights: F64, window: int) -> WindowTables:
    """Tables for heads of weights [H] under BLOCK <= window < length."""
    slopes = side.slopes
    steps = np.arange(BLOCK)
    shift = steps[None, :] - steps[:, None]  # [v, u]
    base = window // BLOCK * BLOCK
    distance = np.concatenate([shift, shift + base, shift + base + BLOCK])[:, None, :]
    parts = np.exp(-slopes[None, :, None] * np.maximum(distance - 1.0, 0.0))
    parts *= ((distance > 0) & (distance < window)) * weights[None, :, None]
    powers = np.exp(-slopes[:, None] * steps)
    return WindowTables(
        length=length,
        window=window,
        side=side,
        parts=parts.reshape(3 * BLOCK, slopes.size * BLOCK),
        powers=powers,
        outgoing=(weights[:, None] * powers[:, ::-1]).T.copy(),
    )


def apply_windowed(tables: WindowTables, content: HeadContent, row: F64) -> F64:
    """sum_h c_h (row @ A_h). `row`: [n], >= 0; returns [n]."""
    blocks = -(-tables.length // BLOCK)
    padded = np.zeros(blocks * BLOCK)
    padded[: tables.length] = row
    padded[padded < TINY] = 0.0
    padded[0] = 0.0  # the first token sees only itself: added at the end
    by_block = np.ascontiguousarray(padded.reshape(blocks, BLOCK).T)  # [u, b]
    out = np.zeros((BLOCK, blocks))
    group = max(1, _STATES // blocks)
    for first in range(0, tables.side.slopes.size, group):
        _add(tables, content, slice(first, first + group), by_block, out)
    flat = out.T.reshape(-1)
    flat[0] += row[0]
    return flat[: tables.length]


def _add(tables: WindowTables, content: HeadContent, heads: slice, by_block: F64, out: F64) -> None:
    """Adds these heads' part to `out` [B, blocks]."""
    blocks, count = by_block.shape[1], tables.side.slopes[heads].size
    sums, states = _inside_blocks(tables, content, heads, by_block)
    whole = tables.window // BLOCK
    into = windowed_suffix_sums(states, tables.side.slopes[heads] * BLOCK, whole)
    out += sums[:BLOCK]
    for part, reach in ((1, whole), (2, whole + 1)):
        if reach < blocks:
            out[:, :-reach] += sums[part * BLOCK : (part + 1) * BLOCK, reach:]
    step = max(1, SERIAL // (BLOCK * count))
    for first in range(0, blocks, step):
        out[:, first : first + step] += tables.outgoing[:, heads] @ into[:, first : first + step]
    if content.dominant:
        out += content.own[heads].sum() * by_block


def _inside_blocks(
    tables: WindowTables, content: HeadContent, heads: slice, by_block: F64
) -> tuple[F64, F64]:
    """What each block gives to its own and to the two partial blocks [3 B, blocks]; its states.

    States [heads, blocks] are sum_u q^u w_u: what a block sends to the whole blocks before it.
    """
    blocks, count = by_block.shape[1], tables.side.slopes[heads].size
    parts = tables.parts.reshape(3 * BLOCK, -1, BLOCK)[:, heads].reshape(3 * BLOCK, -1)
    sums, states = np.empty((3 * BLOCK, blocks)), np.empty((count, blocks))
    settled = min(blocks, -(-(tables.window - 1) // BLOCK))
    step = max(1, _NEAR_ELEMENTS // (count * BLOCK))
    for first in range(0, settled, step):
        near = slice(first, min(first + step, settled))
        w = _weights(tables, content, heads, near, by_block[:, near])
        flat = w.reshape(count * BLOCK, -1)
        sums[:, near] = product(parts, flat)
        sums[:BLOCK, near] += weighted(content.itself[heads], w.reshape(count, -1)).reshape(
            BLOCK, -1
        )
        states[:, near] = np.matmul(tables.powers[heads, None, :], w)[:, 0]
    most = tables.side.of(heads, np.array([tables.window - 1]))[:, 0]
    scale = 1.0 / (content.rho[heads, 0] + most)
    kernel = (parts.reshape(3 * BLOCK, count, BLOCK) * scale[:, None]).sum(axis=1)
    kernel[range(BLOCK), range(BLOCK)] += (content.itself[heads] * scale).sum()
    both = np.concatenate([kernel, scale[:, None] * tables.powers[heads]])
    step = max(1, SERIAL // both.size)
    for first in range(settled, blocks, step):
        far = slice(first, first + step)
        found = both @ by_block[:, far]
        sums[:, far], states[:, far] = found[: 3 * BLOCK], found[3 * BLOCK :]
    return sums, states


def _weights(
    tables: WindowTables, content: HeadContent, heads: slice, near: slice, by_block: F64
) -> F64:
    """w = r / Z, [H, B, blocks], in blocks where a normaliser still grows with position."""
    position = np.arange(near.start, near.stop) * BLOCK + np.arange(BLOCK)[:, None]
    others = tables.side.of(heads, np.minimum(position, tables.window - 1))
    others += content.rho[heads, :, None]
    if near.start == 0:
        others[:, 0, 0] = 1.0  # position 0: its Z may be 0, and its weight is 0
    return np.asarray(np.divide(by_block, others, out=others))
