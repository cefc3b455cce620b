"""The exact evaluation against sums over paths, random vectors and dense algebra."""

import itertools

import numpy as np
import pytest
from dense_rivals import bin_kernels, bin_means
from hypothesis import given
from hypothesis import strategies as st

from lacuna.theory import agreement, binning
from lacuna.theory.second_moment import LayerMoments, second_moment


def random_kernels(generator: np.random.Generator, heads: int, n: int) -> np.ndarray:
    kernels = np.tril(generator.random((heads, n, n)) ** 3)
    return kernels / kernels.sum(axis=-1, keepdims=True)


def exact(n: int) -> np.ndarray:
    return np.arange(n + 1)


def smooth_kernels(n: int, slopes: list[float]) -> np.ndarray:
    distance = np.arange(n)[:, None] - np.arange(n)
    kernels = np.stack(
        [np.where(distance >= 0, np.exp(-s * np.maximum(distance, 0)), 0) for s in slopes]
    )
    return kernels / kernels.sum(axis=-1, keepdims=True)


@given(st.integers(0, 1000), st.integers(1, 3), st.integers(1, 2), st.integers(1, 3))
def test_independent_heads_are_the_sum_over_pairs_of_paths(
    seed: int, n: int, heads: int, layers: int
) -> None:
    """With independent value matrices two paths correlate only when they use the same heads."""
    generator = np.random.default_rng(seed)
    kernels = [random_kernels(generator, heads, n) for _ in range(layers)]
    gains = generator.random((layers, heads))
    scale = generator.random((layers, n)) + 0.5
    expected = np.zeros(n)
    for choice in itertools.product(range(heads + 1), repeat=layers):
        row = np.zeros(n)
        row[-1] = 1
        for t in reversed(range(layers)):
            if choice[t] > 0:
                h = choice[t] - 1
                row = np.sqrt(gains[t, h]) * (row @ kernels[t][h]) * scale[t]
        expected += row**2
    ours = second_moment(
        (
            LayerMoments(binning.BinnedKernel(kernels[t]), gains[t], scale[t])
            for t in reversed(range(layers))
        ),
        exact(n),
    )
    expected = np.sqrt(expected)
    np.testing.assert_allclose(ours, expected / expected.sum(), rtol=1e-10)


def test_it_is_the_norm_of_a_gradient_through_random_matrices() -> None:
    """Monte Carlo: heads and MLP are random matrices; correlated ones have the Gram given."""
    generator = np.random.default_rng(1)
    n, heads, layers, width, draws = 5, 2, 3, 48, 400
    mixer = generator.standard_normal((heads + 1, heads + 1)) * 0.4
    mixer[0] = 0
    mixer[0, 0] = 1  # the identity path; heads share noise and a part of the identity
    gram = mixer @ mixer.T
    kernels = [random_kernels(generator, heads, n) for _ in range(layers)]
    scale = generator.random((layers, n)) + 0.5
    shared = generator.random((n, 3))
    mlp = shared @ shared.T / 3
    squares = np.zeros(n)
    for _ in range(draws):
        rows = np.zeros((n, width))
        rows[-1] = generator.standard_normal(width)
        for t in reversed(range(layers)):
            noise = generator.standard_normal((3, width, width)) / np.sqrt(width)
            jacobians = np.einsum("ja,axy->jxy", shared / np.sqrt(3), noise)
            rows = rows + np.einsum("jx,jxy->jy", rows, jacobians)
            basis = generator.standard_normal((heads + 1, width, width)) / np.sqrt(width)
            basis[0] = np.eye(width)
            values = np.einsum("hb,bxy->hxy", mixer[1:], basis)
            drawn = np.einsum("hij,ix,hxy->jy", kernels[t], rows, values)
            rows = rows + scale[t][:, None] * drawn
        squares += (rows**2).sum(axis=1)
    monte_carlo = np.sqrt(squares) / np.sqrt(squares).sum()
    ours = second_moment(
        [
            LayerMoments(
                binning.BinnedKernel(kernels[t]), gram, scale[t], np.diagonal(mlp).copy(), mlp
            )
            for t in reversed(range(layers))
        ],
        exact(n),
    )
    np.testing.assert_allclose(ours, monte_carlo, rtol=0.05)


