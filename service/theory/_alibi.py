"""ALiBi attention with content on the diagonal, applied to a row vector in O(n) per head."""

from __future__ import annotations

import numpy as np

from service.theory import _blocked
from service.theory._recursion import F64, geometric, windowed_suffix_sums

_DOMINANT = 1e30
"""A self-weight this many times the rest is 1 in float64 (the rest is at most n <= 1e8)."""
_GENERAL_ELEMENTS = 1 << 22
"""Heads are taken in groups, so that no array of the per-head pass is larger than this."""


class AlibiKernel:
    """Softmax over the visible j of -s_h |i-j| + d_h [i=j], for H heads of one layer.

    With q = exp(-s) and the nearest other token as unit, token i sees itself with weight
    rho = exp(d + s) and the token k steps away with weight q^(k-1); their sum is the normaliser.
    Build it with `service.theory.kernels.alibi`.

    Source: [S] section 4 (ALiBi with a constant-plus-diagonal content term); Press et al. 2022.
    """

    def __init__(
        self,
        length: int,
        slopes: F64,
        diagonal: F64,
        weights: F64,
        *,
        window: int,
        prefix: int,
    ) -> None:
        self.length = length
        self.heads = slopes.size
        self.slopes, self.diagonal_logits, self.head_weights = slopes, diagonal, weights
        self.window, self.prefix = window, prefix
        used = np.flatnonzero(weights)
        order = used[np.argsort(slopes[used], kind="stable")]
        self._slopes = np.ascontiguousarray(slopes[order])
        self._weights = np.ascontiguousarray(weights[order])
        with np.errstate(over="ignore"):
            self._rho = np.exp(diagonal[order] + slopes[order])
        dominant = self._rho > _DOMINANT
        self._own = np.where(dominant, self._weights, 0.0)
        self._self = np.where(dominant, 0.0, self._weights * self._rho)

    def apply(self, row: F64) -> F64:
        """Head-weighted mean of row @ A_h. `row`: [n], >= 0; returns [n]."""
        if self.window >= self.length and self.prefix <= 1:
            plan = _blocked.plan(self.length, self._slopes, self._weights)
            content = _blocked.Content(
                self._rho[:, None],
                self._own,
                np.stack([self._self, np.zeros_like(self._self)]),
                bool(self._own.any()),
            )
            return _blocked.apply(plan, content, row)
        return self._apply_general(row)

    def off_diagonal_mass(self) -> float:
        """max_i (1 - A[i, i]) of the head-weighted mean kernel."""
        if self.prefix <= 1:  # the later a token, the more others it sees
            seen = np.array([min(self.length, self.window) - 1.0])
            others = geometric(self._slopes[:, None], seen)
        else:
            others = self._others(slice(None))
        rho = self._rho[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(others > 0, others / (rho + others), 0.0)
        return float(min(1.0, (self._weights @ share).max()))

    def dense(self) -> F64:
        """[H, n, n] by the definition; for tests and small n."""
        position = np.arange(self.length)
        gap = np.abs(position[:, None] - position[None, :])
        visible = (position[None, :] <= position[:, None]) | (position[None, :] < self.prefix)
        visible &= gap < self.window
        logits = -self.slopes[:, None, None] * gap + self.diagonal_logits[:, None, None] * (
            gap == 0
        )
        logits = np.where(visible, logits, -np.inf)
        logits -= logits.max(axis=2, keepdims=True)
        dense = np.exp(logits)
        dense /= dense.sum(axis=2, keepdims=True)
        return np.asarray(dense, dtype=np.float64)

    # ---- windows, prefix and full masks: per head -------------------------------------------

    def _others(self, heads: slice) -> F64:
        """[heads, n]: weight of all other visible tokens, per row."""
        position = np.arange(self.length, dtype=np.float64)
        slopes = self._slopes[heads, None]
        behind = np.minimum(position, self.window - 1.0)
        ahead = np.clip(self.prefix - 1.0 - position, 0.0, self.window - 1.0)
        others = geometric(slopes, behind)
        if self.prefix > 1:
            others = others + geometric(slopes, ahead)
        return others

    def _apply_general(self, row: F64) -> F64:
        out = np.zeros(self.length)
        group = max(1, _GENERAL_ELEMENTS // self.length)
        for first in range(0, self._slopes.size, group):
            heads = slice(first, first + group)
            others = self._others(heads)
            alone = others == 0
            w = np.where(alone, 0.0, row) / np.where(alone, 1.0, others + self._rho[heads, None])
            out += self._self[heads] @ w
            out += (self._own[heads, None] * np.where(alone, 0.0, row)).sum(axis=0)
            out += self._weights[heads] @ np.where(alone, row, 0.0)
            slopes, weights = self._slopes[heads], self._weights[heads]
            out += weights @ windowed_suffix_sums(w, slopes, self.window)
            if self.prefix > 1:
                mirrored = np.ascontiguousarray(w[:, self.prefix - 1 :: -1])
                seen = windowed_suffix_sums(mirrored, slopes, self.window)
                out[: self.prefix] += (weights @ seen)[::-1]
        return out
