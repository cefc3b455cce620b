"""The curves of documents: read like the optimiser's curve, prepared without bias."""

from __future__ import annotations

import numpy as np
import pytest

from lacuna.placement.document_curves import MAX_ROWS, at_depths, exact, of_masses, prepare
from lacuna.placement.problem import OrderProblem
from lacuna.theory.curve import cumulative


def documents(count: int, bins: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(0, 1, (count, bins))


@pytest.mark.parametrize("prompt", [16, 100, 256, 700, 5000])
@pytest.mark.parametrize("anchored", [True, False])
def test_values_are_those_of_the_optimiser(prompt: int, *, anchored: bool) -> None:
    """One document, unsmoothed: the same numbers as `Problem.value` on the stretched curve."""
    rng = np.random.default_rng(prompt)
    curve = documents(1, 256)
    kind = "influence" if anchored else "recall"
    prepared = prepare(curve, kind=kind, skip=0, smoothing=0.0)  # type: ignore[arg-type]
    lengths = rng.multinomial(prompt - 8, np.ones(5) / 5)
    F = cumulative(curve[0], prompt, anchored=anchored)
    problem = OrderProblem(F, lengths, rng.random(5), start=2, separator=1)
    orders = np.stack([rng.permutation(5) for _ in range(4)])
    start = problem.offsets(orders)
    table = prepared.coefficients(
        start, start + problem.span[orders], problem.weight[orders], prompt
    )
    expected = [problem.value(order) for order in orders]
    np.testing.assert_allclose((prepared.cumulative @ table)[0], expected, rtol=1e-9)


def test_loud_documents_do_not_drown_the_others() -> None:
    curves = documents(8, 50)
    loud = curves * np.logspace(0, 6, 8)[:, None]
    np.testing.assert_allclose(prepare(curves).influence, prepare(loud).influence)


def test_the_sink_is_left_out() -> None:
    curves = np.ones((4, 50))
    curves[:, 0] = 500
    np.testing.assert_allclose(prepare(curves).influence, np.full(50, 1 / 50))


def test_recall_keeps_its_level_by_group() -> None:
    values = at_depths(np.array([0.0, 1.0]), np.array([[0.9, 0.9], [0.1, 0.1]]), bins=10)
    prepared = prepare(values, kind="recall")
    np.testing.assert_allclose(prepared.cumulative[:, -2], [1.8, 0.2])


@pytest.mark.parametrize("count", [2, 3, 16, MAX_ROWS, 150, 441])
def test_folds_partition_and_blocks_keep_the_mean(count: int) -> None:
    curves = documents(count, 40)
    prepared = prepare(curves, smoothing=0.0, skip=0)
    assert prepared.documents == min(count, MAX_ROWS)
    assert (prepared.held_out.sum(axis=1) == 1).all()
    shares = curves / curves.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(prepared.influence, shares.mean(axis=0))
    np.testing.assert_allclose(
        np.diff(prepared.cumulative.mean(axis=0))[:-1], shares.mean(axis=0), rtol=1e-9
    )


def test_a_fold_never_sees_the_documents_that_it_leaves_out() -> None:
    curves = documents(12, 40)
    before = prepare(curves)
    for fold in range(before.held_out.shape[1]):
        left_out = before.held_out[0, fold]
        changed = curves.copy()
        changed[left_out] = documents(int(left_out.sum()), 40, seed=9)
        after = prepare(changed)
        np.testing.assert_array_equal(before.trained_on[fold], after.trained_on[fold])
        assert np.abs(before.chosen_on - after.chosen_on).max() > 1e-4


def test_long_curves_are_binned_with_their_mass() -> None:
    curves = documents(3, 5000)
    prepared = prepare(curves, skip=0, smoothing=0.0)
    whole = np.cumsum(curves / curves.sum(axis=1, keepdims=True), axis=1)
    got = np.stack([
        prepared.read(one, np.array([1000, 2500, 5000]), 5000) for one in prepared.cumulative
    ])  # fmt: skip
    np.testing.assert_allclose(got, whole[:, [999, 2499, 4999]], atol=2e-4)


def test_one_curve_has_no_folds() -> None:
    assert exact(np.array([1.0, 2.0])).trained_on.shape[0] == 0


@pytest.mark.parametrize(
    "curves",
    [
        np.ones(4),
        np.ones((0, 4)),
        np.ones((4, 0)),
        -np.ones((2, 4)),
        np.full((2, 4), np.nan),
        np.zeros((2, 4)),
    ],
)
def test_bad_curves_are_refused(curves: np.ndarray) -> None:
    with pytest.raises(ValueError, match="curve"):
        prepare(curves)


@pytest.mark.parametrize("anchored", [True, False])
@pytest.mark.parametrize("prompt", [16, 100, 1000])
def test_at_every_boundary_is_the_stretched_curve(prompt: int, *, anchored: bool) -> None:
    curve = documents(1, 100)[0]
    known = exact(curve, anchored=anchored)
    np.testing.assert_allclose(known.at(prompt), cumulative(curve, prompt, anchored=anchored))


@pytest.mark.parametrize("length", [40, 60, 64, 256])
def test_masses_of_intervals_read_like_tokens_without_the_sink(length: int) -> None:
    """A sink on token 0 moves nothing, and each document stays one document."""
    rng = np.random.default_rng(length)
    tokens = np.repeat(rng.lognormal(0, 0.2, (8, min(60, length))), 1, axis=1)
    bins = tokens.shape[1]
    edges = np.linspace(0, length, bins + 1)
    density = np.stack(
        [np.interp(np.arange(length) + 0.5, (edges[1:] + edges[:-1]) / 2, row) for row in tokens]
    )
    density[:, 0] = density[:, 1]
    shares = density / density.sum(axis=1, keepdims=True)
    sunk = density.copy()
    sunk[:, 0] += 0.3 * density.sum(axis=1)
    sunk /= sunk.sum(axis=1, keepdims=True)

    def masses(rows: np.ndarray) -> np.ndarray:
        whole = np.concatenate([np.zeros((8, 1)), np.cumsum(rows, axis=1)], axis=1)
        at = np.arange(length + 1.0)
        return np.diff(np.stack([np.interp(edges, at, row) for row in whole]), axis=1)

    known = of_masses(masses(sunk), sunk[:, 0], length)
    plain = prepare(masses(shares), length=length, skip=0)
    assert known.documents == 8
    assert known.length == length
    # A first interval of one token and a bit holds the next token's density only.
    near = 0.01 if length == 64 else 2e-3
    np.testing.assert_allclose(known.cumulative, plain.cumulative, atol=near)
