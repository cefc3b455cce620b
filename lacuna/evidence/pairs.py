"""Do two sets of measurements differ? Paired where they share documents, unpaired where not.

Documents differ from each other far more than versions of a model do on the same document, so a
comparison in pairs sees what one of two separate curves cannot.

- Paired: one random sign a document on all of its differences at once, largest |t| over the
  statistics. Exact when the two versions could be swapped; studentising makes it hold for skewed
  differences too, in large samples.
- Unpaired: documents shuffled between the two sets, largest Welch |t| (Chung and Romano, Ann.
  Statist. 41, 2013: studentised permutations also hold for unequal variances).

Probabilities of the largest |t| are corrected for all statistics of one comparison (Westfall and
Young's single step). `holm` corrects over several comparisons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri, stdtrit

from lacuna.evidence.summaries import TENTHS, Summaries, shared

F64 = npt.NDArray[np.float64]
Verdict = Literal["difference", "no_difference", "undecided"]

ALPHA = 0.025
"""Nominal level. False alarms stay under 5% where the tests' assumptions hold only roughly."""
MARGIN = 0.05
"""Five points of mass: a paired comparison too coarse to see that is undecided, not equal."""
GROUPS_MARGIN = 0.10
"""The same for other documents, which differ more: 64 on each side see ten points, 32 do not."""
POWER = 0.8
MIN_PAIRS = 12
"""Shared documents, or documents on each side, below which nothing is claimed."""
TOLERANCE = 0.01
"""A point of mass: smaller changes raise no alert, however certain."""


@dataclass(frozen=True)
class Difference:
    """Second minus first, for one statistic.

    Attributes:
        name: of the statistic.
        value: mean difference.
        low: lower end of an interval that holds for all statistics of the comparison together.
        high: its upper end.
        p: probability of so large a |t| in any of the statistics, without a difference.
        detectable: difference that is found with probability `POWER`.
    """

    name: str
    value: float
    low: float
    high: float
    p: float
    detectable: float


@dataclass(frozen=True)
class Comparison:
    """A comparison of two sets.

    Attributes:
        verdict: `difference`; `no_difference`: none found, and one of `margin` in any statistic
            would have been found with probability `POWER`; else `undecided`.
        paired: whether documents were shared.
        documents: pairs, or documents on the smaller side.
        differences: one a statistic.
        alpha: level of the test, of the comparison as a whole.
        margin: see `verdict`.
    """

    verdict: Verdict
    paired: bool
    documents: int
    differences: tuple[Difference, ...]
    alpha: float
    margin: float

    @property
    def p(self) -> float:
        """Probability of the most conspicuous statistic, corrected for all of them."""
        return min((difference.p for difference in self.differences), default=1.0)

    @property
    def detectable(self) -> float:
        """Smallest difference found with probability `POWER` in whichever statistic it lies."""
        return max((difference.detectable for difference in self.differences), default=np.inf)


def compare_pairs(
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    names: Sequence[str],
    *,
    alpha: float = ALPHA,
    margin: float = MARGIN,
    draws: int = 4000,
    seed: int = 0,
    steps: npt.ArrayLike = 0.0,
) -> Comparison:
    """Compare two versions that read the same documents.

    Args:
        first: F64[D, m], m statistics of each document.
        second: F64[D, m], the same documents in the same order.
        names: of the m statistics.
        alpha: level of the comparison.
        margin: in the units of the statistics; see `Comparison`.
        draws: of random signs.
        seed: of the draws.
        steps: F64[m], the least by which a statistic of one document can move where it is a share
            of few right or wrong answers. Intervals reckon with two more documents that moved by a
            step, one up and one down, and are at least as wide as Student's: where none moved by
            chance, the interval is not empty.
    """
    a, b = _rows(first, names), _rows(second, names)
    if a.shape != b.shape:
        raise ValueError(f"pairs need the same documents, not shapes {a.shape} and {b.shape}")
    moved = b - a
    count = len(moved)
    if count < MIN_PAIRS:
        return Comparison("undecided", True, count, (), alpha, margin)
    mean, square = moved.mean(axis=0), np.square(moved).mean(axis=0)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(draws, count))
    flipped = np.abs(_t(signs @ moved / count, square, count)).max(axis=1)
    seen = np.abs(_t(mean, square, count))
    variance = np.maximum(square - np.square(mean), 0.0) + 2 * np.square(steps) / count
    error = np.sqrt(variance / (count - 1))
    least = _least_critical(steps, len(names), alpha, count - 1)
    return _conclude(
        mean, error, seen, flipped, names, alpha, margin, count, paired=True, least=least
    )


