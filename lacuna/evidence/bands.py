"""Confidence bands of a curve over documents, and intervals of numbers read from it.

A curve is a mean over documents, sum_i w_i x_i / sum_i w_i. With w_i = 1 every document counts
alike (`per_document`); with w_i the total influence of a document it is the papers' mean of norms.
Documents are few and their weights are heavy-tailed, so percentile bootstrap bands are too narrow.
Used here instead:

- standard errors by the jackknife over documents, which takes heavy documents seriously
  (Efron and Stein, Ann. Statist. 9, 1981);
- t quantiles with `effective_documents` - 1 degrees of freedom, times 1 + 3 / effective documents,
  the factor that simulation asks for;
- the log scale for densities and the logit for masses, which are skewed;
- for simultaneous bands the studentised bootstrap of the largest deviation on the square root
  scale (Beran, J. Am. Stat. Assoc. 83, 1988).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

F64 = npt.NDArray[np.float64]
Scale = Literal["plain", "logit"]

LEVEL = 0.95
MIN_EFFECTIVE = 12.0
"""Effective documents below which no band is offered: simulated coverage falls under 93%."""
_WIDEN = 3.0
_BLOCK = 1024
"""Positions that the bootstrap treats at once, to bound its memory."""


@dataclass(frozen=True, eq=False)
class Band:
    """A curve with its bands; arrays are F64[n] in the units of the values.

    Attributes:
        value: the curve.
        low: lower end of the pointwise band: holds at each position, not at all of them together.
        high: its upper end.
        simultaneous_low: lower end of the band that holds at all positions together.
        simultaneous_high: its upper end.
        documents: documents with weight.
        effective_documents: as the function of that name says.
        level: confidence of both bands, in (0, 1).
    """

    value: F64
    low: F64
    high: F64
    simultaneous_low: F64
    simultaneous_high: F64
    documents: int
    effective_documents: float
    level: float


@dataclass(frozen=True)
class Interval:
    """A number with its confidence interval, `low` <= `high`."""

    value: float
    low: float
    high: float


def effective_documents(weights: npt.ArrayLike) -> float:
    """(sum w)^2 / sum w^2: how many documents of equal weight say as much (Kish, 1965).

    Args:
        weights: F64[D], non-negative, at least one positive.

    >>> effective_documents([1.0, 1.0, 0.0])
    2.0
    """
    w = np.asarray(weights, dtype=np.float64)
    if w.ndim != 1 or not np.isfinite(w).all() or (w < 0).any() or not (w > 0).any():
        raise ValueError("weights must be finite, at least 0 and not all 0")
    w = w / w.max()
    return float(w.sum() ** 2 / (w @ w))


def band(
    values: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    *,
    level: float = LEVEL,
    draws: int = 1000,
    seed: int = 0,
) -> Band | None:
    """Pointwise and simultaneous bands of a curve.

    Smooth or bin the rows first: both are linear, so the mean of smoothed rows is the smoothed
    mean. Pointwise bands of single tokens cover 91% only, because some spikes occur in one document
    of hundreds.

    Args:
        values: F64[D, n], non-negative, one row a document: densities, masses or shares.
        weights: F64[D], non-negative; None weighs all alike.
        level: confidence, in (0, 1).
        draws: of the bootstrap behind the simultaneous band.
        seed: of the draws; equal seeds give equal bands.

    Returns:
        The band, or None below `MIN_EFFECTIVE` effective documents.
    """
    rows, w = _documents(values, weights)
    if (rows < 0).any():
        raise ValueError("values must be at least 0: the bands use logarithms and roots")
    effective = effective_documents(w)
    if effective < MIN_EFFECTIVE:
        return None
    mean = w @ rows / w.sum()
    half = _quantile(effective, level) * _jackknife_error(rows, w, mean)
    relative = np.divide(half, mean, out=np.zeros_like(half), where=mean > 0)
    factor = np.exp(np.minimum(relative, 50.0))
    wide = largest_deviation(rows, w, level=level, draws=draws, seed=seed)
    root, error = np.sqrt(mean), wide * root_error(rows, w) * widening(effective)
    return Band(
        value=mean,
        low=mean / factor,
        high=mean * factor,
        simultaneous_low=np.square(np.maximum(root - error, 0.0)),
        simultaneous_high=np.square(root + error),
        documents=len(rows),
        effective_documents=effective,
        level=level,
    )


def interval(
    statistic: Callable[[F64], F64],
    values: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    *,
    scale: Scale = "plain",
    limits: tuple[float, float] = (-np.inf, np.inf),
    level: float = LEVEL,
) -> Interval | None:
    """Jackknife t interval of a number read from the curve.

    Fit for masses, distances, mean positions, gains, and rank correlations over about ten bins:
    anything that moves smoothly with the curve. Not for ends of zones (`zones.py`) or classes
    (`support`), which jump.

    Args:
        statistic: curves F64[k, n] -> F64[k]; a curve is the weighted mean of `values`.
        values: F64[D, n], one row a document.
        weights: F64[D], non-negative; None weighs all alike.
        scale: `logit` for shares strictly between 0 and 1, which are skewed near the ends.
        limits: what the statistic can be; the interval is cut there.
        level: confidence, in (0, 1).

    Returns:
        The interval, or None below `MIN_EFFECTIVE` effective documents.
    """
    rows, w = _documents(values, weights)
    effective = effective_documents(w)
    if effective < MIN_EFFECTIVE:
        return None
    total, mass = w @ rows, w.sum()
    without = (total - w[:, None] * rows) / (mass - w)[:, None]
    found = np.asarray(statistic(np.concatenate([(total / mass)[None], without])), dtype=np.float64)
    inside = (found > 0.0).all() and (found < 1.0).all()
    logit = scale == "logit" and inside
    scaled = np.log(found / (1 - found)) if logit else found
    left_out = scaled[1:]
    variance = (len(w) - 1) / len(w) * np.square(left_out - left_out.mean()).sum()
    half = _quantile(effective, level) * np.sqrt(variance)
    ends = np.array([scaled[0] - half, scaled[0] + half])
    low, high = np.clip(1 / (1 + np.exp(-ends)) if logit else ends, *limits)
    return Interval(float(found[0]), float(low), float(high))


def redrawn(
    values: npt.ArrayLike, weights: npt.ArrayLike | None = None, *, draws: int = 1000, seed: int = 0
) -> F64:
    """Curves of documents drawn with replacement, F64[draws, n]."""
    rows, w = _documents(values, weights)
    picks = _picks(len(rows), draws, seed) * w
    return np.asarray(picks @ rows / picks.sum(axis=1, keepdims=True))


def support(
    classify: Callable[[F64], Sequence[Hashable]],
    values: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    *,
    draws: int = 1000,
    seed: int = 0,
) -> dict[Hashable, float]:
    """Share of redrawn document sets that give each class, the most frequent first.

    Args:
        classify: curves F64[draws, n] -> a class for each, e.g. the name of its shape.
        values: F64[D, n], one row a document.
        weights: F64[D], non-negative; None weighs all alike.
        draws: document sets.
        seed: of the draws.

    Returns:
        Shares that sum to 1. Under 0.95 call the class undecided.
    """
    names = list(classify(redrawn(values, weights, draws=draws, seed=seed)))
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    order = sorted(counts.items(), key=lambda item: -item[1])
    return {name: count / len(names) for name, count in order}


def widening(effective: float) -> float:
    """Factor on half-widths that makes up for few effective documents."""
    return 1 + _WIDEN / effective


def root_error(rows: F64, w: F64) -> F64:
    """F64[n]: standard error of the square root of the curve, by linearisation."""
    mean = w @ rows / w.sum()
    spread = np.sqrt(np.square(w) @ np.square(rows - mean) * len(w) / (len(w) - 1)) / w.sum()
    root = 2 * np.sqrt(mean)
    return np.asarray(np.divide(spread, root, out=np.zeros_like(root), where=root > 0))


def largest_deviation(
    rows: F64, w: F64, *, level: float, draws: int, seed: int, above: bool = False
) -> float:
    """Quantile of the largest studentised deviation over positions, by bootstrap.

    Args:
        rows: F64[D, n], non-negative.
        w: F64[D], positive.
        level: of the quantile.
        draws: of the bootstrap.
        seed: of the draws.
        above: only count how far the true curve may lie above the one seen.
    """
    picks = _picks(len(rows), draws, seed)
    largest = np.full(draws, -np.inf)
    for start in range(0, rows.shape[1], _BLOCK):
        deviation = _studentised(rows[:, start : start + _BLOCK], w, picks)
        found = -deviation if above else np.abs(deviation)
        largest = np.maximum(largest, found.max(axis=1))
    return float(np.quantile(largest, level))


def _studentised(rows: F64, w: F64, picks: F64) -> F64:
    """F64[draws, n]: (root of the redrawn curve - root of the curve) / its standard error there."""
    mean = w @ rows / w.sum()
    centred = rows - mean
    mass = (picks @ w)[:, None]
    moved = picks @ (w[:, None] * centred) / mass
    square = np.square(w)[:, None]
    second = picks @ (square * np.square(centred))
    second += np.square(moved) * (picks @ square) - 2 * moved * (picks @ (square * centred))
    spread = np.sqrt(np.maximum(second, 0.0) * len(w) / (len(w) - 1)) / mass
    root = np.sqrt(np.maximum(mean + moved, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = 2 * root * (root - np.sqrt(mean)) / spread
    return np.asarray(np.where(spread > 1e-9 * mean, found, 0.0))


def _jackknife_error(rows: F64, w: F64, mean: F64) -> F64:
    """F64[n]: jackknife standard error of the weighted mean."""
    left_out = (w / (w.sum() - w))[:, None] * (rows - mean)  # the curve minus it without i
    left_out -= left_out.mean(axis=0)
    return np.asarray(np.sqrt((len(w) - 1) / len(w) * np.square(left_out).sum(axis=0)))


def _quantile(effective: float, level: float) -> float:
    return float(stdtrit(effective - 1, (1 + level) / 2)) * widening(effective)


def _picks(documents: int, draws: int, seed: int) -> F64:
    """How often each document is drawn, F64[draws, D]."""
    even = np.full(documents, 1 / documents)
    return np.random.default_rng(seed).multinomial(documents, even, size=draws).astype(np.float64)


def _documents(values: npt.ArrayLike, weights: npt.ArrayLike | None) -> tuple[F64, F64]:
    """Rows and weights (largest 1) of the documents that have weight."""
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim != 2 or rows.size == 0 or not np.isfinite(rows).all():
        raise ValueError(f"values must be finite, documents x positions, not {rows.shape}")
    if weights is None:
        return rows, np.ones(len(rows))
    w = np.asarray(weights, dtype=np.float64)
    if w.shape != (len(rows),):
        raise ValueError(f"weights must be one a document, not of shape {w.shape}")
    effective_documents(w)  # refuses what cannot be weights
    return rows[w > 0], w[w > 0] / w.max()
