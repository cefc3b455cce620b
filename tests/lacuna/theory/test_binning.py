"""Bins keep the mass of kernels, and single tokens at both ends."""

import numpy as np
import pytest
from dense_rivals import bin_kernels, bin_means
from hypothesis import given
from hypothesis import strategies as st

from lacuna.theory import binning


@given(st.integers(1, 5000), st.integers(4, 400))
def test_bins_tile_the_prompt_finest_at_both_ends(length: int, bins: int) -> None:
    bounds = binning.edges(length, bins)
    widths = np.diff(bounds)
    assert bounds[0] == 0
    assert bounds[-1] == length
    assert (widths >= 1).all()
    assert len(widths) <= bins + 1
    assert widths[0] == widths[-1] == 1
    if bins < length:
        assert len(widths) >= min(bins, length) * 0.6
        assert widths.max() <= 2 * widths[len(widths) // 3 : -(len(widths) // 3)].max() + 1
    else:
        assert len(widths) == length


@given(st.integers(0, 10), st.integers(8, 40))
def test_row_sums_survive_binning(seed: int, length: int) -> None:
    generator = np.random.default_rng(seed)
    kernels = np.tril(generator.random((2, length, length)) + 1e-3)
    kernels /= kernels.sum(axis=-1, keepdims=True)
    bounds = binning.edges(length, 6)
    widths = np.diff(bounds)
    binned = bin_kernels(kernels, bounds)
    np.testing.assert_allclose(
        (binned.mass * widths / widths[:, None]).sum(axis=-1), np.ones((2, len(widths)))
    )
    assert binned.square is not None
    assert (binned.square >= binned.mass**2 / widths[:, None] * (1 - 1e-12)).all()


def test_one_token_per_bin_is_the_kernel_itself() -> None:
    kernel = np.tril(np.ones((1, 5, 5)))
    binned = bin_kernels(kernel, binning.edges(5, 5))
    assert binned.mass is kernel
    assert binned.square is None


def test_expanding_a_smooth_curve_returns_it() -> None:
    bounds = binning.edges(2000, 100)
    curve = 1 / np.sqrt(np.arange(1, 2001)) + 1 / np.sqrt(np.arange(2000, 0, -1))
    back = binning.expand(bin_means(curve, bounds), bounds)
    np.testing.assert_allclose(back, curve / curve.sum(), rtol=0.03)
    assert back.sum() == pytest.approx(1)


def test_impossible_bins_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 4"):
        binning.edges(100, 3)
    with pytest.raises(ValueError, match="at least 1"):
        binning.edges(0, 3)
