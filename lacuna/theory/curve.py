"""A curve of influence over positions: its density, its masses, and its form at another length.

Token j of n covers the interval [j, j + 1), and the density is constant on each token. A curve at
another length is the same density on another grid, so masses stay exact.

`cumulative` reads a profile at the length of another prompt. It anchors both ends, because what the
first and the last tokens receive (attention sink, recency) depends on their distance from the ends
in tokens. Only the middle is stretched. Each part keeps its mass.
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
    peak = rows.max(axis=-1, keepdims=True)
    if not (rows.min(initial=0.0) >= 0 and np.isfinite(peak).all()):  # NaN is neither
        raise ValueError("influence must be finite and at least 0 at every position")
    if (peak == 0).any():
        raise ValueError("influence is 0 at every position, so it cannot be normalised")
    # Divide by the peak first: the sum of huge norms would overflow, and denormals would lose
    # digits. Divide, not multiply: a peak below 1e-308 has no finite reciprocal.
    scaled = rows / peak
    return np.asarray(scaled / scaled.sum(axis=-1, keepdims=True), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Curve:
    """A normalised influence curve.

    Attributes:
        influence: F64[n], sums to 1. The constructor accepts any non-negative values and
            normalises them.
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
        """F64[n]: n times the influence. 1 is what every position gets from an even spread."""
        return self.influence * len(self)

    def cumulative(self) -> F64:
        """F64[n+1]: mass before each token boundary, from 0 to exactly 1."""
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

        Pieces are summed. Differences of the cumulative curve would be simpler, but their rounding
        errors, of the size of the whole, would swamp the smallest bins.
        """
        n = len(self)
        if count < 1:
            raise ValueError(f"bins must be at least 1, not {count}")
        # In units of 1/(n * count) of the prompt, all boundaries are whole numbers.
        edges = np.concatenate([np.arange(n + 1) * count, np.arange(1, count) * n])
        edges.sort(kind="stable")  # two ascending runs: merged in linear time
        edges = edges[np.concatenate([[True], np.diff(edges) > 0])]
        left, width = edges[:-1], np.diff(edges)
        pieces = self.influence[left // count] * (width / count)
        return np.bincount(left // n, weights=pieces, minlength=count).astype(np.float64)


ANCHOR_FRACTION = 1 / 16
"""Share of the profile's own length that is anchored at each end."""


def anchor(profile_length: int, prompt_length: int) -> int:
    """Tokens anchored at each end: 1/16 of the profile, at most 1/4 of the prompt.

    >>> anchor(256, 4096), anchor(256, 40), anchor(256, 1)
    (16, 10, 0)
    """
    return min(int(profile_length * ANCHOR_FRACTION), prompt_length // 4)


def cumulative(influence: F64, length: int, *, anchored: bool = True) -> F64:
    """Cumulative influence F at every token boundary of a prompt of `length` tokens.

    Args:
        influence: F64[n0], non-negative, any positive sum.
        length: n >= 1, tokens of the prompt.
        anchored: keep both ends at their distance in tokens from the ends. False stretches the
            whole curve, which is right for a curve over relative positions.

    Returns:
        F, F64[n + 2]: F[j] is the mass on tokens before j, F[0] = 0, F[n] = 1. The last entry
        continues the slope of the last token, so that F[j + 1] - F[j] is defined at j = n, where
        a chunk of length 0 may stand.

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
    """Where the profile's boundaries 0..n0 lie in the prompt, F64[n0 + 1]; `ends` are anchored."""
    k = np.arange(n0 + 1.0)
    if ends == 0:
        return k * (n / n0)
    middle = ends + (k - ends) * ((n - 2 * ends) / (n0 - 2 * ends))
    return np.where(k <= ends, k, np.where(k >= n0 - ends, n - (n0 - k), middle))
