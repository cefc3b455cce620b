from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from lacuna.evidence.arms import (
    Arm,
    Comparisons,
    Interval,
    by_place,
    compare_arms,
    decide,
    mean_interval,
)

F64 = NDArray[np.float64]


def probabilities(n: int, shifts: list[float], seed: int = 0, noise: float = 0.1) -> F64:
    generator = np.random.default_rng(seed)
    level = generator.uniform(0.3, 0.7, size=(n, 1))
    rows = level + np.array(shifts) + noise * generator.normal(size=(n, len(shifts)))
    return np.asarray(np.clip(rows, 0, 1))


def test_the_interval_of_a_difference_is_students() -> None:
    rows = probabilities(60, [0.0, 0.05])
    moved = rows[:, 1] - rows[:, 0]
    low, high = stats.t.interval(0.95, 59, moved.mean(), stats.sem(moved))
    found = compare_arms(rows, hits=False).arms[1]
    assert (found.difference.low, found.difference.high) == pytest.approx((low, high))
    assert found.difference.value == pytest.approx(moved.mean())
    assert found.joint.low == pytest.approx(low, abs=0.005)  # one comparison: nearly the same


def test_joint_intervals_are_wider_with_more_arms() -> None:
    rows = probabilities(60, [0.0, 0.02, 0.02, 0.02, 0.02, 0.02])
    few = compare_arms(rows[:, :2], hits=False).arms[1]
    many = compare_arms(rows, hits=False).arms[1]
    assert many.joint.high - many.joint.low > 1.15 * (few.joint.high - few.joint.low)
    assert many.difference == few.difference
    assert many.p > few.p


def test_hits_follow_bonett_and_price() -> None:
    moved = np.array([1.0] * 9 + [-1.0] * 3 + [0.0] * 88)
    n, gained, lost = 100, 10, 4  # one more of each than were seen
    p, q = gained / (n + 2), lost / (n + 2)
    error = np.sqrt((p + q - (p - q) ** 2) / (n + 2))
    found = mean_interval(moved, hits=True)
    assert found.value == pytest.approx(0.06)
    assert found.low == pytest.approx(p - q - 1.96 * error, abs=0.002)
    assert found.high == pytest.approx(p - q + 1.96 * error, abs=0.002)


def test_orders_that_never_differ_in_reply_are_not_certain_to_be_equal() -> None:
    hits = np.repeat(np.random.default_rng(0).integers(0, 2, size=(40, 1)), 3, axis=1)
    found = compare_arms(hits.astype(float), hits=True)
    assert found.arms[1].difference.high > 0.03
    assert decide(found, 0.01).decision == "not_enough"
    same = np.ones(hits.shape, dtype=bool)
    certain = compare_arms(hits.astype(float), hits=True, same=same)
    assert certain.arms[1].difference == Interval(0.0, 0.0, 0.0)
    assert decide(certain, 0.01).decision == "no_difference"


def test_flips_count_both_ways() -> None:
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    assert compare_arms(rows, hits=True).arms[1].flips == 0.5


def test_nothing_is_claimed_of_a_few_questions() -> None:
    found = compare_arms(probabilities(11, [0.0, 0.5], noise=0.001), hits=False)
    verdict = decide(found, 0.05)
    assert (verdict.decision, verdict.arm, verdict.more) == ("not_enough", None, 1)
    assert found.detectable is None


@pytest.mark.parametrize("rows", [np.zeros((1, 2)), np.full((3, 2), 1.5), np.zeros(3)])
def test_scores_out_of_bounds_are_refused(rows: F64) -> None:
    with pytest.raises(ValueError, match="scores must be"):
        compare_arms(rows, hits=False)


def arm(value: float, half: float, mean: float = 0.5) -> Arm:
    there = Interval(value, value - half, value + half)
    return Arm(Interval(mean + value, 0.0, 1.0), there, there, 0.5, 0.0, 10)


