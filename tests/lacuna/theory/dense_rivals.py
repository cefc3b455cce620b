"""Dense rivals of every kernel: the definition, in extended precision, without any shortcut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lacuna.theory.binning import F64, I64, BinnedKernel


def visible(n: int, window: int | None = None, prefix: int = 0) -> np.ndarray:
    """[n, n]: may i see j?"""
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    return ((j <= i) | (j < prefix)) & (np.abs(i - j) < (window or n))


def softmax(logits: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Row-wise softmax over what is seen, in extended precision."""
    extended = np.where(seen, logits.astype(np.longdouble), -np.inf)
    weights = np.exp(extended - extended.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def alibi(
    n: int,
    slopes: Sequence[float],
    diagonal: Sequence[float],
    window: int | None = None,
    prefix: int = 0,
) -> np.ndarray:
    """[H, n, n]."""
    gap = np.abs(np.arange(n)[:, None] - np.arange(n)[None, :])
    seen = visible(n, window, prefix)
    return np.stack(
        [softmax(-s * gap + d * (gap == 0), seen) for s, d in zip(slopes, diagonal, strict=True)]
    )


def distance(
    n: int,
    bias: Sequence[float],
    sink: float = 0.0,
    diagonal: float = 0.0,
    window: int | None = None,
) -> np.ndarray:
    """[n, n]."""
    gap = np.arange(n)[:, None] - np.arange(n)[None, :]
    reach = np.clip(gap, 0, len(bias) - 1)
    logits = np.array(bias)[reach] + diagonal * (gap == 0) + sink * (np.arange(n) == 0)
    return softmax(logits, visible(n, window))


def rollout(matrices: Sequence[np.ndarray], mixing: np.ndarray) -> np.ndarray:
    """The last row of prod_t ((1 - lambda_t) I + lambda_t A_t), the whole product built."""
    n = len(matrices[0])
    product = np.eye(n, dtype=np.longdouble)
    for matrix, coefficient in zip(matrices, mixing, strict=True):
        rows = np.broadcast_to(np.asarray(coefficient, dtype=np.longdouble), (n,))[:, None]
        product = (np.eye(n) * (1 - rows) + rows * matrix) @ product
    return product[-1]


def relative_error(ours: np.ndarray, theirs: np.ndarray, least: float = 1e-200) -> float:
    """Largest relative error where the rival is above `least`; absolute 1e-16 below."""
    big = theirs > least
    assert np.all(ours[~big] <= 10 * least)
    return float(np.max(np.abs(ours[big] / theirs[big] - 1), initial=0.0))


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