def test_a_diagonal_gram_is_independent_heads() -> None:
    generator = np.random.default_rng(2)
    kernels = binning.BinnedKernel(random_kernels(generator, 3, 12))
    gains, scale = generator.random(3), generator.random(12)
    gram = np.diag(np.concatenate(([1.0], gains)))
    by_gains, by_gram = (
        second_moment([LayerMoments(kernels, g, scale)] * 4, exact(12)) for g in (gains, gram)
    )
    np.testing.assert_allclose(by_gains, by_gram, rtol=1e-12)


def test_no_gain_leaves_everything_at_the_last_token() -> None:
    kernels = binning.BinnedKernel(smooth_kernels(6, [0.3]))
    layer = LayerMoments(kernels, np.zeros(1), np.ones(6), np.full(6, 0.5))
    np.testing.assert_array_equal(second_moment([layer] * 3, exact(6)), np.eye(6)[-1])


def test_parallel_branches_do_not_multiply() -> None:
    """One token, kernel 1: in sequence (1 + M)(1 + g), in parallel 1 + M + g at each layer."""
    kernels = binning.BinnedKernel(np.array([[[1.0, 0.0], [0.5, 0.5]]]))
    grow = {}
    for parallel in (False, True):
        layer = LayerMoments(kernels, np.array([0.3]), np.ones(2), np.full(2, 0.2), None, parallel)
        grow[parallel] = second_moment([layer], exact(2))
    ratio = {p: (g[0] / g[1]) ** 2 for p, g in grow.items()}
    assert ratio[False] == pytest.approx(1.2 * 0.3 * 0.25 / (1.2 + 1.2 * 0.3 * 0.25))
    assert ratio[True] == pytest.approx(0.3 * 0.25 / (1.2 + 0.3 * 0.25))


def layered(kernels: np.ndarray, bounds: np.ndarray, gains: np.ndarray, mlp: str) -> np.ndarray:
    n, m = kernels.shape[-1], bounds.size - 1
    scale = bin_means(1 / np.sqrt(1 + np.arange(n) / n), bounds)
    layer = LayerMoments(
        bin_kernels(kernels, bounds),
        gains,
        scale,
        None if mlp == "none" else np.full(m, 0.2),
        np.full((m, m), 0.1) if mlp == "shared" else None,
    )
    return second_moment([layer] * 6, bounds)


@pytest.mark.parametrize("mlp", ["none", "alone", "shared"])
@pytest.mark.parametrize("paths", ["independent", "gram"])
@pytest.mark.parametrize("slopes", [[0.0], [0.5, 0.05, 0.0], [3.0, 1.0]])
def test_bins_come_within_a_thousandth_of_every_token(
    slopes: list[float], paths: str, mlp: str
) -> None:
    n, heads = 320, len(slopes)
    kernels = smooth_kernels(n, slopes)
    gains = np.full(heads, 0.3 / heads)
    if paths == "gram":
        vectors = np.random.default_rng(3).standard_normal((heads + 1, 40)) / np.sqrt(40)
        gains = 0.2 * vectors @ vectors.T
        gains[0, 0] = 1
    fine = layered(kernels, binning.edges(n, n), gains, mlp)
    coarse = layered(kernels, binning.edges(n, 80), gains, mlp)
    assert agreement.wasserstein(fine, coarse) < 1e-3
    np.testing.assert_allclose(coarse[[0, -1]], fine[[0, -1]], rtol=0.02, atol=1e-6)


@given(st.integers(0, 1000), st.integers(1, 12), st.integers(1, 20))
def test_no_number_is_lost(seed: int, n: int, layers: int) -> None:
    generator = np.random.default_rng(seed)
    kernels = binning.BinnedKernel(random_kernels(generator, 2, n))
    size = 10.0 ** generator.integers(-30, 30)
    layer = LayerMoments(
        kernels, size * generator.random(2), np.ones(n), size * generator.random(n)
    )
    ours = second_moment([layer] * layers, exact(n))
    assert np.isfinite(ours).all()
    assert ours.sum() == pytest.approx(1)