@pytest.mark.parametrize(
    ("others", "decision", "which"),
    [
        ([arm(0.10, 0.04), arm(0.20, 0.04)], "use", 2),
        ([arm(0.10, 0.04), arm(0.06, 0.08)], "use", 1),
        ([arm(0.03, 0.01), arm(0.00, 0.01)], "no_difference", None),  # certain, and too small
        ([arm(-0.10, 0.04), arm(0.00, 0.04)], "use", 0),
        ([arm(-0.10, 0.04), arm(0.03, 0.04)], "not_enough", None),
        ([arm(0.00, 0.06)], "not_enough", None),
        ([arm(0.00, 0.04), arm(-0.02, 0.05)], "not_enough", None),
    ],
)
def test_the_decision_follows_the_intervals(
    others: list[Arm], decision: str, which: int | None
) -> None:
    found = Comparisons((arm(0.0, 0.0), *others), 0.05, 100)
    verdict = decide(found, 0.05)
    assert (verdict.decision, verdict.arm) == (decision, which)
    assert (verdict.more is not None) == (decision == "not_enough")


def test_about_so_many_more_questions_do_decide() -> None:
    """With the questions that it names, two in three experiments are decided."""
    rows = probabilities(60, [0.0, 0.0, 0.0], seed=3, noise=0.15)
    verdict = decide(compare_arms(rows, hits=False), 0.05)
    assert verdict.decision == "not_enough"
    assert verdict.more is not None
    larger = 60 + verdict.more
    assert 80 < larger < 1_000
    decided = [
        decide(
            compare_arms(probabilities(larger, [0.0, 0.0, 0.0], seed=s, noise=0.15), hits=False),
            0.05,
        ).decision
        for s in range(10, 40)
    ]
    assert np.mean([one == "no_difference" for one in decided]) > 0.6


def test_the_detectable_effect_is_found_four_times_in_five() -> None:
    effect = compare_arms(probabilities(100, [0.0, 0.0]), hits=False).detectable
    assert effect is not None
    found = [
        decide(compare_arms(probabilities(100, [0.0, effect], seed=s), hits=False), 1e-3).decision
        for s in range(1, 151)
    ]
    assert np.mean([one == "use" for one in found]) == pytest.approx(0.8, abs=0.1)


def places(n: int, m: int, seed: int = 0) -> F64:
    generator = np.random.default_rng(seed)
    return np.asarray(generator.integers(0, 10, size=(n, m)) / 9)


def test_the_curve_over_places_is_found() -> None:
    depth = places(400, 4)
    truth = 0.3 + 0.3 * (2 * depth - 1) ** 2
    generator = np.random.default_rng(1)
    level = generator.normal(0, 0.1, size=(400, 1))
    scores = np.clip(truth + level + 0.05 * generator.normal(size=depth.shape), 0, 1)
    found = by_place(depth, scores)
    assert found is not None
    assert found.depth == pytest.approx(np.arange(10) / 9)
    assert found.value == pytest.approx(0.3 + 0.3 * (2 * found.depth - 1) ** 2, abs=0.02)
    assert found.readings.sum() == 1_600


def test_questions_do_not_enter_the_curve() -> None:
    """Hard questions whose answers stand at the end do not make the end look bad."""
    depth = np.concatenate([np.tile([0.0, 1 / 3], (50, 1)), np.tile([2 / 3, 1.0], (50, 1))])
    depth = np.concatenate([depth, np.tile([1 / 3, 2 / 3], (50, 1))])
    level = np.concatenate([np.full(50, 0.9), np.full(50, 0.1), np.full(50, 0.5)])
    found = by_place(depth, np.repeat(level[:, None], 2, axis=1))
    assert found is not None
    assert np.ptp(found.value) < 1e-9


def test_few_places_give_no_curve() -> None:
    assert by_place(places(11, 4), np.zeros((11, 4))) is None
    assert by_place(np.zeros((50, 4)), np.zeros((50, 4))) is None
