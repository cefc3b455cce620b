"""Fixed rules, and the optimum that does not look at lengths."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lacuna.placement.problem import FREE, OrderProblem
from lacuna.placement.rules import by_rank, fixed_orders
from lacuna.placement.search import best_order
from lacuna.theory.curve import cumulative


def problem(
    lengths: np.ndarray, weights: np.ndarray, seed: int = 0, **more: object
) -> OrderProblem:
    curve = np.random.default_rng(seed).lognormal(0, 0.5, 64)
    return OrderProblem(cumulative(curve, int(lengths.sum()) + 50), lengths, weights, 10, **more)  # type: ignore[arg-type]


def test_both_zigzags_whatever_the_parity() -> None:
    for size in (5, 6):
        weights = np.arange(size, 0, -1.0)
        rules = fixed_orders(problem(np.full(size, 10), weights))
        assert rules["zigzag_best_first"][0] == 0
        assert rules["zigzag_best_last"][-1] == 0
        assert rules["zigzag_best_last"][0] == 1
        assert rules["relevance_last"].tolist() == rules["relevance_first"].tolist()[::-1]
        assert all(sorted(order.tolist()) == list(range(size)) for order in rules.values())


def test_rules_keep_pins() -> None:
    slots = np.array([FREE, FREE, 0, FREE])
    weights = np.array([4.0, 3, 2, 1])
    rules = fixed_orders(problem(np.full(4, 10), weights, slots=slots), np.array([3, 2, 1, 0]))
    assert len(rules) == 6
    assert all(order[0] == 2 for order in rules.values())


@given(st.integers(0, 10_000), st.integers(2, 20))
def test_permuted_lengths_do_not_move_a_chunk(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    lengths, weights = rng.integers(1, 300, size), rng.random(size)
    one = by_rank(problem(lengths, weights, seed))
    other = by_rank(problem(rng.permutation(lengths), weights, seed))
    assert one.order.tolist() == other.order.tolist()
    assert one.upper_bound >= one.value


def test_equal_lengths_are_the_optimum() -> None:
    rng = np.random.default_rng(1)
    one = problem(np.full(9, 30), rng.random(9))
    assert by_rank(one).order.tolist() == best_order(one).order.tolist()
