"""One curve from the gradient norms of many documents, and the noise left in it.

Influence is measured as K documents times n positions of gradient norms, >= 0. Three ways to make
one curve of them: the mean of norms (`mean_of_norms`, the papers' own), the mean of each
document's shares (`per_document`), the root of the mean square (`root_mean_square`). The total
influence of a document spans three orders of magnitude, so a few documents lead the mean of norms;
`per_document` gives each document one vote. A document whose norms are all 0 has no shape: every
function here leaves it out. `bands` has the confidence bands of such curves.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from lacuna.theory.agreement import wasserstein
from lacuna.theory.curve import F64, normalised

SPLITS = 16
"""Random halvings that `split_half` averages over; one halving alone varies by half."""


def mean_of_norms(norms: npt.ArrayLike) -> F64:
    """The mean of norms over documents, normalised afterwards.

    Source: [S] arXiv 2602.16837.

    Args:
        norms: F64[K, n], >= 0.

    Returns:
        F64[n], sums to 1.

    Raises:
        ValueError: wrong shape, negative or not finite, or no document with influence.
    """
    rows = _documents(norms)
    return normalised((rows / rows.max()).mean(axis=0))


def per_document(norms: npt.ArrayLike) -> F64:
    """Each document normalised first, then their mean. Arguments as `mean_of_norms`."""
    return normalised(normalised(_documents(norms)).mean(axis=0))


def root_mean_square(norms: npt.ArrayLike) -> F64:
    """The root of the mean square over documents or probes. Arguments as `mean_of_norms`.

    With a random read-out of the hidden state, E g^2 is the squared Frobenius norm of the
    Jacobian. Source: [B] arXiv 2603.10123.
    """
    rows = _documents(norms)
    return normalised(np.sqrt(np.square(rows / rows.max()).mean(axis=0)))


def split_half(norms: npt.ArrayLike, aggregate: Callable[[F64], F64]) -> float | None:
    """Wasserstein distance between the curves of two halves of the documents: the noise left.

    A prediction that is closer to the measured curve than this may be perfect: the data cannot
    tell. (The curve of all documents is less noisy: about half of this distance.) The result is
    the mean over random halvings; with an odd number of documents each halving leaves one out.

    Args:
        norms: F64[K, n], >= 0.
        aggregate: F64[k, n] -> F64[n], for example `mean_of_norms`.

    Returns:
        In [0, 1]; None when fewer than two documents have any influence.
    """
    rows = np.asarray(norms, dtype=np.float64)
    rows = rows[rows.max(axis=1) > 0]
    half = len(rows) // 2
    if half == 0:
        return None
    generator = np.random.default_rng(0)
    distances = []
    for _ in range(1 if len(rows) == 2 else SPLITS):
        order = generator.permutation(len(rows))
        first, second = order[:half], order[half : 2 * half]
        distances.append(wasserstein(aggregate(rows[first]), aggregate(rows[second])))
    return float(np.mean(distances))


def _documents(norms: npt.ArrayLike) -> F64:
    """F64[K, n]: the documents that have influence, checked."""
    rows = np.asarray(norms, dtype=np.float64)
    if rows.ndim != 2 or rows.size == 0:
        raise ValueError(f"norms must be documents x positions, not of shape {rows.shape}")
    if not np.isfinite(rows).all() or (rows < 0).any():
        raise ValueError("gradient norms must be finite and at least 0")
    rows = np.asarray(rows[rows.max(axis=1) > 0])
    if len(rows) == 0:
        raise ValueError("no document has any influence: every gradient norm is 0")
    return rows
