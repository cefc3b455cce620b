"""What a curve of influence looks like: its dead zone, its ends, its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from lacuna.theory.curve import F64, Curve, normalised

THRESHOLD = 0.75
WINDOW_FRACTION = 0.1
END_SHARE = 0.1
END_OVER_MIDDLE = 1.1
END_DENSITY = 0.5
COLLAPSED_MASS = 0.9
BAND_LEVEL = 0.95

ShapeName = Literal["u_shaped", "primacy", "recency", "flat", "collapsed"]


@dataclass(frozen=True)
class Interval:
    """A confidence interval, `low` <= `high`, in positions."""

    low: float
    high: float


@dataclass(frozen=True)
class DeadZone:
    """The longest stretch of the prompt with a smoothed density below `threshold`.

    Attributes:
        start: first position, 0-based.
        end: one past the last position.
        fraction: (end - start) / n.
        mean_density: mean of the smoothed density inside; below `threshold`.
        min_density: least smoothed density inside; <= `mean_density`.
        argmin: its position, the first of equals.
        threshold: as asked; 1 is the density of a uniform curve.
        start_band: 95% bootstrap interval of `start`, or None without resampled curves.
        end_band: the same of `end`.
        support: share of the resampled curves that have a zone at all, in [0, 1]; or None.
    """

    start: int
    end: int
    fraction: float
    mean_density: float
    min_density: float
    argmin: int
    threshold: float
    start_band: Interval | None = None
    end_band: Interval | None = None
    support: float | None = None


@dataclass(frozen=True)
class Shape:
    """Where the mass lies. Masses in [0, 1]; a uniform curve has 0.1, 0.8 and 0.1."""

    name: ShapeName
    primacy_mass: float
    recency_mass: float
    middle_mass: float
    primacy_excess: float
    recency_excess: float
    thresholds: dict[str, float]


def smoothed_density(influence: npt.ArrayLike, window_fraction: float = WINDOW_FRACTION) -> F64:
    """Density averaged over a centred window of `window_fraction` of the prompt.

    Token 0 and the last token are isolated spikes (attention sink, the token that is read): they
    keep their own density and lend nothing to their neighbours. Near them the window is cut off.
    Its width is a real number of tokens, so that a resampled curve is smoothed alike; below one
    token it does nothing.

    Args:
        influence: F64[..., n], non-negative; normalised here.
        window_fraction: in [0, 1].

    Returns:
        F64[..., n].
    """
    if not 0 <= window_fraction <= 1:
        raise ValueError(f"window_fraction must lie between 0 and 1, not {window_fraction}")
    shares = normalised(influence)
    n = shares.shape[-1]
    density: F64 = shares * n
    width = window_fraction * n
    if n < 4 or width <= 1:
        return density
    inner = density[..., 1:-1]
    centre = np.arange(n - 2) + 0.5
    left, right = np.maximum(centre - width / 2, 0.0), np.minimum(centre + width / 2, n - 2.0)
    total = np.zeros((*inner.shape[:-1], n - 1))
    np.cumsum(inner, axis=-1, out=total[..., 1:])
    mean = (_between(total, right) - _between(total, left)) / (right - left)
    smooth: F64 = density.copy()
    # The mean of a window lies between its extremes; differences of sums can miss by rounding.
    low, high = inner.min(axis=-1, keepdims=True), inner.max(axis=-1, keepdims=True)
    smooth[..., 1:-1] = np.clip(mean, low, high)
    return smooth


def _between(total: F64, at: F64) -> F64:
    """`total` (mass before each boundary) at fractional boundaries, linear in between."""
    whole = np.minimum(at.astype(np.intp), total.shape[-1] - 2)
    share = at - whole
    return np.asarray(total[..., whole] * (1 - share) + total[..., whole + 1] * share)


def _longest_run(below: npt.NDArray[np.bool_]) -> tuple[int, int] | None:
    """[start, end) of the longest run of True, the first of equals; None without any."""
    steps = np.flatnonzero(np.diff(np.concatenate(([False], below, [False]))))
    starts, ends = steps[::2], steps[1::2]
    if starts.size == 0:
        return None
    longest = int(np.argmax(ends - starts))
    return int(starts[longest]), int(ends[longest])


def _below(smooth: F64, threshold: float) -> npt.NDArray[np.bool_]:
    """Strictly below, by more than rounding: a flat curve is not below 1."""
    return smooth < threshold - 1e-9 * max(threshold, 1.0)


def dead_zone(
    influence: npt.ArrayLike,
    threshold: float = THRESHOLD,
    window_fraction: float = WINDOW_FRACTION,
    curves: npt.ArrayLike | None = None,
) -> DeadZone | None:
    """The longest interval in which the smoothed density stays below `threshold`.

    The zone is read from the curve, never assumed to be centred: with a residual stream the
    theoretical density falls until the isolated last token.

    Args:
        influence: F64[n], non-negative; normalised here.
        threshold: density, > 0; 1 is uniform.
        window_fraction: of `smoothed_density`.
        curves: F64[draws, n], redrawn curves; gives the bands of both ends, and their
            support: draws without a zone are left out of the bands.

    Returns:
        The zone, or None when the smoothed density is nowhere below.

    >>> dead_zone([5.0] + [1.0] * 8 + [5.0], window_fraction=0.0).start
    1
    """
    if not threshold > 0:
        raise ValueError(f"threshold must be greater than 0, not {threshold}")
    curve = Curve(np.asarray(influence, dtype=np.float64))
    smooth = smoothed_density(curve.influence, window_fraction)
    found = _longest_run(_below(smooth, threshold))
    if found is None:
        return None
    start, end = found
    inside = smooth[start:end]
    least, argmin = float(inside.min()), start + int(np.argmin(inside))
    bands = _bands(curves, threshold, window_fraction)
    return DeadZone(
        start=start,
        end=end,
        fraction=(end - start) / len(curve),
        # The mean lies above the least; a sum of equals can miss by rounding.
        mean_density=max(least, float(inside.mean())),
        min_density=least,
        argmin=argmin,
        threshold=float(threshold),
        start_band=bands[0],
        end_band=bands[1],
        support=bands[2],
    )


def _bands(
    curves: npt.ArrayLike | None, threshold: float, window_fraction: float
) -> tuple[Interval | None, Interval | None, float | None]:
    if curves is None:
        return None, None, None
    below = _below(smoothed_density(curves, window_fraction), threshold)
    zones = [zone for row in below if (zone := _longest_run(row)) is not None]
    if not zones:
        return None, None, 0.0
    tail = (1 - BAND_LEVEL) / 2
    low, high = np.quantile(np.array(zones, dtype=np.float64), [tail, 1 - tail], axis=0)
    return (
        Interval(float(low[0]), float(high[0])),
        Interval(float(low[1]), float(high[1])),
        len(zones) / len(below),
    )


def shape(influence: npt.ArrayLike) -> Shape:
    """Masses of the two ends and of the middle, and the class of the curve.

    An end is the first or last 10% of the prompt (a fractional token counts by its share). It
    STANDS OUT when its mean density exceeds 1.1 times the mean density of the middle and 0.5.
    - `collapsed`: token 0 alone holds 90% of the mass (and is not the only token).
    - `u_shaped`: both ends stand out. That compares them with the middle, not with an even share:
      the published curve of BLOOM-176B, named U-shaped, has a density of 0.87 over its first
      tenth, 0.70 in the middle and 3.5 at the end, which takes what the others lack.
    - `primacy`, `recency`: only the first, or only the last, stands out.
    - `flat`: neither does.

    Args:
        influence: F64[n], non-negative; normalised here.
    """
    curve = Curve(np.asarray(influence, dtype=np.float64))
    n = len(curve)
    first = curve.mass(0.0, END_SHARE * n)
    last = curve.mass((1 - END_SHARE) * n, float(n))
    middle = curve.mass(END_SHARE * n, (1 - END_SHARE) * n)
    bar = max(END_DENSITY, END_OVER_MIDDLE * middle / (1 - 2 * END_SHARE))
    early, late = first / END_SHARE > bar, last / END_SHARE > bar
    name: ShapeName = "flat"
    if n > 1 and curve.influence[0] >= COLLAPSED_MASS:
        name = "collapsed"
    elif early and late:
        name = "u_shaped"
    elif early or late:
        name = "primacy" if early else "recency"
    return Shape(
        name=name,
        primacy_mass=first,
        recency_mass=last,
        middle_mass=middle,
        primacy_excess=first - END_SHARE,
        recency_excess=last - END_SHARE,
        thresholds={
            "end_share": END_SHARE,
            "end_over_middle": END_OVER_MIDDLE,
            "end_density": END_DENSITY,
            "collapsed_first_token_mass": COLLAPSED_MASS,
        },
    )
