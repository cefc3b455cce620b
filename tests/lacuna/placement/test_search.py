"""Orders against brute force, their own bounds, and the inputs that broke other reorderers."""

from __future__ import annotations

import itertools
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lacuna.placement import search
from lacuna.placement.document_curves import prepare
from lacuna.placement.optimize import heuristic_order, outside_in, rearrange, subset_order
from lacuna.placement.problem import FREE, OrderProblem
from lacuna.placement.search import best_order, by_rank, fixed_orders
from lacuna.theory.curve import cumulative

REFERENCE = Path(
    os.environ.get(
        "LACUNA_REFERENCE_DIR", Path(__file__).parents[3].parent / "shared" / "reference"
    )
)
OBJECTIVES: list[search.Objective] = ["mean_visibility", "total_mass", "worst_case"]
SHAPES = ["u", "bumpy", "falling", "flat"]


def curve(n: int, shape: str, rng: np.random.Generator) -> np.ndarray:
    x = (np.arange(n) + 0.5) / n
    if shape == "flat":
        return np.ones(n)
    if shape == "falling":
        return 1 / (x + 0.02)
    u = 1 / (x + 0.02) + 3 / (1 - x + 0.02)
    return u if shape == "u" else u * np.exp(0.4 * np.repeat(rng.normal(size=n // 8 + 1), 8)[:n])


def problem(
    seed: int,
    m: int,
    shape: str = "u",
    objective: search.Objective = "mean_visibility",
    *,
    lengths: np.ndarray | None = None,
    shortest: int = 20,
    **fields: Any,
) -> OrderProblem:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(shortest, 200, m) if lengths is None else lengths
    start, separator, suffix = 7, 2, 11
    n = start + int(tokens.sum()) + separator * max(m - 1, 0) + suffix
    F = cumulative(curve(n, shape, rng), n)
    return OrderProblem(F, tokens, rng.random(m) ** 2, start, separator, objective, **fields)


def best_rule(p: OrderProblem) -> float:
    """Value of the best of the orders that people use."""
    return max(p.value(order) for order in fixed_orders(p).values())


@cache
def permutations(m: int) -> np.ndarray:
    return np.array(list(itertools.permutations(range(m))), dtype=np.int64)


def values_by_definition(p: OrderProblem, orders: np.ndarray) -> np.ndarray:
    """The objective, written down once more from theory: a rival of OrderProblem.value."""
    n, F = p.tokens, p.cumulative
    worth = np.zeros(len(orders))
    worst = np.full(len(orders), np.inf)
    at = np.full(len(orders), p.start)
    top = set(sorted(range(p.size), key=lambda i: (-p.relevance[i], i))[: p.top])
    for place in range(orders.shape[1]):
        chunk = orders[:, place]
        length, relevance = p.lengths[chunk], p.relevance[chunk]
        mass = F[at + length] - F[at]
        point = n * (F[at + 1] - F[at])
        density = np.where(length > 0, n * mass / np.maximum(length, 1), point)
        worth += relevance * (mass if p.objective == "total_mass" else density)
        worst = np.where(np.isin(chunk, list(top)), np.minimum(worst, density), worst)
        at = at + length + p.separator
    return worst if p.objective == "worst_case" else worth


def allowed(p: OrderProblem, orders: np.ndarray) -> np.ndarray:
    """Which orders keep pins and groups."""
    fine = np.ones(len(orders), dtype=bool)
    if p.slots is not None:
        for chunk in np.flatnonzero(p.slots != FREE):
            fine &= orders[:, p.slots[chunk]] == chunk
    if p.groups is not None:
        where = np.argsort(orders, axis=1)
        for group in set(p.groups[p.groups != FREE].tolist()):
            members = np.flatnonzero(p.groups == group)
            fine &= (np.diff(where[:, members], axis=1) > 0).all(axis=1)
    return fine


def brute_force(p: OrderProblem) -> float:
    orders = permutations(p.size)
    return float(values_by_definition(p, orders[allowed(p, orders)]).max())


@pytest.mark.parametrize("separator", range(6))
@pytest.mark.parametrize("suffix", range(6))
def test_separators_of_any_length_before_suffixes_of_any_length(
    separator: int, suffix: int
) -> None:
    """The last chunk has no separator behind it: nothing is looked up beyond the prompt."""
    for m in range(1, 14):
        rng = np.random.default_rng([separator, suffix, m])
        tokens = rng.integers(0, 40, m)
        if m > 1:
            tokens[:2] = 1, 38
        n = int(tokens.sum()) + separator * (m - 1) + suffix
        F = cumulative(curve(max(n, 1), "u", rng), max(n, 1))
        for objective in OBJECTIVES:
            p = OrderProblem(F, tokens, rng.random(m), 0, separator, objective)
            solution = search.best_order(p)
            assert sorted(solution.order.tolist()) == list(range(m))
            assert solution.value <= search.upper_bound(p) * (1 + 1e-9)
            if m > 1:
                assert solution.value >= p.value(heuristic_order(p)) * (1 - 1e-9)
            if m <= 6:
                assert solution.value == pytest.approx(brute_force(p), rel=1e-9)
            assert best_rule(p) <= solution.value * (1 + 1e-5)


@settings(max_examples=1000, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 8),
    st.sampled_from(SHAPES),
    st.sampled_from(OBJECTIVES),
    st.sampled_from([None, 0, 1, 37]),
    st.sampled_from([0, 1, 20]),
)
def test_equal_to_brute_force(
    seed: int,
    m: int,
    shape: str,
    objective: search.Objective,
    equal: int | None,
    shortest: int,
) -> None:
    lengths = None if equal is None else np.full(m, equal)
    p = problem(seed, m, shape, objective, lengths=lengths, shortest=shortest)
    found = search.best_order(p)
    assert found.method == "exact"
    assert sorted(found.order.tolist()) == list(range(m))
    assert found.value == pytest.approx(brute_force(p), rel=1e-9, abs=1e-12)
    assert found.upper_bound == found.value
    assert search.upper_bound(p) >= found.value * (1 - 1e-9)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(3, 7), st.sampled_from(OBJECTIVES), st.data())
def test_pins_and_groups_equal_to_brute_force(
    seed: int, m: int, objective: search.Objective, data: st.DataObject
) -> None:
    chunks = data.draw(st.permutations(range(m)))
    slots, groups = np.full(m, FREE), np.full(m, FREE)
    pins = data.draw(st.integers(0, 2))
    slots[chunks[:pins]] = data.draw(st.permutations(range(m)))[:pins]
    for chunk in chunks[pins:]:
        groups[chunk] = data.draw(st.sampled_from([FREE, 0, 1]))
    p = problem(seed, m, "bumpy", objective, slots=slots, groups=groups)
    found = search.best_order(p)
    assert allowed(p, found.order[None]).all()
    assert found.value == pytest.approx(brute_force(p), rel=1e-9)
    floor = found.value * (1 + 1e-9)
    assert best_rule(p) <= floor
    improved = heuristic_order(p)
    assert allowed(p, improved[None]).all()
    assert p.value(improved) <= floor


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("shape", ["u", "bumpy"])
def test_heuristic_is_near_the_exact_answer(shape: str, objective: search.Objective) -> None:
    gaps = []
    for seed, m in enumerate([13, 13, 14, 14, 15, 15, 16]):
        p = problem(seed, m, shape, objective)
        exact = p.value(subset_order(p))
        found = search.best_order(p)
        assert found.method == "heuristic"
        assert found.value <= exact * (1 + 1e-9)
        assert found.upper_bound >= exact * (1 - 1e-12)
        gaps.append(1 - found.value / exact)
    allowance = 0.02 if objective == "worst_case" else 0.002
    assert np.mean(gaps) < allowance


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["mean_visibility", "total_mass"])
@pytest.mark.parametrize("m", range(13, 19))
def test_heuristic_is_within_two_per_mille_of_exact(m: int, objective: search.Objective) -> None:
    for shape in ("u", "bumpy", "falling"):
        gaps = []
        for seed in range(20 if m < 17 else 6):
            p = problem(1_000 + seed, m, shape, objective)
            gaps.append(1 - search.best_order(p).value / p.value(subset_order(p)))
        assert np.mean(gaps) < 0.002


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(13, 80),
    st.sampled_from(SHAPES),
    st.sampled_from(OBJECTIVES),
    st.sampled_from([0, 20]),
)
def test_large_problems_beat_zigzag_and_respect_the_bound(
    seed: int, m: int, shape: str, objective: search.Objective, shortest: int
) -> None:
    p = problem(seed, m, shape, objective, shortest=shortest)
    found = search.best_order(p)
    assert sorted(found.order.tolist()) == list(range(m))
    assert found.value >= best_rule(p) * (1 - 1e-9)
    for _ in range(20):
        order = np.random.default_rng(seed).permutation(m)
        assert p.value(order) <= found.upper_bound * (1 + 1e-9)
    assert found.value <= found.upper_bound


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(13, 70), st.data())
def test_large_problems_keep_pins_and_groups(seed: int, m: int, data: st.DataObject) -> None:
    slots, groups = np.full(m, FREE), np.full(m, FREE)
    slots[[3, 5]] = data.draw(st.permutations(range(m)))[:2]
    groups[7:12] = 0
    p = problem(seed, m, "bumpy", slots=slots, groups=groups)
    assert allowed(p, search.best_order(p).order[None]).all()