def compare_groups(
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    names: Sequence[str],
    *,
    alpha: float = ALPHA,
    margin: float = GROUPS_MARGIN,
    draws: int = 4000,
    seed: int = 0,
    steps: npt.ArrayLike = 0.0,
) -> Comparison:
    """Compare two sets that read different documents of the same kind.

    Args:
        first: F64[D1, m], m statistics of each document.
        second: F64[D2, m].
        names: of the m statistics.
        alpha: level of the comparison.
        margin: in the units of the statistics; see `Comparison`.
        draws: of random partitions.
        seed: of the draws.
        steps: as for `compare_pairs`.
    """
    a, b = _rows(first, names), _rows(second, names)
    count = min(len(a), len(b))
    if count < MIN_PAIRS:
        return Comparison("undecided", False, count, (), alpha, margin)
    both = np.concatenate([a, b])
    both = both - both.mean(axis=0)
    generator = np.random.default_rng(seed)
    chosen = np.zeros((draws + 1, len(both)))
    chosen[0, len(a) :] = 1.0
    order = generator.random((draws, len(both))).argsort(axis=1)
    np.put_along_axis(chosen[1:], order[:, : len(b)], 1.0, axis=1)
    difference, error = _welch(both, chosen, len(b))
    t = np.abs(np.divide(difference, error, out=np.zeros_like(error), where=error > 1e-12))
    more = 2 * np.square(steps) * (1 / len(a) ** 2 + 1 / len(b) ** 2)
    widened = np.sqrt(np.square(error[0]) + more)
    return _conclude(
        difference[0],
        widened,
        t[0],
        t[1:].max(axis=1),
        names,
        alpha,
        margin,
        count,
        paired=False,
        least=_least_critical(steps, len(names), alpha, count - 1),
    )


def compare(first: Summaries, second: Summaries, *, alpha: float = ALPHA) -> Comparison:
    """Compare two stored profiles: masses of tenths, in pairs where they share enough documents."""
    names = [f"tenth_{number}" for number in range(1, TENTHS + 1)]
    a, b = shared(first, second)
    if len(a) >= MIN_PAIRS:
        return compare_pairs(a.tenths, b.tenths, names, alpha=alpha)
    return compare_groups(first.tenths, second.tenths, names, alpha=alpha)


@dataclass(frozen=True)
class Drift:
    """What a monitor says of two profiles that read the same documents.

    Attributes:
        alert: whether anything moved by more than the tolerance, beyond chance.
        moved: those statistics, the largest |value| first.
        comparison: all of them.
    """

    alert: bool
    moved: tuple[Difference, ...]
    comparison: Comparison


def drift(
    before: Summaries,
    after: Summaries,
    *,
    stretch: tuple[float, float] = (0.2, 0.8),
    tolerance: float = TOLERANCE,
    alpha: float = ALPHA,
) -> Drift:
    """Has a model's influence moved, on the documents that both profiles read?

    Looks at the masses of tenths, at the mass on a stretch and at the log of the total influence.
    A change counts when it is certain (corrected for all of them) and larger than the tolerance.

    Args:
        before: summaries of the reference.
        after: summaries of the present.
        stretch: shares of the prompt, e.g. the reference's dead zone: its mean density is its mass
            divided by its width.
        tolerance: in points of mass, and ten times that in logs of total influence.
        alpha: level of the alert as a whole.
    """
    a, b = shared(before, after)
    names = [*(f"tenth_{number}" for number in range(1, TENTHS + 1)), "stretch", "log_total"]
    scale = np.ones(len(names))
    scale[-1] = 10.0
    rows = [
        np.column_stack([side.tenths, side.mass(*stretch), np.log(side.totals)]) for side in (a, b)
    ]
    found = compare_pairs(rows[0], rows[1], names, alpha=alpha)
    bounds = zip(found.differences, scale * tolerance, strict=False)
    moved = [one for one, least in bounds if one.p <= alpha and abs(one.value) >= least]
    moved.sort(key=lambda one: -abs(one.value))
    return Drift(bool(moved), tuple(moved), found)


