"""The stopping rule: its states, its prediction, and why verdicts wait for the end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacuna.evidence.flatness import depth_curve, smooth_test
from lacuna.evidence.sampling import (
    DOCUMENTS,
    PROBABILITIES,
    Rule,
    Sampling,
    needed,
    predicted,
)


def test_one_narrow_look_is_not_enough():
    state = Sampling(Rule(target=0.1, start=16, step=8, budget=64))
    assert not state.look(16, 0.05).stop
    assert not state.look(24, 0.2).stop
    assert not state.look(32, 0.09).stop
    last = state.look(40, 0.08)
    assert (last.stop, last.reason, last.add) == (True, "narrow", 0)
    with pytest.raises(ValueError, match="said stop"):
        state.look(48, 0.05)


def test_the_budget_ends_it_and_is_never_exceeded():
    state, units, seen = Sampling(Rule(target=0.1, start=30, step=16, budget=64)), 30, [30]
    while not (look := state.look(units, 1.0)).stop:
        units += look.add
        seen.append(units)
    assert seen == [30, 46, 62, 64]
    assert look.reason == "budget"


def test_it_ends_where_there_are_no_more_units():
    look = Sampling(DOCUMENTS).look(20, None, exhausted=True)
    assert look.stop
    assert look.needed == -1


@given(st.floats(1e-3, 10), st.integers(1, 1000), st.floats(1e-3, 10))
def test_the_units_needed_reach_the_target(width, units, target):
    count = needed(width, units, target)
    assert predicted(width, units, count) <= target * (1 + 1e-6)
    if count > 1:
        assert predicted(width, units, count - 1) >= target * (1 - 1e-6)


def test_what_more_units_would_buy_is_what_they_do_buy():
    rng = np.random.default_rng(0)
    now, later = [], []
    for _ in range(100):
        rows = rng.uniform(0, 0.3, (64, 5)) + rng.uniform(0, 0.7, (64, 1))
        half = depth_curve(rows[:32], draws=300).half_width
        now.append(Sampling(PROBABILITIES).look(32, half).at_double)
        later.append(depth_curve(rows, draws=300).half_width)
    assert np.mean(now) == pytest.approx(np.mean(later), rel=0.1)


@pytest.mark.parametrize(
    "bad", [{"target": 0.0}, {"target": 1.0, "start": 0}, {"target": 1.0, "start": 200},
            {"target": 1.0, "step": 0}, {"target": 1.0, "looks": 0}]
)  # fmt: skip
def test_rules_that_cannot_be_are_refused(bad):
    with pytest.raises(ValueError, match="must"):
        Rule(**bad)


def test_units_must_grow():
    state = Sampling(PROBABILITIES)
    state.look(24, 1.0)
    with pytest.raises(ValueError, match="grow"):
        state.look(24, 1.0)


def test_testing_once_at_the_end_keeps_the_level_and_peeking_does_not():
    rng = np.random.default_rng(1)
    rule = Rule(target=0.05, start=16, step=16, budget=96)
    once, peeking, used = [], [], []
    for _ in range(200):
        rows = np.clip(0.5 + rng.normal(0, 0.3, (rule.budget, 1)), 0, 1) + rng.normal(
            0, 0.12, (rule.budget, 5)
        )
        state, units, early = Sampling(rule), rule.start, False
        while True:
            p = smooth_test(rows[:units], draws=400)
            early |= p <= 0.025
            look = state.look(units, depth_curve(rows[:units], draws=200).half_width)
            if look.stop:
                break
            units += look.add
        once.append(p <= 0.025)
        peeking.append(early)
        used.append(units)
    assert np.mean(once) <= 0.055
    assert np.mean(peeking) > np.mean(once)
    assert rule.start < np.median(used) < rule.budget
