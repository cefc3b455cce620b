"""Comparisons: exactness, rivals, false alarms and power."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lacuna.evidence import pairs
from lacuna.evidence.summaries import Summaries, summarise

N = 100


def norms(count: int, rng: np.random.Generator) -> np.ndarray:
    at = np.linspace(0, 1, N)
    base = 0.7 + 2.0 * np.exp((at - 1) / 0.08)
    slow = np.stack([np.interp(at, np.linspace(0, 1, 9), k) for k in rng.normal(size=(count, 9))])
    return base * np.exp(0.5 * slow + rng.normal(size=(count, 1)))


def version(rows: np.ndarray, rng: np.random.Generator, spread: float = 0.1) -> np.ndarray:
    at = np.linspace(0, 1, N)
    knots = rng.normal(size=(len(rows), 6))
    slow = np.stack([np.interp(at, np.linspace(0, 1, 6), k) for k in knots])
    return rows * np.exp(spread * slow)


def summary(rows: np.ndarray) -> Summaries:
    return summarise(rows, [str(number) for number in range(len(rows))])


def holm_by_closure(p):
    """A hypothesis falls when every intersection with it does (Marcus et al. 1976)."""
    every = range(len(p))
    return [
        max(
            min(1.0, len(group) * min(p[i] for i in group))
            for size in range(1, len(p) + 1)
            for group in combinations(every, size)
            if one in group
        )
        for one in every
    ]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_closure_of_bonferroni(p):
    assert pairs.holm(p) == pytest.approx(holm_by_closure(p))


def test_one_statistic_in_pairs_agrees_with_scipy():
    rng = np.random.default_rng(0)
    a = rng.lognormal(size=(30, 1))
    b = a + rng.normal(0.2, 0.5, size=(30, 1))
    found = pairs.compare_pairs(a, b, ["x"], draws=20_000)

    def t(d, axis):
        return d.mean(axis=axis) / d.std(axis=axis, ddof=1)

    rival = stats.permutation_test(
        ((b - a)[:, 0],), t, permutation_type="samples", vectorized=True, n_resamples=20_000,
        rng=np.random.default_rng(1),
    )  # fmt: skip
    assert found.p == pytest.approx(rival.pvalue, abs=0.01)


def test_one_statistic_in_groups_agrees_with_scipy():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=30), rng.normal(0.5, 2.0, size=20)

    def welch(x, y, axis):
        return stats.ttest_ind(x, y, equal_var=False, axis=axis).statistic

    rival = stats.permutation_test(
        (a, b), welch, vectorized=True, n_resamples=20_000, rng=np.random.default_rng(1)
    )
    found = pairs.compare_groups(a[:, None], b[:, None], ["x"], draws=20_000)
    assert found.p == pytest.approx(rival.pvalue, abs=0.015)
    assert found.differences[0].value == pytest.approx(b.mean() - a.mean())


def test_swapping_the_versions_turns_the_signs():
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(40, 3)), rng.normal(0.3, 1, size=(40, 3))
    names = ["x", "y", "z"]
    there, back = pairs.compare_pairs(a, b, names), pairs.compare_pairs(b, a, names)
    for one, other in zip(there.differences, back.differences, strict=True):
        assert (one.value, one.low, one.high) == pytest.approx(
            (-other.value, -other.high, -other.low)
        )
        assert one.p == other.p


def test_identical_versions_are_equal_and_a_constant_shift_is_certain():
    rows = np.random.default_rng(0).uniform(size=(20, 2))
    same = pairs.compare_pairs(rows, rows, ["x", "y"])
    assert same.verdict == "no_difference"
    assert same.p == 1.0
    moved = pairs.compare_pairs(rows, rows + 0.25, ["x", "y"])
    assert moved.verdict == "difference"


def test_few_pairs_decide_nothing():
    rows = np.random.default_rng(0).uniform(size=(pairs.MIN_PAIRS - 1, 2))
    assert pairs.compare_pairs(rows, rows + 1, ["x", "y"]).verdict == "undecided"
    assert pairs.compare_groups(rows, rows + 1, ["x", "y"]).verdict == "undecided"


def test_what_is_not_paired_is_refused():
    rows = np.ones((20, 2))
    with pytest.raises(ValueError, match="same documents"):
        pairs.compare_pairs(rows, rows[:-1], ["x", "y"])
    with pytest.raises(ValueError, match="statistics"):
        pairs.compare_pairs(rows, rows, ["x"])


def test_stored_profiles_are_paired_where_they_share_documents():
    rng = np.random.default_rng(4)
    rows = norms(32, rng)
    lower = rows.copy()
    lower[:, 1:90] *= 0.8  # recency rises in every document
    first, second = summary(rows), summary(version(lower, rng))
    found = pairs.compare(first, second)
    assert found.paired
    assert found.verdict == "difference"
    others = Summaries(
        tuple(f"other-{key}" for key in second.keys),
        second.masses,
        second.first,
        second.last,
        second.totals,
    )
    blind = pairs.compare(first, others)
    assert not blind.paired
    assert blind.verdict != "difference"


def test_false_alarms_of_pairs_groups_and_drift_stay_below_their_level():
    rng = np.random.default_rng(5)
    alarms = np.zeros(3)
    names = [str(tenth) for tenth in range(10)]
    for _ in range(300):
        rows = norms(32, rng)
        a, b = summary(version(rows, rng)), summary(version(rows, rng))
        other = summary(norms(32, rng))
        found = (
            pairs.compare(a, b).verdict,
            pairs.compare_groups(a.tenths, other.tenths, names, draws=1000).verdict,
            "difference" if pairs.drift(a, b, tolerance=0.0).alert else "",
        )
        alarms += [verdict == "difference" for verdict in found]
    # Nominal 2.5%; three standard errors above it.
    assert (alarms / 300 <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / 300)).all(), alarms


def test_the_detectable_difference_is_detected_as_often_as_promised():
    rng = np.random.default_rng(6)
    found, sizes = [], []
    for _ in range(200):
        a = rng.normal(size=(40, 4))
        b = a + rng.normal(size=(40, 4))
        sizes.append(pairs.compare_pairs(a, b, list("wxyz"), draws=500).detectable)
    effect = float(np.mean(sizes))
    for _ in range(200):
        a = rng.normal(size=(40, 4))
        b = a + rng.normal(size=(40, 4))
        b[:, 2] += effect
        found.append(pairs.compare_pairs(a, b, list("wxyz"), draws=500).verdict == "difference")
    assert np.mean(found) == pytest.approx(0.85, abs=0.1)


def test_drift_sees_a_fall_to_seven_tenths_and_names_it():
    rng = np.random.default_rng(7)
    heard = 0
    for _ in range(50):
        rows = norms(16, rng)
        fallen = rows.copy()
        fallen[:, 1:90] *= 0.7
        found = pairs.drift(summary(version(rows, rng)), summary(version(fallen, rng)))
        heard += found.alert
    assert heard >= 45
    names = [one.name for one in found.moved]
    assert "tenth_10" in names
    assert "log_total" in names


def test_a_change_below_the_tolerance_raises_no_alert():
    rows = norms(64, np.random.default_rng(8))
    slightly = rows.copy()
    slightly[:, :50] *= 1.01
    found = pairs.drift(summary(rows), summary(slightly))
    assert found.comparison.verdict == "difference"
    assert not found.alert


def test_right_or_wrong_answers_without_a_change_leave_an_interval() -> None:
    """24 hits that all came again: a change of some hundredths cannot be ruled out."""
    same, zero = np.ones((24, 2)), np.zeros((24, 2))
    for compared in (
        pairs.compare_pairs(same, same, ["a", "b"], steps=[1.0, 0.0]),
        pairs.compare_groups(same, same, ["a", "b"], steps=[1.0, 0.0]),
    ):
        coarse, exact = compared.differences
        assert coarse.low < -0.05 < 0.05 < coarse.high
        assert (exact.low, exact.high) == (0.0, 0.0)
        assert compared.verdict == "undecided"
    assert pairs.compare_pairs(zero, same, ["a", "b"], steps=1.0).verdict == "difference"
