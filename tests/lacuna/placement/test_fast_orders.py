"""Fast orders against the optimum."""

from __future__ import annotations

import numpy as np
import pytest

from lacuna.placement import fast_orders as fast
from lacuna.placement.document_curves import prepare
from lacuna.placement.problem import OrderProblem
from lacuna.placement.rules import by_rank
from lacuna.placement.search import best_order
from lacuna.theory.curve import cumulative


def curve(kind: str) -> np.ndarray:
    x = (np.arange(200) + 0.5) / 200
    return {
        "u": 1 + np.exp(-x / 0.1) + 1.5 * np.exp(-(1 - x) / 0.1),
        "recency": 1 + 2 * x,
        "hill": 1 + np.exp(-(((x - 0.5) / 0.2) ** 2)),
    }[kind]


@pytest.mark.parametrize("kind", ["u", "recency", "hill"])
@pytest.mark.parametrize("size", [2, 5, 9, 12])
def test_within_two_percent_of_the_exact_optimum(kind: str, size: int) -> None:
    rng = np.random.default_rng(size)
    curves = prepare(curve(kind)[None], skip=0, smoothing=0.0)
    lost = []
    for _ in range(30):
        lengths = rng.integers(50, 400, size)
        F = cumulative(curves.influence, int(lengths.sum()) + 60)
        problem = OrderProblem(F, lengths, rng.random(size), 20, 2)
        order = fast.fast_orders(problem, curves, curves.chosen_on[None], by_length=True)[0]
        lost.append(1 - problem.value(order) / best_order(problem).value)
    assert min(lost) >= -1e-9
    assert np.mean(lost) < 0.02


def test_without_length_it_is_the_order_by_rank() -> None:
    rng = np.random.default_rng(0)
    curves = prepare(rng.lognormal(0, 1, (12, 200)))
    lengths = np.full(8, 100)
    problem = OrderProblem(cumulative(curves.influence, 840), lengths, rng.random(8), 20)
    order = fast.fast_orders(problem, curves, curves.chosen_on[None], by_length=False)[0]
    assert order.tolist() == by_rank(problem).order.tolist()


def test_every_curve_gets_its_own_order() -> None:
    curves = prepare(np.stack([curve("recency"), curve("recency")[::-1]]), skip=0)
    problem = OrderProblem(
        cumulative(curves.influence, 500), np.array([100, 150, 200]), np.array([0.9, 0.5, 0.1])
    )
    both = prepare(curve("recency")[None], skip=0), prepare(curve("recency")[::-1][None], skip=0)
    trained = np.stack([one.chosen_on for one in both])
    for by_length in (True, False):
        rising, falling = fast.fast_orders(problem, curves, trained, by_length=by_length)
        assert rising.tolist() == [2, 1, 0]
        assert falling.tolist() == [0, 1, 2]
