"""One curve of influence over positions, read as a density that is constant on each token.

Token j of n covers the interval [j, j+1). A curve at another length is the same density read
on another grid, so masses are kept exactly and a curve may be binned, stretched or integrated.
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
