"""Positions in bins, so that an n x n problem becomes an m x m one.

A bin represents the mean of its tokens. A second moment needs three means of a kernel A[i, j]
(token i draws from token j). With i in bin B of w_B tokens and j in bin A:
    mass[B, A]      mean over j of the sum over i of A[i, j]     (what B draws from one token of A)
    square[B, A]    mean over j of the sum over i of A[i, j]^2
    diagonal[A]     mean over j of A[j, j]
Summed over bins A, `mass * w_A / w_B` equals the kernel's row sums, so mass is preserved. With one
token per bin nothing is approximated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lacuna.theory.curve import F64, normalised

I64 = npt.NDArray[np.int64]


def edges(length: int, bins: int) -> I64:
    """Boundaries of about `bins` bins: single tokens at both ends, widest in the middle.

    The width grows in proportion to the distance from the nearer end, because influence changes on
    that scale: sharply at token 0 and at the last token.

    Args:
        length: n >= 1.
        bins: at least 4, unless `bins >= length`.

    Returns:
        I64[m+1] from 0 to n, strictly increasing; m is about `bins`, at most one more. If
        `bins >= length`, every token is its own bin.

    >>> edges(12, 8).tolist()
    [0, 1, 2, 4, 6, 8, 10, 11, 12]
    """
    if length < 1 or bins < 1:
        raise ValueError(f"length and bins must be at least 1, not {length} and {bins}")
    if bins >= length:
        return np.arange(length + 1, dtype=np.int64)
    if bins < 4:
        raise ValueError(f"bins must be at least 4 for {length} positions, not {bins}")
    # Half the bins cover n/2 tokens with widths 1 + c x at distance x from the end. So c solves
    # integral of dx / (1 + c x) from 0 to n/2 = bins / 2.
    half = bins / 2

    def excess(c: float) -> float:
        return float(np.log1p(c * length / 2)) - c * half

    from scipy.optimize import brentq

    c = brentq(excess, 1e-12, 50.0) if excess(1e-12) * excess(50.0) < 0 else 0.0
    steps = np.arange(bins // 2 + 1)
    head = np.expm1(c * steps) / c if c > 0 else steps * (length / bins)
    head = np.minimum(np.maximum(np.rint(head), steps), length // 2).astype(np.int64)
    head[1] = 1
    return np.unique(np.concatenate((head, length - head)))


@dataclass(frozen=True, eq=False)
class BinnedKernel:
    """The three means of H kernels over m bins, as defined in the module.

    Attributes:
        mass: F64[H, m, m].
        square: F64[H, m, m]; None when each bin holds one token (it is then mass squared).
        diagonal: F64[H, m]; None likewise.
    """

    mass: F64
    square: F64 | None = None
    diagonal: F64 | None = None

    def rows_scaled(self, gain: F64) -> BinnedKernel:
        """The kernel whose token i draws `gain[i]` times as much, F64[m]."""
        return BinnedKernel(
            self.mass * gain[:, None],
            None if self.square is None else self.square * np.square(gain)[:, None],
            None if self.diagonal is None else self.diagonal * gain,
        )


def expand(values: F64, bounds: I64) -> F64:
    """A curve over tokens from values of bins: linear between bin centres, normalised to sum 1.

    Args:
        values: F64[m], the value of one token of each bin.
        bounds: I64[m+1], as from `edges`.

    Returns:
        F64[n].
    """
    if bounds.size == bounds[-1] + 1:
        return normalised(values)
    centres = (bounds[:-1] + bounds[1:] - 1) / 2
    return normalised(np.interp(np.arange(bounds[-1]), centres, values))
