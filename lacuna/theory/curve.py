"""One curve of influence over positions, read as a density that is constant on each token.

Token j of n covers the interval [j, j+1). A curve at another length is the same density read
on another grid, so masses are kept exactly and a curve may be binned, stretched or integrated.

A profile measured at one length, read at the length of the prompt at hand.

Influence does not scale with the prompt as a whole: what the first and the last tokens receive
(attention sink, recency) belongs to their distance from the ends, what lies between is spread over
as many tokens as there are. So the head is anchored by distance from the start, the tail by
distance from the end, and only the middle is stretched; each part keeps its mass.

Positions gathered into bins: how an n x n problem becomes an m x m one.

A bin stands for its tokens' mean. Three means of a kernel A[i, j] (token i draws from token j)
say what a second moment needs; with i in bin B of w_B tokens and j in bin A:
    mass[B, A]      mean over j of sum over i of A[i, j]     (what B sends to one token of A)
    square[B, A]    mean over j of sum over i of A[i, j]^2
    diagonal[A]     mean over j of A[j, j]
Sums over bins of `mass * w_A / w_B` are those of the kernel's rows: mass is preserved. With one
token per bin all three are the kernel itself and nothing is approximated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def normalised(values: npt.ArrayLike) -> F64:
    """`values` divided by their sum along the last axis, safe against overflow of the sum.

    Args:
        values: F64[..., n], n >= 1, finite and >= 0, each row with a positive entry.

    Returns:
        F64[..., n], rows sum to 1.

    Raises:
        ValueError: empty, negative, not finite, or a row of zeros.

    >>> normalised([1.0, 3.0]).tolist()
    [0.25, 0.75]
    """
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim == 0 or rows.shape[-1] == 0:
        raise ValueError("an influence curve needs at least one position")
    if not np.isfinite(rows).all() or (rows < 0).any():
        raise ValueError("influence must be finite and at least 0 at every position")
    peak = rows.max(axis=-1, keepdims=True)
    if (peak == 0).any():
        raise ValueError("influence is 0 at every position, so it cannot be normalised")
    # Division by the peak first: a row of huge norms would overflow in its sum, and one of
    # denormals would lose its digits. (A peak below 1e-308 has no finite reciprocal.)
    scaled = rows / peak
    return np.asarray(scaled / scaled.sum(axis=-1, keepdims=True), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Curve:
    """A normalised influence curve.

    Attributes:
        influence: F64[n], sums to 1; anything non-negative is accepted and normalised.
    """

    influence: F64

    def __post_init__(self) -> None:
        curve = normalised(self.influence)
        if curve.ndim != 1:
            raise ValueError(f"an influence curve has one axis, not {curve.ndim}")
        curve.setflags(write=False)
        object.__setattr__(self, "influence", curve)

    def __len__(self) -> int:
        return int(self.influence.size)

    def density(self) -> F64:
        """F64[n]: n times the influence; 1 everywhere for a model that weighs all alike."""
        return self.influence * len(self)

    def cumulative(self) -> F64:
        """F64[n+1]: mass in front of each token boundary, from 0 to exactly 1."""
        total = np.concatenate(([0.0], np.cumsum(self.influence)))
        total /= total[-1]
        return np.minimum(total, 1.0)

    def mean_position(self) -> float:
        """Mean of j/(n-1) under the curve, in [0, 1]; 0 is the first token, 1 the last."""
        if len(self) == 1:
            return 0.0
        mean = float(self.influence @ np.arange(len(self))) / (len(self) - 1)
        return min(max(mean, 0.0), 1.0)

    def mass(self, start: float, stop: float) -> float:
        """Mass on [start, stop), in tokens; fractional ends take their share of a token.

        Ends outside [0, n] are clipped; an empty interval has mass 0.

        >>> Curve(np.array([1.0, 1.0, 2.0])).mass(0.5, 2.5)
        0.625
        """
        first, last = (min(max(float(end), 0.0), float(len(self))) for end in (start, stop))
        if not first < last:
            return 0.0
        tokens = np.arange(int(first), int(np.ceil(last)))
        covered = np.minimum(tokens + 1, last) - np.maximum(tokens, first)
        return min(float(self.influence[tokens] @ covered), 1.0)

    def bins(self, count: int) -> F64:
        """F64[count]: masses on `count` intervals of equal width; sums to 1.

        Sums of pieces, not differences of the cumulative curve: those would leave rounding of
        the size of the whole in the smallest bins.
        """
        n = len(self)
        if count < 1:
            raise ValueError(f"bins must be at least 1, not {count}")
        # In units of 1/(n*count) of the prompt all boundaries are whole numbers.
        edges = np.concatenate([np.arange(n + 1) * count, np.arange(1, count) * n])
        edges.sort(kind="stable")  # two ascending runs: merged in linear time
        edges = edges[np.concatenate([[True], np.diff(edges) > 0])]
        left, width = edges[:-1], np.diff(edges)
        pieces = self.influence[left // count] * (width / count)
        return np.bincount(left // n, weights=pieces, minlength=count).astype(np.float64)

    def resample(self, length: int) -> Curve:
        """The same density on `length` tokens; the isolated ends are stretched like the rest."""
        return Curve(self.bins(length))


ANCHOR_FRACTION = 1 / 16
"""Share of the profile's own length that is anchored at either end."""


