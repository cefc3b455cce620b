"""ALiBi and uniform kernels on both sides of a matrix in O(n^2), and their means over bins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from service.theory.binning import I64
from service.theory.curve import F64


@dataclass(frozen=True, eq=False)
class Slope:
    """One distinct head: A[i, j] ~ exp(-slope (i - j)) for j < i, exp(diagonal) for j = i.

    Written as A[i, i] = alpha_i and A[i, j] = w_i q^(i-j-1) with q = exp(-slope), which neither
    over- nor underflows for any slope >= 0 and any finite diagonal.

    Attributes:
        q: exp(-slope).
        alpha: F64[n], the diagonal of A; alpha_0 = 1 (token 0 sees itself alone).
        rest: w, F64[n]; w_0 = 0.
    """

    q: float
    alpha: F64
    rest: F64

    @classmethod
    def of(cls, length: int, slope: float, diagonal: float) -> Slope:
        """The kernel of one head on `length` tokens; slope >= 0, any finite diagonal."""
        alpha, rest = np.ones(length), np.zeros(length)
        powers = _geometric(slope, np.arange(1, length))
        # A[i, i] = e^d / (e^d + q g_i), g_i = 1 + q + ... + q^(i-1).
        alpha[1:] = expit(diagonal + slope - np.log(powers))
        rest[1:] = expit(np.log(powers) - diagonal - slope) / powers
        return cls(float(np.exp(-slope)), alpha, rest)

    def pull(self, columns: F64) -> F64:
        """A^T X for X of F64[n, ...]."""
        alpha, rest = self._shaped(columns.ndim)
        later = _recursion(self.q, (rest * columns)[::-1])[::-1]
        return np.asarray(alpha * columns + later)

    def push(self, columns: F64) -> F64:
        """A X for X of F64[n, ...]."""
        alpha, rest = self._shaped(columns.ndim)
        earlier = _recursion(self.q, columns)
        return np.asarray(alpha * columns + rest * earlier)

    def _shaped(self, axes: int) -> tuple[F64, F64]:
        shape = (-1,) + (1,) * (axes - 1)
        return self.alpha.reshape(shape), self.rest.reshape(shape)

    def binned(self, bounds: I64) -> tuple[F64, F64, F64]:
        """(mass, square, diagonal) of `BinnedKernel`, in O(n + m^2)."""
        mass, diagonal = _binned(self.q, self.rest, self.alpha, bounds)
        square, _ = _binned(self.q**2, self.rest**2, self.alpha**2, bounds)
        return mass, square, diagonal


def _recursion(q: float, columns: F64) -> F64:
    """y_0 = 0, y_i = q y_(i-1) + x_(i-1), along the first axis."""
    from scipy.signal import lfilter  # noqa: PLC0415 - 30 MB and 0.4 s, seldom needed

    return np.asarray(lfilter([0.0, 1.0], [1.0, -q], columns, axis=0))


def _geometric(slope: float, count: npt.ArrayLike) -> F64:
    """1 + q + ... + q^(count-1) with q = exp(-slope); `count` itself for slope 0."""
    terms = np.asarray(count, dtype=np.float64)
    if slope == 0:
        return terms
    # expm1 keeps the digits of tiny slopes, where both numerator and denominator vanish.
    return np.asarray(np.maximum(np.expm1(-slope * terms) / np.expm1(-slope), 1.0))


def _decay(slope: float, steps: npt.NDArray[np.int64]) -> F64:
    """exp(-slope steps), 0 below 1e-290: numbers near the smallest normal one are slow."""
    reach = 660 / slope if slope > 0 else np.inf
    near = np.minimum(steps, reach)
    decayed = np.exp(-slope * near) if np.isfinite(slope) else np.where(steps == 0, 1.0, 0.0)
    return np.where(steps <= reach, decayed, 0.0)


def _binned(q: float, rest: F64, own: F64, bounds: I64) -> tuple[F64, F64]:
    """Means over bins of A[i, j] = rest_i q^(i-j-1), A[i, i] = own_i; and of the diagonal.

    For i in a later bin than j the power splits into a part of i in its bin, the gap between the
    bins and a part of j in its bin: an outer product.
    """
    starts, ends = bounds[:-1], bounds[1:]
    widths = (ends - starts).astype(np.float64)
    inside = np.arange(bounds[-1]) - np.repeat(starts, ends - starts)
    slope = -np.log(q) if q > 0 else np.inf
    series = _geometric(slope, inside) if q > 0 else np.minimum(inside, 1).astype(np.float64)
    sent = np.add.reduceat(rest * _decay(slope, inside), starts)
    reach = _geometric(slope, widths) if q > 0 else np.ones_like(widths)
    gap = starts[:, None] - ends[None, :]
    between = sent[:, None] * reach[None, :] * _decay(slope, np.maximum(gap, 0))
    diagonal = np.add.reduceat(own, starts) / widths
    within = np.add.reduceat(rest * np.where(inside > 0, series, 0.0), starts)
    mass = np.where(gap >= 0, between, 0.0) / widths
    index = np.arange(widths.size)
    mass[index, index] = within / widths + diagonal
    return mass, diagonal
