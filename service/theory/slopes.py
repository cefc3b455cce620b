"""The slopes of ALiBi heads."""

from __future__ import annotations

import numpy as np

from service.theory._recursion import F64


def standard_slopes(heads: int) -> F64:
    """The published ALiBi slopes, as BLOOM, MPT and Falcon use them.

    2^(-8 (h+1)/H) when H is a power of two; otherwise those of the power of two below H, followed
    by every other slope of the next power of two (Press et al. 2022, released code).

    >>> standard_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]

    Raises:
        ValueError: `heads` < 1.
    """
    if heads < 1:
        raise ValueError("heads must be at least 1")
    below = 1 << (heads.bit_length() - 1)
    if below == heads:
        return geometric_slopes(heads)
    between = geometric_slopes(2 * below)[0::2][: heads - below]
    return np.concatenate([geometric_slopes(below), between])


def geometric_slopes(heads: int) -> F64:
    """2^(-8 (h+1)/H) for any H: what [S] uses for BLOOM-176B's 112 heads.

    >>> geometric_slopes(2).tolist()
    [0.0625, 0.00390625]
    """
    if heads < 1:
        raise ValueError("heads must be at least 1")
    return np.asarray(2.0 ** (-8.0 * np.arange(1, heads + 1) / heads))
