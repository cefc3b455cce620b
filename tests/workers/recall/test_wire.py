from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from workers.recall import probes
from workers.recall.measure import measure
from workers.recall.result import Recall
from workers.recall.wire import recall_to_wire

CURVE = np.array([0.5, 0.2, 0.1, 0.3, 0.6])
K = len(CURVE)
LENGTH = 600


@pytest.fixture(scope="module")
def noise() -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.05, (64, K))


@pytest.fixture
def read(planted: Callable[..., Any], noise: np.ndarray) -> Callable[..., Recall]:
    """A measurement whose recall follows the planted curve, with noise between groups."""

    def make(groups: int, rung: str = "answer") -> Recall:
        def recall(number: int, depth: int, kind: str) -> float:
            if kind == "asked":
                return float(np.clip(CURVE[depth] + noise[number, depth], 0, 1))
            return {"closed": 0.02, "alone": 0.9}[kind]

        reader = planted(probes.facts(groups, K), recall, rung=rung)
        return measure(reader, probes.facts, LENGTH, probe="facts", groups=groups, depths=K)

    return make


def influence(like: np.ndarray, documents: int = 16) -> np.ndarray:
    """Norms whose density over the prompt follows a curve over depth."""
    at = np.linspace(0, 1, LENGTH)
    curve = np.interp(at, np.linspace(0, 0.9, K), like)
    return np.asarray(curve * np.random.default_rng(1).lognormal(0, 0.1, (documents, LENGTH)))


def test_the_wire_says_what_was_measured(read: Callable[..., Recall]) -> None:
    found = read(40)
    told = recall_to_wire(found, influence(CURVE), "narrow")
    np.testing.assert_allclose(told.probability, found.probability, rtol=1e-5)
    np.testing.assert_allclose(told.by_group, found.by_group, rtol=1e-5)
    assert told.log_probability is not None
    assert (told.groups, told.facts, told.verdict) == (40, K, "varies")
    assert told.p is not None
    assert told.p <= told.alpha
    assert told.spread == pytest.approx(np.ptp(found.probability), rel=1e-5)
    assert (told.controls.closed_book, told.controls.oracle) == (0.02, 0.9)
    assert told.controls.repeat == 0
    assert told.position == sorted(told.position)
    assert told.depth[-1] < 1
    assert told.sampling.half_width is not None
    assert told.sampling.at_double == pytest.approx(told.sampling.half_width / 2**0.5, rel=1e-4)


def test_the_band_of_differences_is_the_narrower_one(read: Callable[..., Recall]) -> None:
    told = recall_to_wire(read(40), influence(CURVE), "fixed")
    assert told.low is not None
    assert told.simultaneous_low is not None
    rows = zip(told.low, told.probability, told.high or [], strict=True)
    assert all(low <= value <= high for low, value, high in rows)
    rows = zip(told.simultaneous_low, told.probability, told.simultaneous_high or [], strict=True)
    assert all(low <= value <= high for low, value, high in rows)
    judged = read(40).flatness().curve
    assert judged is not None
    np.testing.assert_allclose(
        np.subtract(told.simultaneous_high or [], told.simultaneous_low),
        judged.contrast_high - judged.contrast_low,
        rtol=1e-4,
    )


def test_agreement_with_influence_needs_32_groups(read: Callable[..., Recall]) -> None:
    alike = recall_to_wire(read(32), influence(CURVE), "fixed").spearman_with_influence
    assert alike is not None
    assert alike.low <= alike.value <= alike.high
    assert alike.value == pytest.approx(1)
    against = recall_to_wire(read(32), influence(1 - CURVE), "fixed").spearman_with_influence
    assert against is not None
    assert against.high < 0
    few = recall_to_wire(read(31), influence(CURVE), "fixed")
    assert few.spearman_with_influence is None
    density = np.array(few.influence_density)
    assert (np.argsort(density) == np.argsort(CURVE)).all()


def test_below_16_groups_there_is_no_band_and_no_verdict(read: Callable[..., Recall]) -> None:
    told = recall_to_wire(read(15), influence(CURVE), "exhausted")
    assert told.verdict == "undecided"
    assert told.p is told.low is told.simultaneous_high is told.sampling.half_width is None


def test_texts_have_no_log_probability(read: Callable[..., Recall]) -> None:
    told = recall_to_wire(read(16, rung="text"), influence(CURVE), "fixed")
    assert told.log_probability is None
    assert told.rung == "text"
