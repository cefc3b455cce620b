"""Orders for production."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacuna.placement.advice import advise
from lacuna.placement.document_curves import DocumentCurves, exact, prepare
from lacuna.placement.problem import FREE, OrderProblem
from lacuna.placement.search import best_order
from lacuna.placement.strategies import (
    STABLE_LEAST,
    cache_prefix,
    document_order,
    fixed,
    optimal,
    stable,
)
from lacuna.theory.curve import cumulative

X = (np.arange(256) + 0.5) / 256
CURVE = 1 + 0.8 * np.exp(-X / 0.08) + 1.2 * np.exp(-(1 - X) / 0.1)

KNOWN = exact(CURVE, anchored=True)


def documents(count: int = 16) -> DocumentCurves:
    noise = np.random.default_rng(7).lognormal(0, 0.6, (count, 256))
    return prepare(CURVE * noise)


def prompt(lengths: np.ndarray, weights: np.ndarray, behind: int, **more: object) -> OrderProblem:
    length = 20 + int(lengths.sum()) + behind
    return OrderProblem(cumulative(CURVE, length), lengths, weights, 20, **more)  # type: ignore[arg-type]


def moves(before: np.ndarray, after: np.ndarray) -> int:
    return int((before != after).sum())


def test_document_order_keeps_sources_together_and_in_order() -> None:
    sources = ["b", "a", None, "b", None, "a"]
    order = document_order(sources, [9, 5, 0, 1, 0, 2])
    assert order.tolist() == [3, 0, 5, 1, 2, 4]
    with pytest.raises(ValueError, match="one entry"):
        document_order(["a"], [1, 2])


def test_optimal_is_the_optimum() -> None:
    rng = np.random.default_rng(0)
    one = prompt(rng.integers(50, 400, 9), rng.random(9), 50)
    assert optimal(one, KNOWN).solution.order.tolist() == best_order(one).order.tolist()


@given(st.integers(0, 1000), st.integers(1, STABLE_LEAST), st.integers(1, STABLE_LEAST))
def test_a_short_question_moves_nothing(seed: int, one: int, other: int) -> None:
    rng = np.random.default_rng(seed)
    lengths, weights = rng.integers(50, 400, 20), rng.random(20)
    orders = [
        stable(
            prompt(lengths, weights, behind), lambda n: cumulative(CURVE, n), KNOWN
        ).solution.order
        for behind in (one, other)
    ]
    assert orders[0].tolist() == orders[1].tolist()


def test_twenty_more_tokens_move_few_chunks_where_the_optimum_moves_many() -> None:
    rng = np.random.default_rng(1)
    steady, best, worth = [], [], []
    for _ in range(40):
        lengths, weights, behind = rng.integers(50, 400, 20), rng.random(20), rng.integers(20, 400)
        one, other = (prompt(lengths, weights, n) for n in (int(behind), int(behind) + 20))
        calm = [stable(p, lambda n: cumulative(CURVE, n), KNOWN).solution for p in (one, other)]
        steady.append(moves(calm[0].order, calm[1].order))
        best.append(moves(best_order(one).order, best_order(other).order))
        worth.append(calm[0].value / best_order(one).value)
    assert np.mean(np.array(steady) == 0) >= 0.8
    assert np.mean(np.array(best) == 0) < 0.6
    assert np.mean(best) > 2 * np.mean(steady)
    assert np.mean(worth) > 0.97


def test_the_last_prompts_beginning_stays() -> None:
    rng = np.random.default_rng(2)
    lengths, weights = rng.integers(50, 400, 6), rng.random(6)
    one = prompt(lengths, weights, 50)
    ids = list("abcdef")
    found = cache_prefix(one, ids, ["c", "a", "gone", "b"], KNOWN).solution
    assert found.order[:2].tolist() == [2, 0]
    free = prompt(lengths, weights, 50, slots=np.array([1, FREE, 0, FREE, FREE, FREE]))
    assert found.order.tolist() == best_order(free).order.tolist()
    everything = cache_prefix(one, ids, ids[::-1], KNOWN).solution
    assert everything.order.tolist() == [5, 4, 3, 2, 1, 0]
    nothing = cache_prefix(one, ids, ["new", "a"], KNOWN).solution
    assert nothing.order.tolist() == best_order(one).order.tolist()


def test_the_prefix_yields_to_pins_and_groups() -> None:
    lengths, weights = np.full(5, 50), np.array([0.5, 0.4, 0.3, 0.2, 0.1])
    slots = np.array([FREE, FREE, FREE, FREE, 1])
    one = prompt(lengths, weights, 50, slots=slots)
    assert cache_prefix(one, list("abcde"), list("dcb"), KNOWN).solution.order[:2].tolist() == [
        3,
        4,
    ]
    groups = np.array([0, FREE, 0, FREE, FREE])
    two = prompt(lengths, weights, 50, groups=groups)
    order = cache_prefix(two, list("abcde"), list("dca"), KNOWN).solution.order.tolist()
    assert order[0] == 3
    assert order.index(0) < order.index(2)
    order = cache_prefix(two, list("abcde"), list("adc"), KNOWN).solution.order.tolist()
    assert order[:3] == [0, 3, 2]


def test_the_orders_of_every_fold_keep_what_the_strategy_keeps() -> None:
    rng = np.random.default_rng(3)
    known = documents()
    one = prompt(rng.integers(50, 400, 8), rng.random(8), 50)
    one = OrderProblem(known.at(one.tokens), one.lengths, one.relevance, 20)
    folds = len(known.trained_on)
    kept = cache_prefix(one, list("abcdefgh"), ["c", "a"], known)
    assert kept.unseen.shape == (folds, 8)
    assert (kept.unseen[:, :2] == [2, 0]).all()
    given = fixed(one, np.arange(8)[::-1], known)
    assert (given.unseen == np.arange(8)[::-1]).all()
    assert stable(one, known.at, known).unseen.shape == (folds, 8)


def test_a_judged_strategy_is_followed_whatever_the_decision() -> None:
    known = documents()
    lengths, weights = np.full(6, 100), np.arange(6, 0, -1.0)
    one = prompt(lengths, weights, 50)
    one = OrderProblem(known.at(one.tokens), lengths, weights, 20)
    best = optimal(one, known)
    assert advise(one, known, candidate=best).decision == "reorder"
    worst = best.solution.order[::-1]
    found = advise(one, known, candidate=fixed(one, worst, known))
    assert found.order.tolist() == found.proposed.tolist() == worst.tolist()
    assert found.name == "document_order"
    gain = advise(one, known, candidate=fixed(one, np.arange(6), known)).gain["given"]
    assert gain is not None
    assert (gain.value, gain.low, gain.high) == (0.0, 0.0, 0.0)
