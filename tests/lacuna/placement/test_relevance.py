"""Scales of relevance: what enters by rank cannot be overruled by length."""

from __future__ import annotations

import gzip
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from lacuna.placement.problem import OrderProblem
from lacuna.placement.relevance import (
    HIT_CURVE,
    HIT_QUESTIONS,
    hits_by_rank,
    near_equal,
    rank_weights,
    weigh,
)
from lacuna.placement.search import best_order, by_rank
from lacuna.theory.curve import cumulative

ROOT = Path(__file__).parents[3]
FIXED = ROOT.parent / "shared" / "reference" / "nq-open-a.jsonl.gz"


def test_probabilities_enter_as_they_are() -> None:
    found = weigh(np.array([0.2, 0.9, 0.0]), "probability")
    assert found.weights.tolist() == [0.2, 0.9, 0.0]
    assert found.by_length


@pytest.mark.parametrize("scores", [[0.2, 1.3], [-0.1, 0.5]])
def test_a_probability_outside_its_range_is_refused(scores: list[float]) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        weigh(np.array(scores), "probability")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_must_be_finite(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        weigh(np.array([0.1, bad]), "score")


def test_an_unknown_scale_is_named() -> None:
    with pytest.raises(ValueError, match="cosine"):
        weigh(np.array([0.1]), "cosine")  # type: ignore[arg-type]


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=30))
def test_any_rising_map_of_the_scores_gives_the_same_weights(values: list[int]) -> None:
    scores = np.array(values, dtype=np.float64)
    base = weigh(scores, "score").weights
    np.testing.assert_array_equal(base, weigh(np.exp(scores / 300) - 7, "score").weights)
    np.testing.assert_array_equal(base, weigh(-scores, "distance").weights)
    np.testing.assert_array_equal(base, weigh(-scores, "rank").weights)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30))
def test_ties_share_and_nothing_is_lost(values: list[int]) -> None:
    scores = np.array(values, dtype=np.float64)
    weights = rank_weights(-scores)
    assert weights.sum() == pytest.approx(hits_by_rank(scores.size).sum())
    for a in range(scores.size):
        for b in range(scores.size):
            if scores[a] == scores[b]:
                assert weights[a] == weights[b]
            elif scores[a] > scores[b]:
                assert weights[a] > weights[b]


def test_a_hit_curve_must_fall() -> None:
    with pytest.raises(ValueError, match="fall"):
        weigh(np.array([1.0, 2.0]), "score", hit_curve=np.array([0.2, 0.4]))


def test_a_logit_is_the_log_odds() -> None:
    found = weigh(np.array([0.0, np.log(3)]), "logit")
    np.testing.assert_allclose(found.weights, [0.5, 0.75])
    assert not found.by_length


def test_a_calibration_lets_length_decide() -> None:
    found = weigh(np.array([0.7, 0.8]), "score", calibration=lambda s: s / 2)
    assert found.by_length
    np.testing.assert_allclose(found.weights, [0.35, 0.4])


def test_near_equal_scores_with_unequal_lengths_are_said() -> None:
    cosines = np.array([0.80, 0.799, 0.70])
    assert "1 of 2" in near_equal(cosines, np.array([100, 400, 300]))[0]
    assert near_equal(cosines, np.array([300, 310, 300])) == ()
    assert near_equal(np.array([0.8, 0.7, 0.6]), np.array([100, 400, 300])) == ()
    assert near_equal(cosines, None) == ()


@pytest.mark.parametrize("scale", ["cosine", "reciprocal"])
def test_the_shortest_chunk_stands_last_no_more_often_than_chance(scale: str) -> None:
    """Cosines of .70-.85 taken for probabilities put the shortest last in nine of ten requests."""
    rng = np.random.default_rng(0)
    curve = 1 + 3 * np.exp(-np.arange(256)[::-1] / 40)
    last, last_taken_for_probability, best_last, sets = 0, 0, 0, 300
    for _ in range(sets):
        lengths = rng.integers(100, 400, 6)
        ranks = rng.permutation(6) + 1.0
        scores = 1 / (60 + ranks) if scale == "reciprocal" else rng.uniform(0.70, 0.85, 6)
        found = weigh(scores, "score", lengths=lengths)
        F = cumulative(curve, int(lengths.sum()) + 40, anchored=False)
        order = by_rank(OrderProblem(F, lengths, found.weights)).order
        last += order[-1] == lengths.argmin()
        best_last += order[-1] == scores.argmax()
        last_taken_for_probability += (
            best_order(OrderProblem(F, lengths, scores)).order[-1] == lengths.argmin()
        )
    assert last_taken_for_probability > 0.8 * sets
    assert abs(last - sets / 6) < 4 * np.sqrt(sets * 5 / 36)
    assert best_last == sets


def test_the_hit_curve_is_what_the_bench_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    if not FIXED.exists():
        pytest.skip("the questions of nq-open are not here (shared/reference)")
    pytest.importorskip("bm25s")
    spec = importlib.util.spec_from_file_location("hit_curve", ROOT / "bench" / "hit_curve.py")
    assert spec is not None
    assert spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "hit_curve", bench)
    spec.loader.exec_module(bench)
    with gzip.open(FIXED, "rt", encoding="utf-8") as file:
        assert sum(1 for _ in file) == HIT_QUESTIONS
    gold, _, _ = bench.rank(bench.read(FIXED), 14)
    np.testing.assert_allclose(
        gold.mean(axis=0)[: len(HIT_CURVE)], HIT_CURVE, atol=0.004
    )  # by version of bm25s
    for rank, hits in enumerate(hits_by_rank(14)):
        interval = binomtest(int(gold[:, rank].sum()), HIT_QUESTIONS).proportion_ci()
        assert interval.low <= hits <= interval.high
