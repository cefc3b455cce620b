"""From scores to probabilities: a calibration fitted on labelled chunks, with its reliability.

Two families: `logistic` (Platt 1999), two numbers and safe with few labels, and `isotonic`
(Zadrozny & Elkan 2002), any rising curve, for some hundred labels and more. Reliability is
cross-validated: each label is judged by a calibration that did not see its fold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, stdtrit

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Family = Literal["logistic", "isotonic"]

MIN_LABELS = 20
"""Fewest labels of each kind, answer in the chunk and not."""
ISOTONIC_LABELS = 300
"""Chunks that hold the answer from which `auto` takes isotonic."""
BINS = 5
FOLDS = 5
_BLOCKS = 40
"""Of questions, left out one by one for the interval."""
_RIDGE = 1e-3
"""Pull of the slope towards zero, so that labels that a score separates have a finite fit."""


@dataclass(frozen=True)
class Reliability:
    """How far the probabilities can be trusted, out of sample."""

    brier: float
    """Mean squared difference of probability and label; 0 is perfect."""
    brier_base: float
    """The same for the base rate alone."""
    calibration_error: float
    """Root mean squared distance of stated and observed frequency over BINS bins of equal count."""
    calibration_error_low: float
    """Lower end of its 95% interval, by jackknife over questions."""
    calibration_error_high: float
    labels: int
    positives: int
    questions: int


@dataclass(frozen=True)
class Calibration:
    """A rising map from scores to probabilities. Plain numbers: `to_dict` is JSON."""

    family: Family
    x: tuple[float, ...]
    """Logistic: (centre, scale) of the scores. Isotonic: knots, rising."""
    y: tuple[float, ...]
    """Logistic: (intercept, slope) on the scaled scores. Isotonic: probability at each knot."""
    reliability: Reliability

    def __call__(self, scores: F64) -> F64:
        """Probabilities of scores, shape of `scores`; constant beyond the scores that were seen
        (isotonic)."""
        values = np.asarray(scores, dtype=np.float64)
        found: F64
        if self.family == "logistic":
            found = expit(self.y[0] + self.y[1] * (values - self.x[0]) / self.x[1])
        else:
            found = np.interp(values, self.x, self.y)
        return found

    def to_dict(self) -> dict[str, Any]:
        """As JSON types; `from_dict` reads it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Calibration:
        """The calibration that `to_dict` wrote. Raises KeyError or TypeError on anything else."""
        reliability = Reliability(**stored["reliability"])
        return cls(stored["family"], tuple(stored["x"]), tuple(stored["y"]), reliability)


def fit(
    scores: F64,
    labels: NDArray[np.bool_],
    questions: I64 | None = None,
    *,
    family: Family | Literal["auto"] = "auto",
    higher_is_better: bool = True,
    seed: int = 0,
) -> Calibration:
    """Fit a calibration and measure its reliability by cross-validation over questions.

    Args:
        scores: one a chunk, finite, shape [N].
        labels: whether the chunk holds the answer, shape [N].
        questions: which question each chunk belongs to, shape [N]; chunks of one question share a
            fold and are drawn together. Default: each chunk its own.
        family: `auto` takes isotonic from ISOTONIC_LABELS positive labels on.
        higher_is_better: False for distances and ranks.
        seed: of the folds.

    Raises:
        ValueError: shapes differ, a score is not finite, too few labels of a kind, one question,
            or scores that do not rise with the labels.
    """
    scores = np.asarray(scores, dtype=np.float64)
    truth = np.asarray(labels, dtype=np.float64)
    group = (
        np.arange(scores.size)
        if questions is None
        else np.unique(questions, return_inverse=True)[1]
    )
    _check(scores, truth, group)
    chosen: Family = "isotonic" if truth.sum() >= ISOTONIC_LABELS else "logistic"
    if family != "auto":
        chosen = family
    make = _logistic if chosen == "logistic" else _isotonic
    direction = 1.0 if higher_is_better else -1.0
    rng = np.random.default_rng(seed)
    count = int(group.max()) + 1
    fold = rng.permutation(count)[group] % min(FOLDS, count)
    unseen = np.empty(scores.size)
    for one in range(int(fold.max()) + 1):
        out = fold == one
        unseen[out] = _apply(make, direction * scores[~out], truth[~out], direction * scores[out])
    x, y = make(direction * scores, truth)
    if chosen == "logistic":
        if y[1] <= 0:
            raise ValueError("the scores do not rise with the labels: is the direction right?")
        x = (direction * x[0], direction * x[1])
    elif direction < 0:
        x, y = tuple(-v for v in reversed(x)), tuple(reversed(y))
    return Calibration(chosen, x, y, _reliability(unseen, truth, group, fold))


_Fit = Callable[[F64, F64], tuple[tuple[float, ...], tuple[float, ...]]]


