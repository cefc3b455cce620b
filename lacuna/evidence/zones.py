"""Where a zone of low density begins and ends, and whether there is one at all.

The ends of the zone in the estimated curve jump from one valley to another between draws of
documents. Here a band is inverted instead (Fieller's argument): the true curve crosses the
threshold where its band contains the threshold. So an end lies between where the curve MAY be below
the threshold and where it SURELY is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from lacuna.evidence.bands import (
    LEVEL,
    Band,
    band,
    largest_deviation,
    root_error,
    widening,
)

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ZoneEnds:
    """A zone of low density, as far as the documents can tell.

    Attributes:
        verdict: `zone`: the density falls below the threshold somewhere, with the confidence asked
            for; `none`: it stays above everywhere; `undecided`: more documents are needed.
        start: least and greatest first position of the zone; None unless `zone`.
        end: the same of the position after its last.
    """

    verdict: Literal["zone", "none", "undecided"]
    start: tuple[int, int] | None = None
    end: tuple[int, int] | None = None


def zone_ends(
    densities: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    *,
    threshold: float,
    level: float = LEVEL,
    draws: int = 1000,
    seed: int = 0,
    banded: Band | None = None,
) -> ZoneEnds:
    """Bounds of the longest stretch with a density below `threshold`.

    Whether there is a zone is a one-sided simultaneous test over all positions: false in at most
    1 - `level` of cases. Its ends come from the pointwise band.

    Args:
        densities: F64[D, n], smoothed, non-negative, one row a document.
        weights: F64[D], non-negative; None weighs all alike.
        threshold: density, > 0; 1 is uniform.
        level: confidence, in (0, 1).
        draws: of the bootstrap.
        seed: of the draws.
        banded: the band of the same densities, if you have it already.
    """
    found = banded or band(densities, weights, level=level, draws=draws, seed=seed)
    if found is None:
        return ZoneEnds("undecided")
    upper = _upper(densities, weights, level, draws, seed, found)
    return zone_of_bands(found.low, found.high, found.simultaneous_low, upper, threshold=threshold)


def zone_of_bands(
    low: npt.ArrayLike,
    high: npt.ArrayLike,
    simultaneous_low: npt.ArrayLike,
    simultaneous_high: npt.ArrayLike,
    *,
    threshold: float,
) -> ZoneEnds:
    """`zone_ends` from bands of the density, F64[n] each, such as a profile keeps.

    A two-sided simultaneous band makes it cautious: it then misses some zones that `zone_ends`
    finds, and claims fewer than 1 - level of those that are not there.
    """
    lower, upper = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    if not (np.asarray(simultaneous_low) < threshold).any():
        return ZoneEnds("none")
    surely_somewhere = np.asarray(simultaneous_high) < threshold
    surely, maybe = _runs(upper < threshold), _runs(lower < threshold)
    inside = [run for run in surely if surely_somewhere[slice(*run)].any()]
    if not inside:
        return ZoneEnds("undecided")
    start, end = max(inside, key=lambda run: run[1] - run[0])
    outer = next(run for run in maybe if run[0] <= start and end <= run[1])
    return ZoneEnds("zone", start=(outer[0], start), end=(end, outer[1]))


def _upper(
    densities: npt.ArrayLike,
    weights: npt.ArrayLike | None,
    level: float,
    draws: int,
    seed: int,
    found: Band,
) -> F64:
    """F64[n]: the curve lies below this at all positions together, one-sided."""
    rows = np.asarray(densities, dtype=np.float64)
    w = np.ones(len(rows)) if weights is None else np.asarray(weights, dtype=np.float64)
    rows, w = rows[w > 0], w[w > 0]
    wide = largest_deviation(rows, w, level=level, draws=draws, seed=seed, above=True)
    error = wide * root_error(rows, w) * widening(found.effective_documents)
    return np.asarray(np.square(np.sqrt(found.value) + error))


def _runs(below: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """[start, end) of each run of True."""
    steps = np.flatnonzero(np.diff(np.concatenate(([False], below, [False]))))
    return [(int(a), int(b)) for a, b in zip(steps[::2], steps[1::2], strict=True)]
