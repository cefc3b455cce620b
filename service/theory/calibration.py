"""A profile measured at one length, read at the length of the prompt at hand.

Influence does not scale with the prompt as a whole: what the first and the last tokens receive
(attention sink, recency) belongs to their distance from the ends, what lies between is spread over
as many tokens as there are. So the head is anchored by distance from the start, the tail by
distance from the end, and only the middle is stretched; each part keeps its mass.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

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