def _check(scores: F64, truth: F64, group: I64) -> None:
    if scores.ndim != 1 or scores.shape != truth.shape or scores.shape != group.shape:
        raise ValueError("scores, labels and questions must have one shape [N]")
    if not np.isfinite(scores).all():
        raise ValueError("scores must be finite")
    least = int(min(truth.sum(), (1 - truth).sum()))
    if least < MIN_LABELS:
        raise ValueError(
            f"{least} labels of the rarer kind; a calibration needs at least {MIN_LABELS} chunks "
            "with the answer and as many without"
        )
    if int(group.max()) == 0:
        raise ValueError("all labels belong to one question")


def _apply(make: _Fit, scores: F64, truth: F64, asked: F64) -> F64:
    if truth.min() == truth.max():
        return np.full(asked.size, truth[0])
    x, y = make(scores, truth)
    none = Reliability(0, 0, 0, 0, 0, 0, 0, 0)
    return Calibration("logistic" if make is _logistic else "isotonic", x, y, none)(asked)


def _logistic(scores: F64, truth: F64) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Maximum likelihood of intercept and slope on standardised scores, with Platt's targets
    (n+ + 1) / (n+ + 2) and 1 / (n- + 2) instead of 1 and 0."""
    from scipy.optimize import minimize  # slow to import, and placing needs none of it

    centre, scale = float(scores.mean()), float(scores.std()) or 1.0
    z = (scores - centre) / scale
    many, few = float(truth.sum()), float((1 - truth).sum())
    target = np.where(truth > 0, (many + 1) / (many + 2), 1 / (few + 2))

    def loss(beta: F64) -> tuple[float, F64]:
        eta = beta[0] + beta[1] * z
        value = float((np.logaddexp(0, eta) - target * eta).mean() + _RIDGE * beta[1] ** 2 / 2)
        error = expit(eta) - target
        return value, np.array([error.mean(), (error * z).mean() + _RIDGE * beta[1]])

    found = minimize(loss, np.zeros(2), jac=True, method="BFGS").x
    return (centre, scale), (float(found[0]), float(found[1]))


def _isotonic(scores: F64, truth: F64) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Rising step function, linear between the middles of its steps."""
    from scipy.optimize import isotonic_regression  # see `_logistic`

    values, inverse, count = np.unique(scores, return_inverse=True, return_counts=True)
    mean = np.bincount(inverse, truth) / count
    fitted = isotonic_regression(mean, weights=count).x
    starts = np.flatnonzero(np.concatenate([[True], np.diff(fitted) > 0]))
    ends = np.concatenate([starts[1:], [fitted.size]])
    middle = np.add.reduceat(values * count, starts) / np.add.reduceat(count, starts)
    # A step that is 0 or 1 throughout is certain only as far as its labels go (Laplace).
    size = np.add.reduceat(count, starts)
    level = np.clip(fitted[ends - 1], 1 / (size + 2), 1 - 1 / (size + 2))
    return tuple(middle.tolist()), tuple(np.maximum.accumulate(level).tolist())


def _reliability(stated: F64, truth: F64, group: I64, fold: I64) -> Reliability:
    """Brier score, and the calibration error with a delete-a-group jackknife over questions."""
    whole = _squared_error(stated, truth, group, fold)
    block = np.random.default_rng(0).permutation(int(group.max()) + 1)[group] % _BLOCKS
    blocks = np.unique(block)
    without = [
        _squared_error(stated[keep], truth[keep], group[keep], fold[keep])
        for keep in (block != one for one in blocks)
    ]
    count = blocks.size
    error = float(np.sqrt((count - 1) * np.var(without)))
    half = float(stdtrit(count - 1, 0.975)) * error
    base = float(truth.mean())
    root = np.sqrt(np.maximum([whole, whole - half, whole + half], 0.0)).tolist()
    return Reliability(
        brier=float(((stated - truth) ** 2).mean()),
        brier_base=base * (1 - base),
        calibration_error=root[0],
        calibration_error_low=root[1],
        calibration_error_high=root[2],
        labels=truth.size,
        positives=int(truth.sum()),
        questions=int(group.max()) + 1,
    )


def _squared_error(stated: F64, truth: F64, group: I64, fold: I64) -> float:
    """Mean squared gap of stated and observed frequency over bins, without the bins' own noise.

    Kumar, Liang & Ma (2019), "Verified Uncertainty Calibration": the squared gap of a bin less its
    variance is unbiased. The variance is clustered by question. Folds are judged one by one, since
    each has a map of its own.
    """
    total = 0.0
    for one in np.unique(fold):
        here = np.flatnonzero(fold == one)
        here = here[np.argsort(stated[here], kind="stable")]
        for part in np.array_split(here, BINS):
            if part.size < 2:
                continue
            gap = float((stated[part] - truth[part]).mean())
            spread = stated[part] - truth[part] - gap
            sums = np.bincount(np.unique(group[part], return_inverse=True)[1], spread)
            clusters = max(sums.size, 2)
            noise = float(sums @ sums) / part.size**2 * clusters / (clusters - 1)
            total += part.size * (gap**2 - noise)
    return total / truth.size
