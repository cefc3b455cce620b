"""The verdict on depth: exact small cases, false alarms, power, controls."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from lacuna.evidence import flatness as subject
from lacuna.evidence.flatness import Controls, flatness


def table(groups, depths, rng, effect=0.0, hits=False, base=0.0):
    """Logits: level of the group, effect of depth, correlated residuals as on real probes."""
    level = rng.normal(base, 1.8, (groups, 1))
    residual = np.empty((groups, depths))
    residual[:, 0] = rng.normal(size=groups)
    for depth in range(1, depths):
        step = np.sqrt(1 - 0.4**2) * rng.normal(size=groups)
        residual[:, depth] = 0.4 * residual[:, depth - 1] + step
    at = np.linspace(0, 1, depths)
    logits = level + 0.52 * residual + effect * (1 - 4 * at * (1 - at))
    return (logits > 0).astype(float) if hits else 1 / (1 + np.exp(-logits))


def test_flips_are_those_of_every_sign():
    rows = np.random.default_rng(0).uniform(size=(8, 4))
    contrasts = (rows - rows.mean(axis=1, keepdims=True)) @ subject._trends(4)

    def hotelling(c):
        m = c.mean(axis=0)
        return m @ np.linalg.solve(c.T @ c / len(c), m)

    seen = hotelling(contrasts)
    every = [hotelling(contrasts * np.array(s)[:, None]) for s in product((-1, 1), repeat=8)]
    exact = np.mean(np.array(every) >= seen - 1e-12)
    assert subject.smooth_test(rows, draws=20_000) == pytest.approx(exact, abs=0.015)


def test_the_trends_are_orthonormal_and_blind_to_level():
    for depths in (2, 3, 5, 9):
        basis = subject._trends(depths)
        assert basis.T @ basis == pytest.approx(np.eye(basis.shape[1]), abs=1e-12)
        assert basis.sum(axis=0) == pytest.approx(np.zeros(basis.shape[1]), abs=1e-12)


def test_without_clusters_the_error_is_the_classical_one():
    rows = np.random.default_rng(1).normal(size=(30, 3))
    plain = subject.clustered_error(rows)
    assert plain.error == pytest.approx(stats.sem(rows, axis=0))
    assert plain.freedom == pytest.approx(np.full(3, 29.0))
    assert plain.ratio == 1.0
    alone = subject.clustered_error(rows, topics=range(30))
    assert alone.error == pytest.approx(plain.error)


def test_topics_that_differ_widen_the_error_as_much_as_they_should():
    rng = np.random.default_rng(2)
    means, errors, naive = [], [], []
    topics, phrasings = np.repeat(np.arange(12), 4), np.tile(np.arange(8), 6)
    for _ in range(400):
        effects = rng.normal(size=12)[topics] + 0.5 * rng.normal(size=8)[phrasings]
        rows = (effects + rng.normal(size=48))[:, None]
        means.append(rows.mean())
        errors.append(subject.clustered_error(rows, topics, phrasings).error[0])
        naive.append(stats.sem(rows[:, 0]))
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.15)
    assert np.mean(naive) < 0.7 * np.std(means)


def test_few_groups_decide_nothing():
    found = flatness(table(subject.MIN_GROUPS - 1, 5, np.random.default_rng(3), effect=3))
    assert found.verdict == "undecided"
    assert found.curve is None
    assert found.p is None


def test_verdicts_of_clear_cases():
    rng = np.random.default_rng(4)
    quiet = 0.5 + rng.normal(0, 0.2, (40, 1)) + rng.normal(0, 0.02, (40, 5))
    assert flatness(quiet).verdict == "flat"
    assert flatness(table(48, 5, rng, effect=1.5)).verdict == "varies"
    noisy = np.clip(0.5 + rng.normal(0, 0.3, (20, 5)), 0, 1)
    assert flatness(noisy).verdict == "undecided"
    assert flatness(np.full((64, 5), 0.99) - rng.uniform(0, 0.01, (64, 5))).verdict == "ceiling"
    assert flatness(rng.uniform(0, 0.02, (64, 5))).verdict == "floor"


def test_tables_without_any_change():
    # 16 hits of 16 cannot exclude recall of 90%; 200 of 200 can.
    few = flatness(np.ones((16, 5)))
    assert few.verdict == "undecided"
    assert few.curve.half_width == pytest.approx(2 / 20)
    assert flatness(np.ones((200, 5))).verdict == "ceiling"
    assert flatness(np.zeros((64, 5))).verdict == "floor"


def test_guessing_is_the_floor_and_an_unknown_fact_too():
    rng = np.random.default_rng(5)
    quiet = 0.5 + rng.normal(0, 0.02, (40, 5))
    closed = Controls(closed_book=0.5 + rng.normal(0, 0.02, 40))
    assert flatness(quiet, controls=closed).verdict == "floor"
    assert flatness(quiet, controls=Controls(closed_book=np.zeros(40))).verdict == "flat"
    assert flatness(quiet, controls=Controls(oracle=np.zeros(40))).verdict == "floor"


@pytest.mark.parametrize("bad", [np.ones(5), np.ones((20, 1)), np.full((20, 3), np.nan)])
def test_what_is_no_table_is_refused(bad):
    with pytest.raises(ValueError, match=r"groups|finite"):
        flatness(bad)


@pytest.mark.parametrize("hits", [False, True])
def test_false_alarms_and_coverage_on_flat_tables(hits):
    rng = np.random.default_rng(7)
    alarms, covered, levels = [], [], []
    big = table(200_000, 5, rng, hits=hits)
    truth = (big - big.mean(axis=1, keepdims=True)).mean(axis=0)
    for _ in range(300):
        found = flatness(table(32, 5, rng, hits=hits), draws=600)
        alarms.append(found.verdict == "varies")
        curve = found.curve
        covered.append(((curve.contrast_low <= truth) & (truth <= curve.contrast_high)).all())
        levels.append((curve.low <= big.mean(axis=0)) & (big.mean(axis=0) <= curve.high))
    assert np.mean(alarms) <= 0.055
    assert np.mean(covered) >= 0.92
    assert 0.92 <= np.mean(levels) <= 0.985


def test_power_at_thirty_two_groups():
    rng = np.random.default_rng(8)
    seen = [
        subject.smooth_test(table(32, 5, rng, effect=0.5), draws=600) <= 0.025 for _ in range(100)
    ]
    assert np.mean(seen) >= 0.8


def test_equal_shares_are_rarely_called_flat_when_they_are_not():
    rng = np.random.default_rng(9)
    at = np.linspace(0, 1, 5)
    bend = 0.08 * (1 - 4 * at * (1 - at))  # deviates from its mean by more than the margin
    assert np.abs(bend - bend.mean()).max() == pytest.approx(0.04 * 1.2, abs=0.01)
    bend *= 1.1 * subject.MARGIN / np.abs(bend - bend.mean()).max()
    wrong = [
        flatness(0.5 + bend + rng.normal(0, 0.12, (32, 5)), draws=400).verdict == "flat"
        for _ in range(200)
    ]
    assert np.mean(wrong) <= 0.05
