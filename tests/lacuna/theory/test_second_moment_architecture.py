"""Parameters alone: the recursions against dense kernels, bins against tokens."""

import numpy as np
import pytest
from dense_rivals import bin_kernels
from hypothesis import given, settings
from hypothesis import strategies as st

from lacuna.theory import agreement, binning
from lacuna.theory.second_moment import LayerMoments, second_moment
from lacuna.theory.second_moment_architecture import AlibiHead, from_architecture

slopes = st.one_of(st.sampled_from([0.0, 1e-12, 1e-4, 0.5, 50.0, 1e4]), st.floats(0, 60))
diagonals = st.one_of(st.sampled_from([0.0, 1e4, -1e4]), st.floats(-30, 30))


def dense(n: int, slope: float, diagonal: float) -> np.ndarray:
    """Softmax of the logits themselves, in long double."""
    distance = (np.arange(n)[:, None] - np.arange(n)).astype(np.longdouble)
    logits = np.where(distance >= 0, -slope * distance + diagonal * (distance == 0), -np.inf)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), dtype=np.float64)


@settings(deadline=None)  # the first call imports scipy
@given(st.integers(1, 24), slopes, diagonals, st.integers(0, 99))
def test_both_sides_of_a_kernel_apply_in_linear_time(
    n: int, slope: float, diagonal: float, seed: int
) -> None:
    kernel, matrix = dense(n, slope, diagonal), np.random.default_rng(seed).random((n, 3))
    ours = AlibiHead.of(n, slope, diagonal)
    np.testing.assert_allclose(ours.pull(matrix), kernel.T @ matrix, rtol=1e-9, atol=1e-290)
    np.testing.assert_allclose(ours.push(matrix), kernel @ matrix, rtol=1e-9, atol=1e-290)
    np.testing.assert_allclose(ours.push(np.ones(n)), 1, rtol=1e-12)


@settings(deadline=None)  # the first call imports scipy
@given(st.integers(5, 60), slopes, diagonals)
def test_closed_form_bins_are_the_means_of_the_dense_kernel(
    n: int, slope: float, diagonal: float
) -> None:
    bounds = binning.edges(n, 4 + n // 5)
    mass, square, own = AlibiHead.of(n, slope, diagonal).binned(bounds)
    rival = bin_kernels(dense(n, slope, diagonal)[None], bounds)
    if rival.square is None or rival.diagonal is None:
        return
    np.testing.assert_allclose(mass, rival.mass[0], rtol=1e-8, atol=1e-280)
    np.testing.assert_allclose(square, rival.square[0], rtol=1e-8, atol=1e-280)
    np.testing.assert_allclose(own, rival.diagonal[0], rtol=1e-8, atol=1e-280)


@settings(deadline=None)  # the first call imports scipy
@given(
    st.integers(1, 20), st.integers(1, 4), st.lists(slopes, min_size=1, max_size=3),
    diagonals, st.integers(0, 99),
)  # fmt: skip
def test_without_mlp_it_is_the_dense_second_moment(
    n: int, layers: int, heads: list[float], diagonal: float, seed: int
) -> None:
    lam = 0.9 * np.random.default_rng(seed).random(layers)
    kernels = binning.BinnedKernel(np.stack([dense(n, s, diagonal) for s in heads]))
    gains = np.full(len(heads), 1 / len(heads))
    rival = second_moment(
        [
            LayerMoments(kernels, gains * lam[t] ** 2, np.ones(n), keep=(1 - lam[t]) ** 2)
            for t in reversed(range(layers))
        ],
        np.arange(n + 1),
    )
    ours = from_architecture(n, layers, lam, heads, diagonal)
    np.testing.assert_allclose(ours, rival, rtol=1e-7, atol=1e-140)


def test_with_mlp_it_is_the_dense_forward_and_backward_recursion() -> None:
    n, layers, mix, squared, rho = 30, 5, 0.25, 0.3, 0.4
    heads = [0.0, 0.2]
    kernels = np.stack([dense(n, s, 0.7) for s in heads])
    stream, found = np.eye(n), []
    for _ in range(layers):
        norm = np.sqrt(np.diagonal(stream))
        attended = np.mean([k @ (stream / np.outer(norm, norm)) @ k.T for k in kernels], axis=0)
        draw = norm[0] / norm
        stream = (1 - mix) ** 2 * stream + mix**2 * norm[0] ** 2 * attended
        norm = np.sqrt(np.diagonal(stream))
        alike = stream / np.outer(norm, norm)
        quiet = norm[0] / norm
        branch = squared * np.outer(quiet, quiet) * (rho + (1 - rho) * alike)
        found.append((draw, branch))
        stream = stream + squared * norm[0] ** 2 * (rho + (1 - rho) * alike) * alike
    rival = second_moment(
        [
            LayerMoments(
                binning.BinnedKernel(kernels),
                np.full(2, mix**2 / 2),
                draw,
                np.diagonal(branch).copy(),
                branch,
                keep=(1 - mix) ** 2,
            )
            for draw, branch in reversed(found)
        ],
        np.arange(n + 1),
    )
    ours = from_architecture(n, layers, mix, heads, 0.7, squared, rho)
    np.testing.assert_allclose(ours, rival, rtol=1e-9)


@pytest.mark.parametrize("mlp", [0.0, 0.2])
@pytest.mark.parametrize("heads", [[0.0], [0.5, 0.03], [5.0]])
def test_bins_come_within_a_thousandth_of_every_token(heads: list[float], mlp: float) -> None:
    fine, coarse = (
        from_architecture(600, 6, 0.3, heads, 0.2, mlp, bins=bins) for bins in (600, 100)
    )
    assert agreement.wasserstein(fine, coarse) < 1e-3
    np.testing.assert_allclose(coarse[[0, -1]], fine[[0, -1]], rtol=0.01, atol=1e-6)


@settings(deadline=None)  # the first call imports scipy
@given(
    st.sampled_from([1, 2, 3, 100, 2000]), st.integers(1, 3), st.sampled_from([0.0, 1.0, 0.3]),
    slopes, diagonals, st.sampled_from([0.0, 1e-3, 1e6]),
)  # fmt: skip
def test_no_nan_for_any_allowed_input(
    n: int, layers: int, mix: float, slope: float, diagonal: float, mlp: float
) -> None:
    curve = from_architecture(n, layers, mix, slope, diagonal, mlp, bins=60)
    assert curve.shape == (n,)
    assert np.isfinite(curve).all()
    assert curve.sum() == pytest.approx(1)


def test_equal_heads_cost_nothing_and_change_nothing() -> None:
    one, many = (from_architecture(64, 3, 0.2, s) for s in ([0.1], [0.1] * 50))
    np.testing.assert_array_equal(one, many)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"mixing": 1.5}, "mixing"),
        ({"mixing": [0.1, 0.1, 0.1]}, "shape"),
        ({"slopes": -1.0}, "slopes"),
        ({"slopes": [[1.0]]}, "slopes"),
        ({"diagonal": np.nan}, "diagonal"),
        ({"mlp_gain": -1.0}, "mlp_gain"),
        ({"mlp_coherence": 2.0}, "mlp_coherence"),
        ({"length": 0}, "length"),
    ],
)
def test_values_outside_their_range_are_refused(change: dict[str, object], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        from_architecture(**({"length": 8, "layers": 2, "mixing": 0.1} | change))  # type: ignore[arg-type]
