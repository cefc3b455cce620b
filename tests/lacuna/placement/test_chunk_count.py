"""How many chunks: stop where one more cannot be told from nothing, and say why."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lacuna.placement.chunk_count import count_chunks, hit_curve_error
from lacuna.placement.document_curves import DocumentCurves, prepare
from lacuna.placement.problem import OrderProblem
from lacuna.placement.relevance import HIT_QUESTIONS, hits_by_rank
from lacuna.theory.curve import cumulative


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
