"""Does recall vary with depth? Groups of prompts that ask for the same facts at every depth.

A table [groups, depths] holds the probability of a right answer, or hits. Groups are what is drawn
independently; all depths of a group share its facts, so everything rests on each group's deviations
from its own mean ("paired"): facts differ ten times more than depths do.

- Decision: sign flips of each group's linear and quadratic contrast over depth, Hotelling's T2.
  False alarms at nominal 2.5%: 1 to 5.5%. Shuffled depth labels, Cochran's Q and Friedman's test
  give 4 to 75% on the same data, because neighbouring depths are correlated.
- Bands: t quantiles pointwise, sign flips of the largest |t| for all depths together.
- Topics and phrasings are drawn too: standard errors are clustered both ways (Cameron, Gelbach and
  Miller, J. Bus. Econ. Stat. 29, 2011): V_topic + V_phrasing - V_group, at least V_group.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

F64 = npt.NDArray[np.float64]
Verdict = Literal["varies", "flat", "undecided", "floor", "ceiling"]

ALPHA = 0.025
"""Nominal level of the test of flatness."""
LEVEL = 0.95
MIN_GROUPS = 16
"""Groups below which neither a verdict nor a band is offered."""
MARGIN = 0.05
"""Recall within this of its mean at every depth counts as flat."""
FLOOR, CEILING = 0.05, 0.95
MIN_CLUSTERS = 3
"""Topics or phrasings below which their own variance cannot be estimated."""


@dataclass(frozen=True)
class Controls:
    """Recall of the same groups under conditions that bound what depth can show.

    Attributes:
        closed_book: F64[groups], without the fact; None if not measured.
        oracle: F64[groups], the fact alone; None if not measured.
    """

    closed_book: npt.ArrayLike | None = None
    oracle: npt.ArrayLike | None = None


@dataclass(frozen=True, eq=False)
class DepthCurve:
    """Recall over k depths, with bands. Arrays are F64[k].

    Attributes:
        recall: mean over groups.
        low: lower end of its pointwise band, for the level of recall, in [0, 1].
        high: upper end.
        contrast: mean deviation from the groups' own mean; sums to 0.
        contrast_low: lower end of the band that holds at all depths together.
        contrast_high: upper end.
        cluster_ratio: standard error with topics and phrasings, over the one of groups alone; mean
            over depths, at least 1.
    """

    recall: F64
    low: F64
    high: F64
    contrast: F64
    contrast_low: F64
    contrast_high: F64
    cluster_ratio: float

    @property
    def half_width(self) -> float:
        """Largest half-width of the simultaneous band: what sampling makes small."""
        return float((self.contrast_high - self.contrast_low).max() / 2)


@dataclass(frozen=True)
class Flatness:
    """Verdict on a table.

    Attributes:
        verdict: `varies`: the test says so. Otherwise `floor`: nowhere more than `FLOOR` above the
            closed book (or the fact alone is not recalled); `ceiling`: at least `CEILING`
            everywhere; `flat`: the simultaneous band lies within the margin; else `undecided`.
        p: of the test, or None with too few groups.
        alpha: its nominal level.
        margin: half-width of the equivalence, in units of recall.
        groups: how many there were.
        spread: largest minus smallest recall over depths.
        curve: with its bands, or None with too few groups.
    """

    verdict: Verdict
    p: float | None
    alpha: float
    margin: float
    groups: int
    spread: float
    curve: DepthCurve | None


def flatness(
    recall: npt.ArrayLike,
    *,
    topics: Sequence[Hashable] | None = None,
    phrasings: Sequence[Hashable] | None = None,
    controls: Controls | None = None,
    margin: float = MARGIN,
    alpha: float = ALPHA,
    draws: int = 4000,
    seed: int = 0,
) -> Flatness:
    """Decide whether recall depends on depth.

    Args:
        recall: F64[groups, depths], in [0, 1]: mean probability of a right answer, or hit rate.
        topics: of each group; widens the bands where topics differ.
        phrasings: of each group.
        controls: see `Controls`.
        margin: see `Flatness`.
        alpha: nominal level of the test.
        draws: of random signs.
        seed: of the draws.
    """
    table = _table(recall)
    controls = controls or Controls()
    count, spread = len(table), float(np.ptp(table.mean(axis=0)))
    if count < MIN_GROUPS:
        return Flatness("undecided", None, alpha, margin, count, spread, None)
    curve = depth_curve(table, topics=topics, phrasings=phrasings, draws=draws, seed=seed)
    p = smooth_test(table, draws=draws, seed=seed)
    verdict: Verdict = "undecided"
    if p <= alpha:
        verdict = "varies"
    elif _at_floor(table, controls):
        verdict = "floor"
    elif (curve.low >= CEILING).all():
        verdict = "ceiling"
    elif max(-curve.contrast_low.min(), curve.contrast_high.max()) <= margin:
        verdict = "flat"
    return Flatness(verdict, p, alpha, margin, count, spread, curve)


def depth_curve(
    recall: npt.ArrayLike,
    *,
    topics: Sequence[Hashable] | None = None,
    phrasings: Sequence[Hashable] | None = None,
    level: float = LEVEL,
    draws: int = 4000,
    seed: int = 0,
) -> DepthCurve:
    """Recall over depth with pointwise bands of its level and simultaneous paired bands.

    Args:
        recall: F64[groups, depths], in [0, 1]; at least 2 groups.
        topics: of each group, or None.
        phrasings: of each group, or None.
        level: confidence, in (0, 1).
        draws: of random signs.
        seed: of the draws.
    """
    table = _table(recall)
    count = len(table)
    paired = table - table.mean(axis=1, keepdims=True)
    contrasts = clustered_error(paired, topics, phrasings)
    levels = clustered_error(table, topics, phrasings)
    low, high = _level_band(table.mean(axis=0), levels, count, level)
    factor = _simultaneous_factor(paired, level, draws, seed)
    # Few clusters know their own variance badly: wider by what t quantiles say.
    tail = (1 + level) / 2
    few = stdtrit(contrasts.freedom, tail) / stdtrit(count - 1, tail)
    # A small table of hits without one change would look certain: never claim less than one.
    half = np.maximum(factor * few * contrasts.error, _least(table))
    contrast = paired.mean(axis=0)
    return DepthCurve(
        recall=table.mean(axis=0),
        low=low,
        high=high,
        contrast=contrast,
        contrast_low=contrast - half,
        contrast_high=contrast + half,
        cluster_ratio=contrasts.ratio,
    )


def smooth_test(table: npt.ArrayLike, *, draws: int = 4000, seed: int = 0) -> float:
    """p of "no linear and no quadratic trend over depth": sign flips of Hotelling's T2.

    Args:
        table: F64[groups, depths], at least 2 depths.
        draws: of random signs, one a group.
        seed: of the draws.
    """
    rows = _table(table)
    contrasts = (rows - rows.mean(axis=1, keepdims=True)) @ _trends(rows.shape[1])
    count = len(contrasts)
    cross = contrasts.T @ contrasts / count
    if not np.trace(cross) > 1e-18:
        return 1.0
    inverse = np.linalg.pinv(cross, hermitian=True)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(draws, count))
    means = np.concatenate([contrasts.mean(axis=0)[None], signs @ contrasts / count])
    # Signs leave the second moment as it is, so T2 orders as m' S^-1 m does.
    statistic = np.einsum("ij,jk,ik->i", means, inverse, means)
    return float((1 + (statistic[1:] >= statistic[0] - 1e-12).sum()) / (draws + 1))


@dataclass(frozen=True, eq=False)
class ClusteredError:
    """Standard errors of column means.

    Attributes:
        error: F64[k].
        freedom: F64[k], degrees of freedom of each by Satterthwaite's formula, 1..groups - 1.
        ratio: mean ratio of `error` to the error of groups alone, at least 1.
    """

    error: F64
    freedom: F64
    ratio: float


def clustered_error(
    rows: npt.ArrayLike,
    topics: Sequence[Hashable] | None = None,
    phrasings: Sequence[Hashable] | None = None,
) -> ClusteredError:
    """Standard error of the column means, clustered by topic and phrasing.

    A way with fewer than `MIN_CLUSTERS` clusters adds nothing: it says nothing of others.

    Args:
        rows: F64[groups, k].
        topics: of each group, or None.
        phrasings: of each group, or None.
    """
    residual = np.asarray(rows, dtype=np.float64)
    residual = residual - residual.mean(axis=0)
    count = len(residual)
    own = np.square(residual).sum(axis=0) / (count * (count - 1))
    variance, doubt = own.copy(), np.square(own) / (count - 1)
    for labels in (topics, phrasings):
        if labels is None:
            continue
        if len(labels) != count:
            raise ValueError(f"{len(labels)} labels for {count} groups")
        names = {label: place for place, label in enumerate(dict.fromkeys(labels))}
        if MIN_CLUSTERS <= len(names) < count:
            sums = np.zeros((len(names), residual.shape[1]))
            np.add.at(sums, [names[label] for label in labels], residual)
            correction = len(names) / (len(names) - 1)
            found = np.square(sums).sum(axis=0) * correction / count**2
            variance += found - own
            doubt += np.square(found) / (len(names) - 1)
    variance = np.maximum(variance, own)
    known = own > 0
    freedom = np.full(len(own), count - 1.0)
    freedom[known] = np.clip(np.square(variance[known]) / doubt[known], 1.0, count - 1.0)
    ratio = float(np.mean(np.sqrt(variance[known] / own[known]))) if known.any() else 1.0
    return ClusteredError(np.sqrt(variance), freedom, ratio)


def _simultaneous_factor(paired: F64, level: float, draws: int, seed: int) -> float:
    """Quantile of the largest |t| over depths under random signs of the groups."""
    count = len(paired)
    centred = paired - paired.mean(axis=0)
    square = np.square(centred).mean(axis=0)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(draws, count))
    mean = signs @ centred / count
    error = np.sqrt(np.maximum(square - np.square(mean), 0.0) / (count - 1))
    t = np.divide(mean, error, out=np.zeros_like(mean), where=error > 1e-9)
    return float(np.quantile(np.abs(t).max(axis=1), level))


def _level_band(mean: F64, clustered: ClusteredError, count: int, level: float) -> tuple[F64, F64]:
    """Band of recall itself on the logit scale, which keeps it inside (0, 1)."""
    error, quantile = clustered.error, stdtrit(clustered.freedom, (1 + level) / 2)
    floor = 0.5 / (count + 1)
    inside = np.clip(mean, floor, 1 - floor)
    slope = inside * (1 - inside)
    half = quantile * np.maximum(error, np.sqrt(slope / count) * (error <= 1e-9)) / slope
    logit = np.log(inside / (1 - inside))
    low, high = (1 / (1 + np.exp(-end)) for end in (logit - half, logit + half))
    return np.minimum(low, mean), np.maximum(high, mean)


def _least(table: F64) -> float:
    """Least half-width of a table of hits (0, 1, or means of a few): 2 / (groups + 4)."""
    hits = np.isin(table, (0.0, 1.0)).all()
    return 2 / (len(table) + 4) if hits else 0.0


def _at_floor(table: F64, controls: Controls) -> bool:
    """No depth is recalled better than guessing, or the fact alone is not."""
    if controls.oracle is not None:
        oracle = np.asarray(controls.oracle, dtype=np.float64)
        if _upper(oracle[:, None])[0] <= FLOOR:
            return True
    if controls.closed_book is None:
        return bool((_upper(table) <= FLOOR).all())
    book = np.asarray(controls.closed_book, dtype=np.float64)
    if book.shape != (len(table),):
        raise ValueError(f"closed_book must be one a group, not of shape {book.shape}")
    return bool((_upper(table - book[:, None]) <= FLOOR).all())


def _upper(rows: F64) -> F64:
    """One-sided upper bound of the column means."""
    count = len(rows)
    error = rows.std(axis=0, ddof=1) / np.sqrt(count)
    return np.asarray(rows.mean(axis=0) + stdtrit(count - 1, LEVEL) * error)


def _trends(depths: int) -> F64:
    """F64[depths, 2]: orthonormal linear and quadratic contrasts (one column for two depths)."""
    at = np.linspace(-1, 1, depths)
    basis, _ = np.linalg.qr(np.vander(at, min(3, depths), increasing=True))
    return np.asarray(basis[:, 1:])


def _table(values: npt.ArrayLike) -> F64:
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] < 2 or table.shape[1] < 2:
        raise ValueError(f"need at least 2 groups x 2 depths, not {table.shape}")
    if not np.isfinite(table).all():
        raise ValueError("recall must be finite")
    return table
