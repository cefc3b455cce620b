"""From gradient norms of single documents to one curve, and how certain that curve is.

The total influence of a document spans three orders of magnitude between documents, so the mean
of norms is led by a few of them; `per_document` gives each document one vote.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from service.theory.curve import F64, normalised

How = Literal["mean", "per_document", "rms"]


def _documents(norms: npt.ArrayLike) -> F64:
    """F64[K, n] on a common scale, without documents of no influence (they have no shape)."""
    rows = np.asarray(norms, dtype=np.float64)
    if rows.ndim != 2 or rows.size == 0:
        raise ValueError(f"norms must be documents x positions, not of shape {rows.shape}")
    if not np.isfinite(rows).all() or (rows < 0).any():
        raise ValueError("gradient norms must be finite and at least 0")
    rows = rows[rows.max(axis=1) > 0]
    if len(rows) == 0:
        raise ValueError("no document has any influence: every gradient norm is 0")
    return np.asarray(rows / rows.max(), dtype=np.float64)


def _terms(norms: npt.ArrayLike, how: How) -> F64:
    """F64[K, n] whose mean over documents is the curve (its square, for `rms`) up to scale."""
    rows = _documents(norms)
    if how == "per_document":
        # Before the common scale is applied: a faint document must not underflow to zeros.
        raw = np.asarray(norms, dtype=np.float64)
        return normalised(raw[raw.max(axis=1) > 0])
    if how == "rms":
        return np.square(rows)
    if how == "mean":
        return rows
    raise ValueError(f"how must be one of {', '.join(get_args(How))}, not {how!r}")


def mean_of_norms(norms: npt.ArrayLike) -> F64:
    """F64[n], sums to 1: the mean of norms over documents, normalised after ([S]).

    Args:
        norms: F64[K, n], non-negative; documents of zeros count for nothing.
    """
    return normalised(_terms(norms, "mean").mean(axis=0))


def per_document(norms: npt.ArrayLike) -> F64:
    """F64[n], sums to 1: each document normalised first, then their mean."""
    return normalised(_terms(norms, "per_document").mean(axis=0))


def root_mean_square(norms: npt.ArrayLike) -> F64:
    """F64[n], sums to 1: root of the mean square over documents or probes ([B]).

    With a random read-out of the hidden state, E g^2 is the squared Frobenius norm of the Jacobian.
    """
    return normalised(np.sqrt(_terms(norms, "rms").mean(axis=0)))


def bootstrap(norms: npt.ArrayLike, how: How, draws: int = 200, seed: int = 0) -> F64:
    """Curves of documents drawn with replacement.

    Args:
        norms: F64[K, n], non-negative.
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
    # A draw of documents so faint that their squares vanish beside the others' keeps no digits;
    # it says what the whole set says.
    empty = curves.max(axis=1) == 0
    curves[empty] = terms.sum(axis=0)
    return normalised(np.sqrt(curves) if how == "rms" else curves)


def band(curves: npt.ArrayLike, level: float = 0.95) -> tuple[F64, F64]:
    """Pointwise percentile band of resampled curves.

    Args:
        curves: F64[draws, n].
        level: share of draws inside, in (0, 1).

    Returns:
        (low, high), F64[n] each.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, not {level}")
    tail = (1 - level) / 2
    low, high = np.quantile(np.asarray(curves, dtype=np.float64), [tail, 1 - tail], axis=0)
    return low, high
