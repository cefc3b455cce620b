"""Calibrations: right on what they can fit, honest about what they cannot."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.special import expit

from lacuna.placement.score_calibration import BINS, Calibration, fit


def labelled(
    questions: int, rng: np.random.Generator, slope: float = 1.5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    scores = rng.normal(0, 1, questions * 10)
    labels = rng.random(scores.size) < expit(-1.2 + slope * scores)
    return scores, labels, np.repeat(np.arange(questions), 10)


@pytest.mark.parametrize("family", ["logistic", "isotonic"])
def test_planted_probabilities_are_found(family: str) -> None:
    scores, labels, questions = labelled(1_000, np.random.default_rng(0))
    found = fit(scores, labels, questions, family=family)  # type: ignore[arg-type]
    at = np.linspace(-2, 2, 30)
    np.testing.assert_allclose(found(at), expit(-1.2 + 1.5 * at), atol=0.06)
    assert found.reliability.brier < found.reliability.brier_base
    assert found.reliability.labels == 10_000
    assert found.reliability.questions == 1_000


@pytest.mark.parametrize("family", ["logistic", "isotonic"])
def test_distances_fall(family: str) -> None:
    scores, labels, questions = labelled(300, np.random.default_rng(1))
    up = fit(scores, labels, questions, family=family)  # type: ignore[arg-type]
    down = fit(-scores, labels, questions, family=family, higher_is_better=False)  # type: ignore[arg-type]
    at = np.linspace(-2, 2, 9)
    np.testing.assert_allclose(up(at), down(-at), atol=1e-6)


def test_auto_takes_isotonic_with_many_labels_only() -> None:
    rng = np.random.default_rng(2)
    assert fit(*labelled(30, rng)).family == "logistic"
    assert fit(*labelled(300, rng)).family == "isotonic"


@pytest.mark.parametrize("family", ["logistic", "isotonic"])
def test_it_survives_json(family: str) -> None:
    found = fit(*labelled(50, np.random.default_rng(3)), family=family)  # type: ignore[arg-type]
    again = Calibration.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again == found


def test_scores_that_separate_the_labels_have_a_finite_fit() -> None:
    scores = np.arange(100.0)
    found = fit(scores, scores >= 50, family="logistic")
    assert np.isfinite(found.y).all()
    assert found(np.array([0.0]))[0] < 0.1
    assert found(np.array([99.0]))[0] > 0.9


def test_isotonic_is_never_certain() -> None:
    scores = np.arange(100.0)
    found = fit(scores, scores >= 50, family="isotonic")
    assert found(np.array([-5.0]))[0] > 0
    assert found(np.array([500.0]))[0] < 1


@pytest.mark.parametrize(
    ("scores", "labels", "questions", "message"),
    [
        (np.arange(50.0), np.arange(50) < 5, None, "at least 20"),
        (np.arange(50.0), np.arange(49) < 25, None, "one shape"),
        (np.full(50, np.nan), np.arange(50) < 25, None, "finite"),
        (np.arange(50.0), np.arange(50) >= 25, np.zeros(50, int), "one question"),
        (np.arange(50.0), np.arange(50) < 25, None, "direction"),
    ],
)
def test_bad_labels_are_refused(
    scores: np.ndarray, labels: np.ndarray, questions: np.ndarray | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fit(scores, labels, questions, family="logistic")


@pytest.mark.parametrize("bent", [False, True])
def test_the_interval_of_the_calibration_error_covers(*, bent: bool) -> None:
    """A logistic fit of logistic data, and of a step that it cannot follow."""
    rng = np.random.default_rng(4)
    asked = rng.normal(0, 1, 10_000)

    def truth(scores: np.ndarray) -> np.ndarray:
        return 0.05 + 0.8 * (scores > 0.5) if bent else expit(-1.2 + 1.5 * scores)

    covered, draws = 0, 15
    for _ in range(draws):
        scores, _, questions = labelled(100, rng)
        labels = rng.random(scores.size) < truth(scores)
        found = fit(scores, labels, questions, family="logistic")
        stated = found(asked)
        bins = np.array_split(np.argsort(stated, kind="stable"), BINS)
        gaps = [stated[one].mean() - truth(asked[one]).mean() for one in bins]
        error = float(np.sqrt(np.mean(np.square(gaps))))
        low, high = (
            found.reliability.calibration_error_low,
            found.reliability.calibration_error_high,
        )
        covered += low <= error <= high
        if bent:
            assert high > 0.04
    assert covered >= draws - 2
