"""Attention whose logits depend on distance alone, with an optional sink on the first token."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from lacuna.theory._recursion import F64, windowed_suffix_sums

_SPREAD = 200.0
"""Rows whose largest visible logits differ by less than this share one scale: exp(200) is safe."""
_DIRECT_PRODUCTS = 1 << 27
"""Longer convolutions use the FFT: absolute errors of about 1e-16, results clipped at 0."""
_FFT_PEAK = 10.0
"""Largest weight in a row with which the FFT is used: its error grows with the largest weight."""


class DistanceKernel:
    """Softmax over j <= i, i-j < window, of b_h(i-j) + sink [j=0].

    Direct sums are exact to rounding and cost n L products per head for a profile of L logits.
    Beyond the profile's end the logit is constant, which takes one cumulative sum. Build the kernel
    with `lacuna.theory.kernels.distance`.
    """

    def __init__(self, length: int, profile: F64, sink: float, weights: F64, window: int) -> None:
        self.length, self.heads = length, profile.shape[0]
        self.window, self.sink = window, sink
        self._weights = weights
        self._profile = profile[:, :window]

    def apply(self, row: F64) -> F64:
        """Head-weighted mean of row @ A_h. `row`: [n], >= 0; returns [n]."""
        out = np.zeros(self.length)
        for profile, weight in zip(self._profile, self._weights, strict=True):
            if weight > 0:
                out += weight * self._apply_head(row, profile)
        return out

    def dense(self) -> F64:
        """[H, n, n], computed from the definition."""
        position = np.arange(self.length)
        gap = position[:, None] - position[None, :]
        visible = (gap >= 0) & (gap < self.window)
        reach = np.clip(gap, 0, self._profile.shape[1] - 1)
        logits = self._profile[:, reach] + self.sink * (position == 0)
        logits = np.where(visible, logits, -np.inf)
        logits -= logits.max(axis=2, keepdims=True)
        dense = np.exp(logits)
        dense /= dense.sum(axis=2, keepdims=True)
        return np.asarray(dense, dtype=np.float64)

    def off_diagonal_mass(self) -> float:
        """max_i (1 - A[i, i]) of the head-weighted mean."""
        total = np.zeros(self.length)
        for profile, weight in zip(self._profile, self._weights, strict=True):
            for rows, top, _, inverse, first in self._rows(profile):
                own = np.exp(np.minimum(profile[0] - top, 0.0)) * inverse
                if rows.start == 0:
                    own[0] = first[0]
                total[rows] += weight * np.clip(1.0 - own, 0.0, 1.0)
        return float(min(1.0, total.max()))

    def _apply_head(self, row: F64, profile: F64) -> F64:
        """`apply` of one head with `profile` [L]."""
        out = np.zeros(self.length)
        for rows, top, weights, inverse, first in self._rows(profile):
            out[0] += float(row[rows] @ first)
            w = row[rows] * inverse
            if rows.start == 0:
                w[0] = 0.0
            sums = self._correlate(w, weights, rows, np.exp(np.minimum(profile[-1] - top, 0.0)))
            out[1 : rows.stop] += sums[1:]
        return out

    def _rows(self, profile: F64) -> Iterator[tuple[slice, float, F64, F64, F64]]:
        """Groups of rows that share a scale, so that one convolution serves a whole group.

        exp(b) alone would overflow for large logits, and each row's own largest logit as its scale
        would make every row's weights different.

        Yields:
            rows: a slice.
            top: their common scale.
            weights: [L], exp(b - top); entries that these rows cannot see are capped at 1.
            inverse: [rows], exp(top)/normaliser: the weight of one unit of `weights`.
            first: [rows], A[i, 0].
        """
        # Token i sees token 0 at distance i (if the window reaches) and others at 0..seen-1.
        everyone = np.arange(self.length)
        seen = np.minimum(everyone, self.window)
        last = profile.size - 1
        highest = np.maximum.accumulate(profile)[np.clip(seen - 1, 0, last)]
        to_first = np.where(
            everyone < self.window, profile[np.minimum(everyone, last)] + self.sink, -np.inf
        )
        start = 0
        while start < self.length:
            stop = int(np.searchsorted(highest, highest[start] + _SPREAD, side="right"))
            top = float(highest[stop - 1])
            rows = slice(start, stop)
            weights = np.exp(np.minimum(profile - top, 0.0))
            cumulative = np.concatenate([[0.0], np.cumsum(weights)])
            others = cumulative[np.minimum(seen[rows], weights.size)]
            others += np.maximum(seen[rows] - weights.size, 0) * weights[-1]
            lift = to_first[rows] - top
            scale = np.where(others > 0, np.maximum(lift, 0.0), lift)
            inverse = np.where(others > 0, np.exp(-np.maximum(scale, 0.0)), 0.0)
            total = others * inverse + np.exp(lift - scale)
            yield rows, top, weights, inverse / total, np.exp(lift - scale) / total
            start = stop

    def _correlate(self, w: F64, weights: F64, rows: slice, tail: float) -> F64:
        """sum_i w_i weights(i-j) for j < rows.stop; past the profile `tail`, up to the window."""
        size = weights.size
        if min(size, w.size) * w.size <= _DIRECT_PRODUCTS or w.max() > _FFT_PEAK:
            near = np.convolve(w, weights[::-1])
        else:
            near = _by_fft(w, weights[::-1])
        # near[m] = sum_i w_i weights(i - j) with j = rows.start + m - (size - 1)
        out = np.zeros(rows.stop)
        shift = rows.start - (size - 1)
        source = slice(max(0, -shift), near.size)
        out[source.start + shift :] = near[source]
        if self.window > size:
            padded = np.zeros(rows.stop)
            padded[rows] = w
            out += tail * _between(padded, size, self.window)
        return out


def _between(w: F64, nearest: int, window: int) -> F64:
    """y_j = sum of w_i over nearest <= i-j < window."""
    n = w.size
    out = np.zeros(n)
    if nearest < n:
        sums = windowed_suffix_sums(w[None], np.zeros(1), window - nearest)[0] + w
        out[: n - nearest] = sums[nearest:]
    return out


def _by_fft(a: F64, b: F64) -> F64:
    """Full convolution of two non-negative rows."""
    size = a.size + b.size - 1
    fast = next_fast_len(size, real=True)
    return np.maximum(irfft(rfft(a, fast) * rfft(b, fast), fast)[:size], 0.0)
