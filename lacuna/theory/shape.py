"""What a curve of influence looks like: its dead zone, the masses of its ends, its class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from lacuna.theory.curve import F64, Curve, normalised

THRESHOLD = 0.75
"""Density below which a position belongs to a dead zone; 1 is uniform."""
WINDOW_FRACTION = 0.1
"""Share of the prompt over which the density is smoothed."""
END_SHARE = 0.1
"""Share of the prompt that counts as an end."""
END_OVER_MIDDLE = 1.1
"""An end stands out above this times the middle's mean density ..."""
END_DENSITY = 0.5
"""... and above this density."""
COLLAPSED_MASS = 0.9
"""Mass on token 0 from which a curve is collapsed."""

ShapeName = Literal["u_shaped", "primacy", "recency", "flat", "collapsed"]


@dataclass(frozen=True)
class DeadZone:
    """The longest interval of positions with a smoothed density below `threshold`.

    Attributes:
        start: first position, 0-based.
        end: one past the last position.
        fraction: (end - start) / n.
        mean_density: mean of the smoothed density inside; below `threshold`.
        min_density: least smoothed density inside; <= `mean_density`.
        argmin: its position, the first of equals.
        threshold: as requested; 1 is the density of a uniform curve.
    """

    start: int
    end: int
    fraction: float
    mean_density: float
    min_density: float
    argmin: int
    threshold: float


@dataclass(frozen=True)
class Shape:
    """Where the mass lies.

    Masses are in [0, 1]: first END_SHARE, last END_SHARE, and the rest; 0.1, 0.1 and 0.8 for a
    uniform curve. An excess is a mass minus its uniform value. `thresholds` name the numbers above
    that decided the class.
    """

    name: ShapeName
    primacy_mass: float
    recency_mass: float
    middle_mass: float
    primacy_excess: float
    recency_excess: float
    thresholds: dict[str, float]


def smoothed_density(influence: npt.ArrayLike, window_fraction: float = WINDOW_FRACTION) -> F64:
    """Density averaged over a centred window of `window_fraction` of the prompt.

    Token 0 and the last token are isolated spikes (the attention sink and the token that is read).
    They keep their own density and do not count in their neighbours' windows, which are cut off
    there. The width is a real number of tokens, so that a curve read at another length is smoothed
    in the same way. A window of at most one token changes nothing.

    Args:
        influence: F64[..., n], non-negative; need not sum to 1.
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
    # A mean lies between the extremes, but a difference of sums can miss that by rounding.
    low, high = inner.min(axis=-1, keepdims=True), inner.max(axis=-1, keepdims=True)
    smooth[..., 1:-1] = np.clip(mean, low, high)
    return smooth


def _between(total: F64, at: F64) -> F64:
    """`total` [..., m], mass before each boundary, interpolated at fractional boundaries `at`."""
    whole = np.minimum(at.astype(np.intp), total.shape[-1] - 2)
    share = at - whole
    before, after = total.take(whole, axis=-1), total[..., 1:].take(whole, axis=-1)
    return np.asarray(before * (1 - share) + after * share)


def _longest_run(below: npt.NDArray[np.bool_]) -> tuple[int, int] | None:
    """[start, end) of the longest run of True, the first of equals; None if nothing is True."""
    steps = np.flatnonzero(np.diff(np.concatenate(([False], below, [False]))))
    starts, ends = steps[::2], steps[1::2]
    if starts.size == 0:
        return None
    longest = int(np.argmax(ends - starts))
    return int(starts[longest]), int(ends[longest])


def _below(smooth: F64, threshold: float) -> npt.NDArray[np.bool_]:
    """Below by more than rounding errors, so that a flat curve is not below 1."""
    return smooth < threshold - 1e-9 * max(threshold, 1.0)


def dead_zone(
    influence: npt.ArrayLike,
    threshold: float = THRESHOLD,
    window_fraction: float = WINDOW_FRACTION,
) -> DeadZone | None:
    """The longest interval in which the smoothed density stays below `threshold`.

    The zone is read from the curve and never assumed to be centred. With a residual stream the
    theoretical density falls all the way to the isolated last token.

    Args:
        influence: F64[n], non-negative; need not sum to 1.
        threshold: density, > 0; 1 is uniform.
        window_fraction: as in `smoothed_density`.

    Returns:
        The zone, or None if the smoothed density is nowhere below the threshold.

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
    return DeadZone(
        start=start,
        end=end,
        fraction=(end - start) / len(curve),
        # A mean is at least the minimum, but a sum of equal numbers can miss that by rounding.
        mean_density=max(least, float(inside.mean())),
        min_density=least,
        argmin=argmin,
        threshold=float(threshold),
    )


def features(length: int) -> F64:
    """F64[n, 4]: what `classify` reads from a curve, as sums over its n positions.

    Mass of the first tenth, of the middle and of the last tenth (a fractional token counts by its
    share), and of token 0.
    """
    token = np.arange(length)
    first = np.clip(END_SHARE * length - token, 0.0, 1.0)
    last = np.clip(token + 1 - (1 - END_SHARE) * length, 0.0, 1.0)
    return np.stack([first, 1 - first - last, last, token == 0], axis=1).astype(np.float64)


def classify(first: float, middle: float, last: float, token: float | None) -> ShapeName:
    """The class of a curve from its masses; see `shape`.

    Args:
        first: mass of the first tenth.
        middle: mass between the tenths.
        last: mass of the last tenth.
        token: mass of token 0; None for a prompt of one token.
    """
    if token is not None and token >= COLLAPSED_MASS:
        return "collapsed"
    bar = max(END_DENSITY, END_OVER_MIDDLE * middle / (1 - 2 * END_SHARE))
    early, late = first / END_SHARE > bar, last / END_SHARE > bar
    if early and late:
        return "u_shaped"
    if early or late:
        return "primacy" if early else "recency"
    return "flat"


def shape(influence: npt.ArrayLike) -> Shape:
    """Masses of the two ends and of the middle, and the class of the curve.

    An end is the first or last 10% of the prompt; a fractional token counts by its share. It
    STANDS OUT if its mean density exceeds both 0.5 and 1.1 times the mean density of the middle.
    - `collapsed`: token 0 alone holds 90% of the mass (and is not the only token).
    - `u_shaped`: both ends stand out. They are compared with the middle, not with an even share:
      the published curve of BLOOM-176B, called U-shaped, has a density of 0.87 over its first
      tenth, 0.70 in the middle and 3.5 over its last tenth.
    - `primacy`, `recency`: only the first, or only the last, stands out.
    - `flat`: neither does.

    Args:
        influence: F64[n], non-negative; need not sum to 1.
    """
    curve = Curve(np.asarray(influence, dtype=np.float64))
    n = len(curve)
    first = curve.mass(0.0, END_SHARE * n)
    last = curve.mass((1 - END_SHARE) * n, float(n))
    middle = curve.mass(END_SHARE * n, (1 - END_SHARE) * n)
    name = classify(first, middle, last, float(curve.influence[0]) if n > 1 else None)
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