def anchor(profile_length: int, prompt_length: int) -> int:
    """Tokens anchored at either end: 1/16 of the profile, never more than 1/4 of the prompt.

    >>> anchor(256, 4096), anchor(256, 40), anchor(256, 1)
    (16, 10, 0)
    """
    return min(int(profile_length * ANCHOR_FRACTION), prompt_length // 4)


def cumulative(influence: F64, length: int, *, anchored: bool = True) -> F64:
    """Cumulative influence F at every token boundary of a prompt of `length` tokens.

    Args:
        influence: non-negative, any positive sum, shape [n0].
        length: n, tokens of the prompt, at least 1.
        anchored: keep head and tail at their distance in tokens from the ends. False stretches
            the whole curve: right for a curve over relative positions.

    Returns:
        F, shape [n + 2]: F[j] is the mass on tokens before j, F[0] = 0, F[n] = 1. One more entry
        continues the last token's slope, so that F[j + 1] - F[j] is defined at j = n, where a
        chunk of zero length may stand.

    Raises:
        ValueError: the curve is empty, negative, not finite or without mass.

    >>> cumulative(np.array([3.0, 1.0]), 4, anchored=False).tolist()
    [0.0, 0.375, 0.75, 0.875, 1.0, 1.125]
    """
    n0 = influence.size
    total = float(influence.sum()) if n0 else 0.0
    if n0 == 0 or not np.isfinite(total) or total <= 0 or float(influence.min()) < 0:
        raise ValueError("a profile needs non-negative finite influence with positive sum")
    result = np.empty(length + 2)
    mass = np.empty(n0 + 1)
    mass[0] = 0.0
    np.cumsum(influence, out=mass[1:])
    mass /= mass[-1]
    if n0 == length:
        result[:-1] = mass
    else:
        knots = _knots(n0, length, anchor(n0, length) if anchored else 0)
        result[:-1] = np.interp(np.arange(length + 1.0), knots, mass)
    result[length + 1] = 2 * result[length] - result[length - 1]
    return result


def _knots(n0: int, n: int, ends: int) -> F64:
    """Where the boundaries 0..n0 of the profile lie in the prompt."""
    k = np.arange(n0 + 1.0)
    if ends == 0:
        return k * (n / n0)
    middle = ends + (k - ends) * ((n - 2 * ends) / (n0 - 2 * ends))
    return np.where(k <= ends, k, np.where(k >= n0 - ends, n - (n0 - k), middle))


I64 = npt.NDArray[np.int64]


def edges(length: int, bins: int) -> I64:
    """Boundaries of about `bins` bins, single tokens at both ends, widest in the middle.

    The width grows in proportion to the distance from the nearer end: influence changes on that
    scale, sharply at token 0 and at the last token.

    Args:
        length: n >= 1.
        bins: at least 4 unless `length` is shorter.

    Returns:
        I64[m+1] from 0 to n, strictly increasing, m about `bins` (at most one more); every token
        is its own bin when `bins >= length`.

    >>> edges(12, 8).tolist()
    [0, 1, 2, 4, 6, 8, 10, 11, 12]
    """
    if length < 1 or bins < 1:
        raise ValueError(f"length and bins must be at least 1, not {length} and {bins}")
    if bins >= length:
        return np.arange(length + 1, dtype=np.int64)
    if bins < 4:
        raise ValueError(f"bins must be at least 4 for {length} positions, not {bins}")
    # Half the bins cover n/2 tokens with widths 1 + c x, x the distance from the end:
    # the integral of dx / (1 + c x) from 0 to n/2 is bins / 2.
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
    """The three means of a stack of kernels; see the module.

    Attributes:
        mass: F64[H, m, m].
        square: F64[H, m, m], or None when each bin holds one token (then it is mass squared).
        diagonal: F64[H, m], or None likewise.
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


def bin_kernels(kernels: F64, bounds: I64) -> BinnedKernel:
    """Means of dense kernels over bins.

    Args:
        kernels: F64[H, n, n].
        bounds: I64[m+1] from `edges`.
    """
    n = kernels.shape[-1]
    if bounds.size == n + 1:
        return BinnedKernel(mass=kernels)
    widths = np.diff(bounds).astype(np.float64)
    starts = bounds[:-1]

    def gather(stack: F64) -> F64:
        rows = np.add.reduceat(stack, starts, axis=-2)
        return np.asarray(np.add.reduceat(rows, starts, axis=-1) / widths)

    own = np.diagonal(kernels, axis1=-2, axis2=-1)
    return BinnedKernel(
        mass=gather(kernels),
        square=gather(np.square(kernels)),
        diagonal=np.add.reduceat(own, starts, axis=-1) / widths,
    )


def bin_means(values: F64, bounds: I64) -> F64:
    """Mean of F64[..., n] over each bin: F64[..., m]."""
    return np.asarray(np.add.reduceat(values, bounds[:-1], axis=-1) / np.diff(bounds))


def expand(values: F64, bounds: I64) -> F64:
    """From bins to a curve over tokens: linear between bin centres, normalised to sum 1.

    Args:
        values: F64[m], what one token of each bin has.
        bounds: I64[m+1].

    Returns:
        F64[n].
    """
    if bounds.size == bounds[-1] + 1:
        return normalised(values)
    centres = (bounds[:-1] + bounds[1:] - 1) / 2
    return normalised(np.interp(np.arange(bounds[-1]), centres, values))
