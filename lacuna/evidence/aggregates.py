"""One curve from the gradient norms of many documents, and the noise left in it.

Influence is measured as K documents times n positions of gradient norms, >= 0. Three ways to make
one curve of them: the mean of norms (`mean_of_norms`, the papers' own), the mean of each
document's shares (`per_document`), the root of the mean square (`root_mean_square`). The total
influence of a document spans three orders of magnitude, so a few documents lead the mean of norms;
`per_document` gives each document one vote. A document whose norms are all 0 has no shape: every
function here leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from lacuna.theory.agreement import wasserstein
from lacuna.theory.curve import F64, normalised

Aggregate = Literal["mean", "per_document", "rms"]
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
    return normalised(_terms(norms, "mean").mean(axis=0))


def per_document(norms: npt.ArrayLike) -> F64:
    """Each document normalised first, then their mean. Arguments as `mean_of_norms`."""
    return normalised(_terms(norms, "per_document").mean(axis=0))


def root_mean_square(norms: npt.ArrayLike) -> F64:
    """The root of the mean square over documents or probes. Arguments as `mean_of_norms`.

    With a random read-out of the hidden state, E g^2 is the squared Frobenius norm of the
    Jacobian. Source: [B] arXiv 2603.10123.
    """
    return normalised(np.sqrt(_terms(norms, "rms").mean(axis=0)))


def bootstrap(norms: npt.ArrayLike, how: Aggregate, draws: int = 200, seed: int = 0) -> F64:
    """Curves of documents drawn with replacement.

    Args:
        norms: F64[K, n], >= 0.
        how: the aggregate of each draw.
        draws: number of draws, at least 1.
        seed: of the draws; equal seeds give equal curves.

    Returns:
        F64[draws, n], rows sum to 1. One document has no spread: all rows are equal.
    """
    if draws < 1:
        raise ValueError(f"draws must be at least 1, not {draws}")
    terms = _terms(norms, how)
    count = len(terms)
    # Drawing K of K documents is a multinomial count per document; one product does all draws.
    picks = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=draws)
    curves = picks.astype(np.float64) @ terms
    # A draw can consist of documents so faint that their squares underflow to 0. It then has no
    # digits of its own, and the curve of all documents stands in for it.
    empty = curves.max(axis=1) == 0
    curves[empty] = terms.sum(axis=0)
    return normalised(np.sqrt(curves) if how == "rms" else curves)


def band(curves: npt.ArrayLike, level: float = 0.95) -> tuple[F64, F64]:
    """Pointwise percentile band of redrawn curves.

    Args:
        curves: F64[draws, n] from `bootstrap`.
        level: share of draws inside, in (0, 1).

    Returns:
        (low, high), F64[n] each.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, not {level}")
    tail = (1 - level) / 2
    low, high = np.quantile(np.asarray(curves, dtype=np.float64), [tail, 1 - tail], axis=0)
    return low, high


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


def _terms(norms: npt.ArrayLike, how: Aggregate) -> F64:
    """F64[K, n] whose mean over documents is the curve (its square, for `rms`) up to scale."""
    raw = np.asarray(norms, dtype=np.float64)
    if raw.ndim != 2 or raw.size == 0:
        raise ValueError(f"norms must be documents x positions, not of shape {raw.shape}")
    if not np.isfinite(raw).all() or (raw < 0).any():
        raise ValueError("gradient norms must be finite and at least 0")
    raw = raw[raw.max(axis=1) > 0]
    if len(raw) == 0:
        raise ValueError("no document has any influence: every gradient norm is 0")
    if how == "per_document":
        return normalised(raw)  # each by its own scale, so that faint documents do not underflow
    scaled = raw / raw.max()
    if how == "rms":
        return np.asarray(np.square(scaled), dtype=np.float64)
    if how == "mean":
        return np.asarray(scaled, dtype=np.float64)
    raise ValueError(f"how must be one of {', '.join(get_args(Aggregate))}, not {how!r}")
