"""ALiBi attention with content on the diagonal, applied to a row vector in O(n) per head.

Three ways, by mask: causal without a window (`_blocked`), causal with a window of at least a block
(`_windowed`), and head by head for everything else (full and prefix masks, short windows).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from lacuna.theory import _windowed
from lacuna.theory._blocked import CausalTables, HeadContent, apply_causal, causal_tables
from lacuna.theory._recursion import F64, SideWeights, geometric, windowed_suffix_sums

_DOMINANT = 1e30
"""A self-weight this many times the rest is 1 in float64 (the rest is at most n <= 1e8)."""
_GENERAL_ELEMENTS = 1 << 19
"""Heads are taken in groups, so that arrays of the per-head pass stay about this large."""


@dataclass(frozen=True, eq=False)
class SharedHeads:
    """What the layers of a model share: positions, slopes, weights, mask; not the content."""

    length: int
    slopes: F64
    """[H], as given."""
    window: int
    prefix: int
    order: npt.NDArray[np.intp]
    """Heads of positive weight by ascending slope; the fields below are of these."""
    used_slopes: F64
    used_weights: F64
    side: SideWeights
    causal: CausalTables | None
    """For the causal mask without a window, else None."""
    windowed: _windowed.WindowTables | None
    """For the causal mask with a window of at least a block, else None."""


def shared_heads(length: int, slopes: F64, weights: F64, window: int, prefix: int) -> SharedHeads:
    """Tables for these heads; layers with equal arguments get the same object.

    Args:
        length: n >= 1.
        slopes: [H], >= 0.
        weights: [H], >= 0, sum 1.
        window: in 1..n; n for none.
        prefix: tokens that every token sees; 0 or 1 for the causal mask.
    """
    return _shared_heads(length, slopes.tobytes(), weights.tobytes(), window, prefix)


@lru_cache(maxsize=4)
def _shared_heads(
    length: int, slopes_: bytes, weights_: bytes, window: int, prefix: int
) -> SharedHeads:
    slopes, weights = np.frombuffer(slopes_), np.frombuffer(weights_)
    used = np.flatnonzero(weights)
    order = used[np.argsort(slopes[used], kind="stable")]
    causal, windowed = None, None
    everything = window >= length and prefix <= 1
    side = SideWeights.up_to(slopes[order], 0 if everything else min(window, length) - 1)
    if everything:
        causal = causal_tables(length, slopes[order], weights[order])
    elif prefix <= 1 and window >= _windowed.BLOCK:
        windowed = _windowed.window_tables(length, side, weights[order], window)
    return SharedHeads(
        length=length,
        slopes=slopes,
        window=window,
        prefix=prefix,
        order=order,
        used_slopes=slopes[order],
        used_weights=weights[order],
        side=side,
        causal=causal,
        windowed=windowed,
    )


class AlibiKernel:
    """Softmax over the visible j of -s_h |i-j| + d_h [i=j], for H heads of one layer.

    Let q = exp(-s), and count weights in units of the nearest other token's. Then token i sees
    itself with weight rho = exp(d + s) and the token k steps away with weight q^(k-1). Their sum
    is the normaliser. Build the kernel with `lacuna.theory.kernels.alibi`.

    Source: [S] section 4 (ALiBi with a constant-plus-diagonal content term); Press et al. 2022.
    """

    def __init__(self, shared: SharedHeads, diagonal: F64) -> None:
        self.length = shared.length
        self.heads = shared.slopes.size
        self._shared = shared
        self._diagonal = diagonal
        exponent = diagonal[shared.order] + shared.used_slopes
        with np.errstate(over="ignore"):
            rho = np.exp(exponent)
        weights = shared.used_weights
        dominant = bool(rho.max() > _DOMINANT)
        if dominant:
            huge = rho > _DOMINANT
            own, itself = np.where(huge, weights, 0.0), np.where(huge, 0.0, weights * rho)
        else:
            own, itself = np.zeros(rho.size), weights * rho
        self._content = HeadContent(rho[:, None], itself, own, dominant)

    def apply(self, row: F64) -> F64:
        """Head-weighted mean of row @ A_h. `row`: [n], >= 0; returns [n]."""
        if self._shared.causal is not None:
            return apply_causal(self._shared.causal, self._content, row)
        if self._shared.windowed is not None:
            return _windowed.apply_windowed(self._shared.windowed, self._content, row)
        return self._apply_by_head(row)

    def off_diagonal_mass(self) -> float:
        """max_i (1 - A[i, i]) of the head-weighted mean kernel."""
        shared = self._shared
        if shared.prefix <= 1:  # later tokens see more others, so the last one has the most
            most = np.array([min(self.length, shared.window) - 1.0])
            others = geometric(shared.used_slopes[:, None], most)
            return float(min(1.0, self._shares(slice(None), others).max()))
        total = np.zeros(self.length)
        group = max(1, _GENERAL_ELEMENTS // self.length)
        for first in range(0, shared.used_slopes.size, group):
            heads = slice(first, first + group)
            total += self._shares(heads, self._others(heads))
        return float(min(1.0, total.max()))

    def _shares(self, heads: slice, others: F64) -> F64:
        """What these heads add to 1 - A[i, i], given `others`, the weight of all other tokens."""
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(others > 0, others / (self._content.rho[heads] + others), 0.0)
        return np.asarray(self._shared.used_weights[heads] @ share)

    def dense(self) -> F64:
        """[H, n, n], computed from the definition; for tests and small n."""
        shared = self._shared
        position = np.arange(self.length)
        gap = np.abs(position[:, None] - position[None, :])
        visible = (position[None, :] <= position[:, None]) | (position[None, :] < shared.prefix)
        visible &= gap < shared.window
        logits = -shared.slopes[:, None, None] * gap + self._diagonal[:, None, None] * (gap == 0)
        logits = np.where(visible, logits, -np.inf)
        logits -= logits.max(axis=2, keepdims=True)
        dense = np.exp(logits)
        dense /= dense.sum(axis=2, keepdims=True)
        return np.asarray(dense, dtype=np.float64)

    def _others(self, heads: slice) -> F64:
        """[heads, n]: for each token i, the weight of all other tokens that it sees."""
        shared, position = self._shared, np.arange(self.length)
        others = shared.side.of(heads, np.minimum(position, shared.window - 1))
        if shared.prefix > 1:
            most = min(shared.window, self.length) - 1
            others += shared.side.of(heads, np.clip(shared.prefix - 1 - position, 0, most))
        return others

    def _apply_by_head(self, row: F64) -> F64:
        """`apply` for any mask: one windowed sum per head towards each side."""
        shared, content = self._shared, self._content
        out = np.zeros(self.length)
        group = max(1, _GENERAL_ELEMENTS // self.length)
        for first in range(0, shared.used_slopes.size, group):
            part = slice(first, first + group)
            slopes, weights = shared.used_slopes[part], shared.used_weights[part]
            others = self._others(part)
            # Tokens that see only themselves, the same for every head. They keep their weight: rho
            # cancels in rho / rho, but may be 0 or inf.
            alone = np.flatnonzero(others[0] == 0)
            others += content.rho[part]
            others[:, alone] = 1.0
            kept = row.copy()
            kept[alone] = 0.0
            out[alone] += weights.sum() * row[alone]
            w = np.divide(kept, others, out=others)
            out += content.itself[part] @ w
            if content.dominant:
                out += content.own[part].sum() * kept
            out += weights @ windowed_suffix_sums(w, slopes, shared.window)
            if shared.prefix > 1:
                mirrored = np.ascontiguousarray(w[:, shared.prefix - 1 :: -1])
                seen = windowed_suffix_sums(mirrored, slopes, shared.window)
                out[: shared.prefix] += (weights @ seen)[::-1]
        return out
