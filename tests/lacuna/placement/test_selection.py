"""Which chunks stay: never too many, never too few, and why."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lacuna.placement.document_curves import DocumentCurves, prepare
from lacuna.placement.problem import OrderProblem
from lacuna.placement.relevance import HIT_QUESTIONS, hits_by_rank
from lacuna.placement.selection import (
    EXACT_SELECTION_LIMIT,
    count_chunks,
    hit_curve_error,
    select_chunks,
)
from lacuna.theory.curve import cumulative


def spent(cost: np.ndarray, kept: np.ndarray) -> int:
    return int(cost[kept].sum())


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.floats(0, 10)), max_size=40),
    st.none() | st.integers(0, 300),
    st.none() | st.integers(0, 40),
)
def test_budget_is_never_exceeded_and_nothing_that_fits_is_dropped(
    chunks: list[tuple[int, float]], capacity: int | None, count: int | None
) -> None:
    cost = np.array([c for c, _ in chunks], dtype=np.int64)
    relevance = np.array([r for _, r in chunks])
    kept = select_chunks(cost, relevance, capacity, count, np.zeros(cost.size, dtype=bool))
    assert (np.diff(kept) > 0).all()
    room = (int(cost.sum()) if capacity is None else capacity) - spent(cost, kept)
    places = (cost.size if count is None else count) - kept.size
    assert room >= 0
    assert places >= 0
    dropped = np.setdiff1d(np.arange(cost.size), kept)
    if places:
        assert all(cost[i] > room for i in dropped)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), min_size=1, max_size=9),
    st.integers(0, 100),
    st.integers(0, 9),
)
def test_small_budgets_are_exact(chunks: list[tuple[int, int]], capacity: int, count: int) -> None:
    cost = np.array([c for c, _ in chunks], dtype=np.int64)
    relevance = np.array([float(r) for _, r in chunks])
    kept = select_chunks(cost, relevance, capacity, count, np.zeros(cost.size, dtype=bool))
    best = max(
        relevance[list(some)].sum()
        for size in range(min(count, len(chunks)) + 1)
        for some in itertools.combinations(range(len(chunks)), size)
        if cost[list(some)].sum() <= capacity
    )
    assert relevance[kept].sum() == pytest.approx(best)


def test_large_budgets_come_close_to_the_exact_choice() -> None:
    """Against the 0/1 knapsack solved by dynamic programming over tokens."""
    shares = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        m = EXACT_SELECTION_LIMIT + 20
        cost, relevance, capacity = rng.integers(20, 200, m), rng.random(m), 1500
        best = np.zeros(capacity + 1)
        for c, r in zip(cost, relevance, strict=True):
            best[c:] = np.maximum(best[c:], best[: capacity + 1 - c] + r)
        kept = select_chunks(cost, relevance, capacity, None, np.zeros(m, dtype=bool))
        shares.append(relevance[kept].sum() / best[-1])
    assert max(shares) <= 1 + 1e-12
    assert np.mean(shares) > 0.99


def test_ten_chunks_of_three_in_ten() -> None:
    kept = select_chunks(np.full(10, 3), np.arange(10, 0, -1.0), 10, None, np.zeros(10, dtype=bool))
    assert kept.tolist() == [0, 1, 2]


def test_equals_keep_the_callers_preference() -> None:
    for m in (5, 30):
        kept = select_chunks(np.full(m, 3), np.ones(m), 9, None, np.zeros(m, dtype=bool))
        assert kept.tolist() == [0, 1, 2]


@pytest.mark.parametrize("m", [3, 20])
def test_a_chunk_longer_than_the_budget_is_dropped_and_the_rest_stay(m: int) -> None:
    cost = np.full(m, 3)
    cost[0] = 1000
    relevance = np.ones(m)
    relevance[0] = 50.0
    kept = select_chunks(cost, relevance, 3 * m, None, np.zeros(m, dtype=bool))
    assert kept.tolist() == list(range(1, m))


def test_required_chunks_stay_or_the_request_is_refused() -> None:
    cost, relevance = np.array([5, 5, 5]), np.array([0.0, 9.0, 8.0])
    required = np.array([True, False, False])
    assert select_chunks(cost, relevance, 10, None, required).tolist() == [0, 1]
    assert select_chunks(cost, relevance, None, 1, required).tolist() == [0]
    with pytest.raises(ValueError, match="pinned"):
        select_chunks(cost, relevance, 4, None, required)


def curves(count: int = 32) -> DocumentCurves:
    rng = np.random.default_rng(0)
    return prepare(rng.lognormal(0, 0.5, (count, 100)) * np.linspace(1, 2, 100))


def problems(known: DocumentCurves, weights: np.ndarray) -> Callable[[np.ndarray], OrderProblem]:
    def of(kept: np.ndarray) -> OrderProblem:
        lengths = np.full(kept.size, 100)
        F = cumulative(known.influence, int(lengths.sum()) + 60)
        return OrderProblem(F, lengths, weights[kept], 20)

    return of


def test_certain_weights_are_all_kept() -> None:
    known, weights = curves(), np.array([0.3, 0.9, 0.6])
    found = count_chunks(weights, problems(known, weights), known)
    assert found.why == "all_kept"
    assert found.kept.tolist() == [0, 1, 2]
    assert [one.chunk for one in found.marginal] == [2, 0]


def test_a_chunk_without_relevance_is_dropped() -> None:
    known, weights = curves(), np.array([0.0, 0.9, 0.6, 0.0])
    found = count_chunks(weights, problems(known, weights), known)
    assert found.kept.tolist() == [1, 2]
    assert found.dropped.tolist() == [0, 3]
    assert found.why == "no_gain"
    assert "zero" in found.reason


def test_ranks_beyond_what_was_measured_are_dropped() -> None:
    """The hit curve's own error ends where its questions cannot tell hits from none."""
    known = curves()
    rng = np.random.default_rng(1)
    weights = hits_by_rank(30)[rng.permutation(30)]
    sure = count_chunks(
        weights, problems(known, weights), known, weight_error=hit_curve_error(weights, 10**8)
    )
    found = count_chunks(
        weights,
        problems(known, weights),
        known,
        weight_error=hit_curve_error(weights, HIT_QUESTIONS),
    )
    assert 5 < found.kept.size < sure.kept.size
    assert weights[found.kept].min() > weights[found.dropped].max()


def test_a_distractor_cost_ends_it_earlier() -> None:
    known, weights = curves(), hits_by_rank(12)
    free = count_chunks(weights, problems(known, weights), known)
    paid = count_chunks(weights, problems(known, weights), known, distractor_cost=0.02)
    assert free.kept.size > paid.kept.size
    assert paid.why == "distractor_cost"
    assert paid.marginal[-1].low <= 0
    assert all(one.low > 0 for one in paid.marginal[:-1])


def test_no_chunks_and_one() -> None:
    known = curves()
    for size in (0, 1):
        weights = np.full(size, 0.5)
        found = count_chunks(weights, problems(known, weights), known)
        assert found.kept.size == size
        assert found.why == "all_kept"