def holm(p: npt.ArrayLike) -> F64:
    """Holm's corrected probabilities of several tests, in their order.

    Args:
        p: F64[m], in [0, 1].

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    raw = np.asarray(p, dtype=np.float64)
    order = np.argsort(raw, kind="stable")
    steps = np.maximum.accumulate(raw[order] * np.arange(len(raw), 0, -1))
    out = np.empty_like(raw)
    out[order] = np.minimum(steps, 1.0)
    return out


def _conclude(
    mean: F64,
    error: F64,
    seen: F64,
    null: F64,
    names: Sequence[str],
    alpha: float,
    margin: float,
    count: int,
    *,
    paired: bool,
    least: float,
) -> Comparison:
    critical = max(float(np.quantile(null, 1 - alpha)), least)
    p = (1 + (null[:, None] >= seen - 1e-9).sum(axis=0)) / (len(null) + 1)
    half, detectable = critical * error, (critical + ndtri(POWER)) * error
    rows = zip(names, mean, half, p, detectable, strict=True)
    differences = tuple(
        Difference(name, float(m), float(m - h), float(m + h), float(q), float(d))
        for name, m, h, q, d in rows
    )
    verdict: Verdict = "undecided"
    if p.min() <= alpha:
        verdict = "difference"
    elif detectable.max() <= margin:
        verdict = "no_difference"
    return Comparison(verdict, paired, count, differences, alpha, margin)


def _least_critical(steps: npt.ArrayLike, statistics: int, alpha: float, freedom: int) -> float:
    """Least critical |t| of intervals of right or wrong answers: where few of them changed, signs
    and partitions hardly vary, and theirs is far too small. Student's, by Bonferroni."""
    if not np.any(steps):
        return 0.0
    return float(stdtrit(freedom, 1 - alpha / (2 * statistics)))


def _t(mean: F64, square: F64, count: int) -> F64:
    error = np.sqrt(np.maximum(square - np.square(mean), 0.0) / (count - 1))
    known = error > 1e-9 * np.sqrt(square)
    # Differences that all agree are certain beyond what signs can show.
    sure = np.where(square > 0, 1e9 * np.sign(mean), 0.0) * np.ones_like(error)
    return np.asarray(np.divide(mean, error, out=sure, where=known))


def _welch(rows: F64, chosen: F64, size: int) -> tuple[F64, F64]:
    """Difference of means and its standard error for each choice of the second set."""
    rest = len(rows) - size
    total, squares = rows.sum(axis=0), np.square(rows).sum(axis=0)
    inside, inside_square = chosen @ rows, chosen @ np.square(rows)
    second, first = inside / size, (total - inside) / rest
    variance = (inside_square / size - np.square(second)) / (size - 1)
    variance += ((squares - inside_square) / rest - np.square(first)) / (rest - 1)
    return second - first, np.sqrt(np.maximum(variance, 0.0))


def _rows(values: npt.ArrayLike, names: Sequence[str]) -> F64:
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != len(names) or not np.isfinite(rows).all():
        raise ValueError(f"need finite documents x {len(names)} statistics, not {rows.shape}")
    return rows


# Recall, depth by depth and as a whole. Groups of facts are what is drawn independently. Two
# measurements with the same draw asked the same groups, so each group is compared with itself.

RECALL_MARGIN = 0.10
"""Ten points of probability: a comparison too coarse to see that at some depth is undecided."""
RECALL_TOLERANCE = 0.05
"""Five points of probability: a smaller fall raises no alert, however certain."""


def compare_recall(
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    *,
    paired: bool,
    alpha: float = ALPHA,
    step: float = 0.0,
) -> Comparison:
    """Compare the recall of two measurements: at each depth, and the mean over depths.

    Args:
        first: F64[G, k], mean probability of the right answer of each group at each of k depths.
        second: F64[G', k], the same depths; the same groups in the same order if `paired`.
        paired: whether both asked the same groups.
        alpha: level, of all statistics together.
        step: 1 / n where a group's value is the share of n right texts; 0 for probabilities.

    Returns:
        Statistics `depth_1` to `depth_k` and `level`; undecided below 12 groups.
    """
    a, b = _recall_statistics(first), _recall_statistics(second)
    depths = a.shape[1] - 1
    names = [*(f"depth_{number}" for number in range(1, depths + 1)), "level"]
    steps = [*[step] * depths, step / depths]
    if paired:
        count = min(len(a), len(b))  # one of them may have needed more groups
        return compare_pairs(
            a[:count], b[:count], names, alpha=alpha, margin=RECALL_MARGIN, steps=steps
        )
    return compare_groups(a, b, names, alpha=alpha, margin=RECALL_MARGIN, steps=steps)


def recall_falls(found: Comparison) -> tuple[Difference, ...]:
    """Where recall fell beyond chance and by more than the tolerance, the deepest fall first."""
    fallen = [
        one
        for one in found.differences
        if one.p <= found.alpha and one.high < 0 and one.value <= -RECALL_TOLERANCE
    ]
    return tuple(sorted(fallen, key=lambda one: one.value))


def _recall_statistics(groups: npt.ArrayLike) -> npt.NDArray[np.float64]:
    rows = np.asarray(groups, dtype=np.float64)
    return np.column_stack([rows, rows.mean(axis=1)])
