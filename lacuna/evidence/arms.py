"""Several ways of doing a thing tried on the same questions: differences in pairs, and what to do.

Questions are what is drawn. Each arm is compared with the first one, the reference, on the
differences of its questions; questions differ far more from each other than arms do on one.

- Interval of one difference: Student's t. Hits and misses get one pseudo-question in favour of each
  side (Bonett & Price 2012, "Adjusted Wald confidence interval for a difference of binomial
  proportions based on paired data"): without them, arms that differ on none or two of 200 questions
  would seem certain to be equal.
- All differences together: `pairs.compare_pairs`, random signs, corrected for the number of arms.
- The curve over places: each question against its own mean over the arms, errors by question.

Coverage, false alarms and power: `bench/experiments.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri, stdtrit

from lacuna.evidence.pairs import MIN_PAIRS, Comparison, compare_pairs

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Decision = Literal["use", "no_difference", "not_enough"]

ALPHA = 0.04
"""Nominal level of the verdict, for all arms together. False alarms stay under 5% where the tests'
assumptions hold only roughly."""
RIGHT = 0.5
"""Score from which a question counts as right when flips are counted."""
DRAWS = 4000
MAX_PLACES = 10
"""Bins of the curve over places."""
LEAST_READINGS = 12
"""In each bin; with fewer there are fewer bins."""


@dataclass(frozen=True)
class Interval:
    """A number with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Arm:
    """One arm over all questions, compared with the reference.

    Attributes:
        mean: of the scores.
        difference: from the reference; exactly 0 where no question differs in its prompt.
        joint: the same with an interval that holds for all arms together.
        p: of the test, corrected for the number of arms; 1 for the reference.
        flips: share of questions that are right in one of the two and wrong in the other.
        changed: questions whose prompts differ.
    """

    mean: Interval
    difference: Interval
    joint: Interval
    p: float
    flips: float
    changed: int


@dataclass(frozen=True)
class Comparisons:
    """All arms, the reference first.

    Attributes:
        arms: one each.
        detectable: difference that is found with probability 80%, whichever arm has it; None
            with fewer questions than `MIN_PAIRS`.
        questions: that were compared.
    """

    arms: tuple[Arm, ...]
    detectable: float | None
    questions: int


@dataclass(frozen=True)
class Verdict:
    """What to do.

    Attributes:
        decision: `use`, `no_difference` or `not_enough`.
        arm: which one to use; None unless the decision is `use`.
        more: about how many more questions would decide; None unless `not_enough`.
    """

    decision: Decision
    arm: int | None
    more: int | None


def compare_arms(
    scores: F64, *, hits: bool, same: npt.NDArray[np.bool_] | None = None, seed: int = 0
) -> Comparisons:
    """Compare each arm with the first one.

    Args:
        scores: [n questions, m arms], in [0, 1], n >= 2.
        hits: whether every score is 0 or 1.
        same: [n, m], whether the prompt was the reference's; these scores are equal.
        seed: of the random signs.

    Raises:
        ValueError: fewer than two questions, or scores out of bounds.
    """
    rows = np.asarray(scores, dtype=np.float64)
    if rows.ndim != 2 or len(rows) < 2 or not ((rows >= 0) & (rows <= 1)).all():
        raise ValueError("scores must be questions x arms, in [0, 1], of at least two questions")
    count, arms = rows.shape
    alike = np.zeros(rows.shape, dtype=bool) if same is None else same.copy()
    alike[:, 0] = True
    changed = (~alike).sum(axis=0)
    differs = np.flatnonzero(changed)
    together = _together(rows, differs, hits=hits, seed=seed)
    right = rows >= RIGHT
    found = []
    for arm in range(arms):
        moved = rows[:, arm] - rows[:, 0]
        value = float(moved.mean())
        zero = Interval(0.0, 0.0, 0.0)
        difference, joint, p = zero, zero, 1.0
        if changed[arm]:
            difference = mean_interval(moved, hits=hits)
            joint, p = Interval(value, -1.0, 1.0), 1.0  # nothing is claimed of a few questions
            if together is not None and together.differences:
                one = together.differences[int(np.searchsorted(differs, arm))]
                joint, p = _bounded(value, one.low, one.high), one.p
        flips = float((right[:, arm] != right[:, 0]).mean())
        level = _level(rows[:, arm], hits=hits)
        found.append(Arm(level, difference, joint, p, flips, int(changed[arm])))
    detectable = None
    if count >= MIN_PAIRS:
        detectable = 0.0 if together is None else min(together.detectable, 1.0)
    return Comparisons(tuple(found), detectable, count)


def _together(rows: F64, differs: I64, *, hits: bool, seed: int) -> Comparison | None:
    """All arms that differ from the reference at once."""
    if not differs.size:
        return None
    first = np.repeat(rows[:, :1], differs.size, axis=1)
    second = rows[:, differs]
    if hits:
        none, all_ = np.zeros((1, differs.size)), np.ones((1, differs.size))
        first, second = np.vstack([first, none, all_]), np.vstack([second, all_, none])
    names = [str(arm) for arm in differs.tolist()]
    if len(rows) < MIN_PAIRS:
        return None
    return compare_pairs(first, second, names, alpha=ALPHA, draws=DRAWS, seed=seed)


def mean_interval(moved: npt.ArrayLike, *, hits: bool) -> Interval:
    """Mean of paired differences with its 95% interval.

    Args:
        moved: [n], in [-1, 1].
        hits: whether they are -1, 0 or 1: one pseudo-question is then added on either side.

    >>> round(mean_interval([0.0] * 198, hits=True).high, 4)
    0.014
    """
    values = np.asarray(moved, dtype=np.float64)
    value = float(values.mean())
    if hits:
        values = np.concatenate([values, [-1.0, 1.0]])
    found = t_interval(values)
    return _bounded(value, found.low, found.high)