def grouped(seed: int, m: int, shape: str) -> OrderProblem:
    """Chunks of documents, three each, with one pinned first."""
    rng = np.random.default_rng(seed)
    groups, slots = (np.arange(m) // 3)[rng.permutation(m)], np.full(m, FREE)
    groups[0], slots[0] = FREE, 0
    return problem(seed, m, shape, groups=groups, slots=slots)


@pytest.mark.parametrize("shape", ["u", "bumpy"])
def test_heuristic_with_groups_and_pins_is_near_the_exact_answer(shape: str) -> None:
    gaps = []
    for seed in range(8):
        p = grouped(seed, 13, shape)
        found = search.best_order(p)
        assert found.method == "heuristic"
        gaps.append(1 - found.value / p.value(subset_order(p)))
    assert min(gaps) >= -1e-9
    assert np.mean(gaps) < 0.01


@pytest.mark.parametrize("m", [60, 300])
def test_many_chunks_with_groups_beat_the_reorderers_by_far(m: int) -> None:
    p = grouped(1, m, "bumpy")
    found = search.best_order(p)
    assert allowed(p, found.order[None]).all()
    assert found.value > 1.1 * best_rule(p)


def test_outside_in_uses_the_right_key() -> None:
    """Relevance per token for visibility: exact on U-shaped curves."""
    for seed in range(5):
        p = problem(seed, 12)
        assert p.value(outside_in(p)) == pytest.approx(p.value(subset_order(p)), rel=1e-4)


def test_a_thousand_chunks_with_groups_pins_and_shared_states() -> None:
    slots, groups = np.full(1000, FREE), np.full(1000, FREE)
    slots[10], slots[20] = 0, 999
    groups[100:150] = 4
    p = problem(1, 1000, "bumpy", slots=slots, groups=groups)
    found = search.best_order(p)
    assert allowed(p, found.order[None]).all()
    assert found.order[0] == 10
    assert found.order[-1] == 20
    assert found.value >= 0.8 * found.upper_bound


@pytest.mark.parametrize("m", range(11))
def test_equal_chunks_follow_the_profile_whatever_the_parity(m: int) -> None:
    """The fixed reorderers put the best chunk first or last by parity; ours by the curve."""
    F = cumulative(np.linspace(1, 3, 10 * max(m, 1)), 10 * max(m, 1))
    p = OrderProblem(F, np.full(m, 10), np.arange(m, 0, -1.0))
    assert search.best_order(p).order.tolist() == list(range(m))[::-1]


def test_ties_keep_the_callers_order_of_preference() -> None:
    """All scores equal: the earlier chunk gets the better place, never the middle."""
    F = cumulative(curve(100, "u", np.random.default_rng(0)), 100)
    p = OrderProblem(F, np.full(10, 10), np.ones(10))
    order = search.best_order(p).order
    seen = p.visibilities(order)
    by_preference = seen[np.argsort(order)]
    assert (np.diff(by_preference) < 0).all()


def test_a_flat_profile_or_no_relevance_leaves_the_given_order() -> None:
    rng = np.random.default_rng(3)
    for m in (5, 9, 12, 20):
        lengths = rng.permutation(m) * 3
        n = max(int(lengths.sum()), 1)
        flat = OrderProblem(cumulative(np.ones(n), n), lengths, np.ones(m))
        assert search.best_order(flat).order.tolist() == list(range(m))
        worthless = OrderProblem(cumulative(np.arange(1.0, n + 1), n), lengths, np.zeros(m))
        assert search.best_order(worthless).order.tolist() == list(range(m))


@pytest.mark.parametrize("m", [3, 12, 13, 45])
def test_equal_chunks_among_unequal_ones_keep_preference(m: int) -> None:
    lengths = np.full(m, 40)
    lengths[-1] = 90
    p = problem(0, m, "u", lengths=lengths)
    p = OrderProblem(p.cumulative, lengths, np.ones(m), p.start, p.separator)
    order = search.best_order(p).order
    seen = p.visibilities(order)[np.argsort(order)][:-1]
    assert (np.diff(seen) <= 1e-12).all()


def test_bloom_slots_rank_as_published() -> None:
    """With BLOOM-176B's measured curve no zigzag is optimal for ten equal chunks."""
    path = REFERENCE / "bloom176b_fineweb_256.csv"
    if not path.exists():
        pytest.skip("the published BLOOM-176B curves are not at hand")
    measured = np.genfromtxt(path, delimiter=",", names=True)["d_measured"]
    F = cumulative(measured, 2560, anchored=False)
    p = OrderProblem(F, np.full(10, 256), np.arange(10, 0, -1.0))
    found = search.best_order(p)
    assert np.argsort(found.order).tolist() == [9, 8, 0, 7, 6, 5, 1, 2, 4, 3]
    assert found.value > best_rule(p)


def test_rearrange_never_lowers_the_value() -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        p = problem(seed, 20, "bumpy", lengths=rng.integers(1, 4, 20) * 30)
        order = rng.permutation(20)
        assert p.value(rearrange(p, order)) >= p.value(order) - 1e-12


@pytest.mark.parametrize("m", [0, 1])
def test_nothing_and_one(m: int) -> None:
    p = problem(0, m)
    assert search.best_order(p).order.tolist() == list(range(m))


def test_impossible_constraints_are_refused() -> None:
    slots, groups = np.array([1, FREE, FREE]), np.array([0, 0, FREE])
    p = problem(0, 3, slots=np.array([2, FREE, FREE]), groups=groups)
    with pytest.raises(ValueError, match="no order satisfies"):
        search.best_order(p)
    assert search.best_order(problem(0, 3, slots=slots)).order[1] == 0


def test_inputs_are_left_unchanged_and_answers_repeat() -> None:
    p = problem(2, 15)
    before = [p.cumulative.copy(), p.lengths.copy(), p.relevance.copy()]
    first, second = search.best_order(p), search.best_order(problem(2, 15))
    assert first.order.tolist() == second.order.tolist()
    for kept, now in zip(before, [p.cumulative, p.lengths, p.relevance], strict=True):
        assert (kept == now).all()


def chunks_of(
    lengths: np.ndarray, weights: np.ndarray, seed: int = 0, **more: object
) -> OrderProblem:
    curve = np.random.default_rng(seed).lognormal(0, 0.5, 64)
    return OrderProblem(cumulative(curve, int(lengths.sum()) + 50), lengths, weights, 10, **more)  # type: ignore[arg-type]


def test_both_zigzags_whatever_the_parity() -> None:
    for size in (5, 6):
        weights = np.arange(size, 0, -1.0)
        rules = fixed_orders(chunks_of(np.full(size, 10), weights))
        assert rules["zigzag_best_first"][0] == 0
        assert rules["zigzag_best_last"][-1] == 0
        assert rules["zigzag_best_last"][0] == 1
        assert rules["relevance_last"].tolist() == rules["relevance_first"].tolist()[::-1]
        assert all(sorted(order.tolist()) == list(range(size)) for order in rules.values())


def test_rules_keep_pins() -> None:
    slots = np.array([FREE, FREE, 0, FREE])
    weights = np.array([4.0, 3, 2, 1])
    rules = fixed_orders(chunks_of(np.full(4, 10), weights, slots=slots), np.array([3, 2, 1, 0]))
    assert len(rules) == 6
    assert all(order[0] == 2 for order in rules.values())


@given(st.integers(0, 10_000), st.integers(2, 20))
def test_permuted_lengths_do_not_move_a_chunk(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    lengths, weights = rng.integers(1, 300, size), rng.random(size)
    one = by_rank(chunks_of(lengths, weights, seed))
    other = by_rank(chunks_of(rng.permutation(lengths), weights, seed))
    assert one.order.tolist() == other.order.tolist()
    assert one.upper_bound >= one.value


def test_equal_lengths_are_the_optimum() -> None:
    rng = np.random.default_rng(1)
    one = chunks_of(np.full(9, 30), rng.random(9))
    assert by_rank(one).order.tolist() == best_order(one).order.tolist()


def named_curve(kind: str) -> np.ndarray:
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
    curves = prepare(named_curve(kind)[None], skip=0, smoothing=0.0)
    lost = []
    for _ in range(30):
        lengths = rng.integers(50, 400, size)
        F = cumulative(curves.influence, int(lengths.sum()) + 60)
        problem = OrderProblem(F, lengths, rng.random(size), 20, 2)
        order = search.fast_orders(problem, curves, curves.chosen_on[None], by_length=True)[0]
        lost.append(1 - problem.value(order) / best_order(problem).value)
    assert min(lost) >= -1e-9
    assert np.mean(lost) < 0.02


def test_without_length_it_is_the_order_by_rank() -> None:
    rng = np.random.default_rng(0)
    curves = prepare(rng.lognormal(0, 1, (12, 200)))
    lengths = np.full(8, 100)
    problem = OrderProblem(cumulative(curves.influence, 840), lengths, rng.random(8), 20)
    order = search.fast_orders(problem, curves, curves.chosen_on[None], by_length=False)[0]
    assert order.tolist() == by_rank(problem).order.tolist()


def test_every_curve_gets_its_own_order() -> None:
    curves = prepare(np.stack([named_curve("recency"), named_curve("recency")[::-1]]), skip=0)
    problem = OrderProblem(
        cumulative(curves.influence, 500), np.array([100, 150, 200]), np.array([0.9, 0.5, 0.1])
    )
    both = (
        prepare(named_curve("recency")[None], skip=0),
        prepare(named_curve("recency")[::-1][None], skip=0),
    )
    trained = np.stack([one.chosen_on for one in both])
    for by_length in (True, False):
        rising, falling = search.fast_orders(problem, curves, trained, by_length=by_length)
        assert rising.tolist() == [2, 1, 0]
        assert falling.tolist() == [0, 1, 2]


def test_fast_orders_follow_the_objective() -> None:
    """The worst-off of the top chunks is better off than under the order for the mean."""
    better = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        lengths, weights = rng.integers(20, 200, 7), rng.random(7)
        curves = prepare(named_curve("u")[None], skip=0, smoothing=0.0)
        F = cumulative(curves.influence, int(lengths.sum()) + 60)
        worst, mean = (
            OrderProblem(F, lengths, weights, 20, objective=name)
            for name in ("worst_case", "mean_visibility")
        )
        trained = curves.chosen_on[None]
        own = search.fast_orders(worst, curves, trained, by_length=True)[0]
        other = search.fast_orders(mean, curves, trained, by_length=True)[0]
        assert worst.value(own) >= worst.value(other) * (1 - 1e-9)
        assert mean.value(other) >= mean.value(own) * (1 - 1e-9)
        better += worst.value(own) > worst.value(other) * (1 + 1e-9)
    assert better > 5
