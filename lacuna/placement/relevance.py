"""What a relevance score means, and the weight that it gives a chunk.

The objective sums weight x visibility. That is the expected value of a place only when weights are
proportional to the probability that the chunk holds the answer. A cosine or a reciprocal rank is no
probability: taken for one, near-equal scores let the shortest chunk win the best place.

| scale | weight | may length decide |
|---|---|---|
| `probability` | the score | yes |
| `logit` | sigmoid of the score | no: unless a calibration says so, its strength is unknown |
| `score` | hit curve at its rank, highest first | no |
| `distance`, `rank` | hit curve at its rank, lowest first | no |
| any, with a calibration | the calibrated probability | yes |

Where length may not decide, the order is that of chunks of one length: it depends on the ranks and
the curve alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from lacuna.contract.calibrations import RelevanceScale

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

HIT_CURVE = (0.8078, 0.0693, 0.0256, 0.0173, 0.0106, 0.0083, 0.0068)
"""How often the gold passage has rank 1, 2, .. 7 (`bench/hit_curve.py`); then as 1 / rank^2, which
lies within the measured intervals to rank 14.

1,327 questions of Natural Questions (Open) from Liu et al. (2024), "Lost in the Middle", BM25 over
their 1,314 gold passages. The small pool makes rank 1 better than a retriever over all of Wikipedia
would be: give your own curve or a calibration if you have labels.
"""
HIT_QUESTIONS = 1_327
"""Questions behind `HIT_CURVE`."""

NEAR_EQUAL = 0.05
"""Neighbouring scores closer than this share of their spread are called nearly equal."""
UNEQUAL_LENGTHS = 1.5
"""Ratio of the longest to the shortest chunk from which lengths are called unequal."""


@dataclass(frozen=True, eq=False)
class Relevance:
    """Weights of chunks with what they rest on."""

    weights: F64
    """Probability that the chunk holds the answer, up to a common factor, shape [m]."""
    by_length: bool
    """Whether length may decide between chunks. False: order as if all had one length."""
    basis: Literal["probability", "logit", "hit_curve", "calibration"]
    notes: tuple[str, ...] = ()
    """Sentences for the caller."""


def weigh(
    scores: F64,
    scale: RelevanceScale,
    *,
    lengths: I64 | None = None,
    hit_curve: F64 | None = None,
    calibration: Callable[[F64], F64] | None = None,
) -> Relevance:
    """Weights for the objective from scores on any scale.

    Args:
        scores: one a chunk, shape [m], finite.
        scale: see the module.
        lengths: tokens of each chunk, shape [m]; only for the note on near-equal scores.
        hit_curve: how often the answer is in the chunk of rank 1, 2, ..; default `HIT_CURVE`.
        calibration: from scores to probabilities (`score_calibration.Calibration`).

    Raises:
        ValueError: an unknown scale, a score that is not finite, or a probability outside 0..1.

    >>> weigh(np.array([0.71, 0.84, 0.71]), "score", hit_curve=np.array([0.6, 0.3, 0.1])).weights
    array([0.2, 0.6, 0.2])
    """
    if scale not in get_args(RelevanceScale):
        known = ", ".join(get_args(RelevanceScale))
        raise ValueError(f"relevance_scale is {scale!r}; it must be one of {known}")
    scores = np.asarray(scores, dtype=np.float64)
    if not np.isfinite(scores).all():
        raise ValueError("relevance must be finite")
    if calibration is not None:
        return Relevance(calibration(scores), True, "calibration")
    if scale == "probability":
        if scores.size and (float(scores.min()) < 0 or float(scores.max()) > 1):
            raise ValueError(
                "relevance of scale probability must lie between 0 and 1; "
                "use relevance_scale score for anything else"
            )
        return Relevance(scores, True, "probability")
    notes = near_equal(scores, lengths)
    if scale == "logit":
        return Relevance(expit(scores), False, "logit", notes)
    best_first = -scores if scale == "score" else scores
    return Relevance(rank_weights(best_first, hit_curve), False, "hit_curve", notes)


def rank_weights(lowest_first: F64, hit_curve: F64 | None = None) -> F64:
    """Hit curve at the rank of each value; ties share the mean of their ranks' weights.

    Args:
        lowest_first: shape [m], the best chunk has the lowest value.
        hit_curve: by rank, from 1; default `HIT_CURVE`. Beyond its end it falls as 1 / rank^2.

    Returns:
        Shape [m]. No chunk weighs more than one of a better rank.

    Raises:
        ValueError: the hit curve is empty, negative, or rises.
    """
    size = lowest_first.size
    table = np.cumsum(np.concatenate([[0.0], hits_by_rank(size, hit_curve)]))
    ranked = np.sort(lowest_first)
    last = np.searchsorted(ranked, lowest_first, side="right")
    before = np.searchsorted(ranked, lowest_first, side="left")
    weights: F64 = (table[last] - table[before]) / (last - before)
    return weights


def hits_by_rank(count: int, hit_curve: F64 | None = None) -> F64:
    """The hit curve at ranks 1 .. count. Raises ValueError as `rank_weights`."""
    curve = np.asarray(HIT_CURVE if hit_curve is None else hit_curve, dtype=np.float64)
    if curve.size == 0 or float(curve[-1]) < 0 or (np.diff(curve) > 0).any():
        raise ValueError("a hit curve must fall from rank to rank and not be negative")
    ranks = np.arange(1, count + 1)
    beyond = curve[-1] * (curve.size / ranks) ** 2
    hits: F64 = np.where(ranks <= curve.size, curve[np.minimum(ranks, curve.size) - 1], beyond)
    return hits


def near_equal(scores: F64, lengths: I64 | None) -> tuple[str, ...]:
    """A note when scores hardly differ while lengths do, else nothing.

    A pair of neighbours in rank is nearly equal when it differs by less than NEAR_EQUAL of the
    spread of all scores, or when all scores lie within a tenth of their largest size.
    """
    if lengths is None or scores.size < 2:
        return ()
    longest, shortest = int(lengths.max()), max(int(lengths.min()), 1)
    if longest < UNEQUAL_LENGTHS * shortest:
        return ()
    ranked = np.sort(scores)
    spread = float(ranked[-1] - ranked[0])
    close = int((np.diff(ranked) <= NEAR_EQUAL * spread).sum())
    if close == 0:
        return ()
    return (
        f"{close} of {scores.size - 1} neighbouring scores are nearly equal while lengths differ "
        f"from {shortest} to {longest} tokens: the order goes by rank, not by length; calibrated "
        "probabilities could weigh both",
    )