def t_interval(values: F64) -> Interval:
    """Mean of independent values, [n >= 2], with Student's 95% interval."""
    count, centre = len(values), float(values.mean())
    half = float(stdtrit(count - 1, 0.975) * values.std(ddof=1)) / math.sqrt(count)
    return Interval(centre, centre - half, centre + half)


def _bounded(value: float, low: float, high: float) -> Interval:
    return Interval(value, max(-1.0, min(low, value)), min(1.0, max(high, value)))


def _level(scores: F64, *, hits: bool) -> Interval:
    """Mean score; Wilson's interval for hits, else Student's t."""
    if not hits:
        found = t_interval(scores)
        return Interval(found.value, max(0.0, found.low), min(1.0, found.high))
    value, count = float(scores.mean()), len(scores)
    z2 = float(ndtri(0.975)) ** 2
    centre = (value + z2 / (2 * count)) / (1 + z2 / count)
    inner = value * (1 - value) / count + z2 / (4 * count**2)
    half = math.sqrt(z2 * inner) / (1 + z2 / count)
    return Interval(value, max(0.0, min(centre - half, value)), min(1.0, max(centre + half, value)))


def decide(found: Comparisons, smallest: float) -> Verdict:
    """What to do, from intervals that hold for all arms together.

    | decision | when |
    |---|---|
    | `no_difference` | every arm is within `smallest` of the reference |
    | `use` an arm | it is better than the reference; of several, the one with the highest mean |
    | `use` the reference | no arm is better by `smallest`, and some are worse |
    | `not_enough` | otherwise |

    Args:
        found: of `compare_arms`.
        smallest: the smallest difference that matters, d.
    """
    others = range(1, len(found.arms))
    joint = [arm.joint for arm in found.arms]
    if found.detectable is None:
        return Verdict("not_enough", None, MIN_PAIRS - found.questions)
    if all(-smallest < joint[arm].low and joint[arm].high < smallest for arm in others):
        return Verdict("no_difference", None, None)
    better = [arm for arm in others if joint[arm].low > 0]
    if better:
        return Verdict("use", max(better, key=lambda arm: found.arms[arm].mean.value), None)
    if all(joint[arm].high < smallest for arm in others) and any(j.high < 0 for j in joint):
        return Verdict("use", 0, None)
    return Verdict("not_enough", None, _more(found, smallest))


def _more(found: Comparisons, smallest: float) -> int:
    """Questions after which intervals leave out zero or lie within the smallest effect, with
    probability 80%, if the true differences are those seen."""
    seen = [abs(arm.difference.value) for arm in found.arms[1:]]
    room = min(max(value, smallest - value) for value in seen)
    needed = found.questions * ((found.detectable or 0.0) / room) ** 2
    return max(1, math.ceil(needed) - found.questions)


@dataclass(frozen=True, eq=False)
class Places:
    """Score by the place of the chunk that holds the answer.

    Attributes:
        depth: middle of each bin, 0 the first place, 1 the last; [b].
        value, low, high: mean score with its 95% interval; [b].
        readings: in each bin; [b].
        questions: that stood at different places.
    """

    depth: F64
    value: F64
    low: F64
    high: F64
    readings: I64
    questions: int


def by_place(depth: F64, scores: F64) -> Places | None:
    """How the score depends on the place, with each question compared with itself.

    score[q, arm] = level of q + effect of the place; the effects are found by least squares and
    added to the mean score. Errors are clustered by question.

    Args:
        depth: [n, m], in [0, 1]: where the answer stands in each arm.
        scores: [n, m].

    Returns:
        None with fewer than `MIN_PAIRS` questions at different places, or too few readings for two
        bins.
    """
    moved = np.ptp(depth, axis=1) > 0
    at, rows = depth[moved], scores[moved]
    count = len(at)
    bins = _bins(at) if count >= MIN_PAIRS else None
    if bins is None:
        return None
    number, middles = bins
    width = len(middles)
    design = (number[:, :, None] == np.arange(width)).astype(float)
    inner = design - design.mean(axis=1, keepdims=True)
    left = rows - rows.mean(axis=1, keepdims=True)
    flat = inner.reshape(-1, width)
    inverse = np.linalg.pinv(flat.T @ flat)
    effect = inverse @ (flat.T @ left.ravel())
    residual = (left.ravel() - flat @ effect).reshape(left.shape)
    # Effects are known up to a constant: their mean over the readings is zero.
    centring = np.eye(width) - design.mean(axis=(0, 1))
    pull = (inner * residual[:, :, None]).sum(axis=1) @ inverse @ centring.T
    pull += (rows.mean(axis=1) - rows.mean())[:, None] / count
    error = np.sqrt(np.square(pull).sum(axis=0) * count / (count - 1))
    value = rows.mean() + centring @ effect
    half = float(stdtrit(count - 1, 0.975)) * error
    low, high, clipped = (np.clip(v, 0.0, 1.0) for v in (value - half, value + half, value))
    return Places(middles, clipped, low, high, design.sum(axis=(0, 1)).astype(np.int64), count)


def _bins(depth: F64) -> tuple[I64, F64] | None:
    """Bin of each reading and the middles of the bins: places as they are where there are few of
    them, else equal stretches; none has fewer than LEAST_READINGS."""
    for width in range(MAX_PLACES, 1, -1):
        number = np.minimum((depth * width).astype(np.int64), width - 1)
        count = np.bincount(number.ravel(), minlength=width)
        if count.min() >= LEAST_READINGS:
            total = np.bincount(number.ravel(), weights=depth.ravel(), minlength=width)
            return number, np.asarray(total / count)
    return None
