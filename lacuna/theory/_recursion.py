"""Sums with geometric decay along a row vector, which ALiBi's exponential weights lead to.

For a decay q = exp(-s) and weights w >= 0 the sum over later positions is

    y_j = sum_{i > j} w_i q^(i-j-1)

Every routine here adds products of non-negative numbers and never subtracts, so each result has a
relative error of a few units in the last place, however small it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

_TABLE_LIMIT = 1 << 20
"""Most numbers in a table of `SideWeights`; larger tables are not kept."""
_EXPONENT_LIMIT = 600.0
"""exp() of more than this times a weight could leave the range of float64."""


def geometric(slopes: F64, counts: F64) -> F64:
    """Sum of q^k for k = 0..count-1, with q = exp(-slope).

    Args:
        slopes: [...], >= 0.
        counts: [...], whole numbers >= 0, or inf; broadcast against `slopes`.

    Returns:
        (1 - q^count)/(1 - q), and `count` itself where the slope is 0 or too small to matter.
    """
    flat = slopes < 1e-300
    safe = np.where(flat, 1.0, slopes)
    return np.where(flat, counts, np.expm1(-safe * counts) / np.expm1(-safe))


@dataclass(frozen=True, eq=False)
class SideWeights:
    """Weight of the nearest k tokens on one side, sum of q^0..q^(k-1), for several heads."""

    slopes: F64
    """[H]."""
    table: F64 | None
    """[H, most + 1]; None where that would be large, and values are computed on demand."""

    @classmethod
    def up_to(cls, slopes: F64, most: int) -> SideWeights:
        """For heads with `slopes` [H] and counts 0..most."""
        if slopes.size * (most + 1) > _TABLE_LIMIT:
            return cls(slopes, None)
        return cls(slopes, geometric(slopes[:, None], np.arange(most + 1.0)))

    def of(self, heads: slice, counts: npt.NDArray[np.intp]) -> F64:
        """The weights for `counts`, [heads, *counts.shape]; a new array."""
        if self.table is not None:
            return np.take(self.table[heads], counts, axis=1)
        slopes = self.slopes[heads].reshape(-1, *(1,) * counts.ndim)
        return geometric(slopes, counts.astype(np.float64))


def running_scan(states: F64, decay: F64) -> None:
    """In place along the last axis: y_b = sum_{a <= b} decay^(b-a) x_a, by doubling.

    Args:
        states: [H, m], >= 0.
        decay: [H], in [0, 1].
    """
    power, reach = decay[:, None].copy(), 1
    while reach < states.shape[1]:
        states[:, reach:] += power * states[:, :-reach]
        power *= power
        reach *= 2


def decayed_suffix_sums(weights: F64, slopes: F64) -> F64:
    """y_j = sum_{i > j} w_i exp(-s (i-j-1)) along the last axis, for several heads: O(size).

    Inside a block the weights are scaled by exp(s k), summed cumulatively and scaled back. Blocks
    are short enough for the scale to stay within range. A scan joins them.

    Args:
        weights: [H, groups, length], >= 0; each group is summed on its own.
        slopes: [H], >= 0.
    """
    heads, groups, length = weights.shape
    slopes = np.minimum(slopes, 800.0)  # beyond 746, exp(-s) is 0 in float64 anyway
    steepest = float(slopes.max(initial=0.0))
    block = length if steepest == 0 else int(min(length, max(1, _EXPONENT_LIMIT // steepest), 256))
    blocks = -(-length // block)
    padded = np.zeros((heads, groups, blocks * block))
    # Reversed in time: the suffix sum becomes a running sum, and padding comes last.
    padded[:, :, :length] = weights[:, :, ::-1]
    x = padded.reshape(heads, groups, blocks, block)
    steps = np.arange(block, dtype=np.float64)
    exponent = (slopes[:, None] * steps)[:, None, None, :]
    if block > 1:
        x = np.cumsum(x * np.exp(exponent), axis=3) * np.exp(-exponent)
    result = np.zeros_like(x)
    result[..., 1:] = x[..., :-1]
    if blocks > 1:
        into = np.zeros((heads * groups, blocks))
        into[:, 1:] = x[:, :, :-1, -1].reshape(heads * groups, blocks - 1)
        running_scan(into, np.repeat(np.exp(-slopes * block), groups))
        result += into.reshape(heads, groups, blocks, 1) * np.exp(-exponent)
    return result.reshape(heads, groups, blocks * block)[:, :, :length][:, :, ::-1]


def windowed_suffix_sums(weights: F64, slopes: F64, window: int) -> F64:
    """y_j = sum over i = j+1 .. j+window-1 of w_i exp(-s (i-j-1)): O(size) for any window.

    Suffix sums of each block plus prefix sums of the next one (van Herk, Pattern Recognition
    Letters 13, 1992). Subtracting what has left the window would be simpler, but small values
    would lose every digit.

    Args:
        weights: [H, length], >= 0.
        slopes: [H], >= 0.
        window: number of tokens seen, including the token itself; >= 1.
    """
    heads, length = weights.shape
    if window >= length:
        return decayed_suffix_sums(weights[:, None, :], slopes)[:, 0]
    if window == 1:
        return np.zeros_like(weights)
    groups = -(-length // window)
    padded = np.zeros((heads, groups + 1, window))
    padded.reshape(heads, -1)[:, :length] = weights
    inside = decayed_suffix_sums(padded[:, :groups], slopes)
    # Token j at offset v of its block also sees offsets 0..v-1 of the next one, u steps into it
    # at distance u + (window - v): the factor splits into exp(-s u) and exp(-s (window-1-v)).
    steps = np.arange(window, dtype=np.float64)
    fall = np.exp(-slopes[:, None] * steps)
    beyond = np.cumsum(padded[:, 1:] * fall[:, None, :], axis=2)
    inside[:, :, 1:] += beyond[:, :, :-1] * fall[:, None, -2::-1]
    return inside.reshape(heads, -1)[:, :length]
