"""Decaying sums against their definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lacuna.theory._recursion import (
    decayed_suffix_sums,
    geometric,
    running_scan,
    windowed_suffix_sums,
)

SLOPES = st.one_of(st.sampled_from([0.0, 1e-12, 50.0, 800.0, 1e6]), st.floats(0, 5))


def brute(weights: np.ndarray, slope: float, window: int) -> np.ndarray:
    n = weights.size
    q = np.exp(-np.longdouble(slope))
    return np.array(
        [
            sum(
                (weights[i] * q ** (i - j - 1) for i in range(j + 1, min(n, j + window))),
                start=np.longdouble(0),
            )
            for j in range(n)
        ]
    )


@given(st.integers(1, 40), SLOPES, st.integers(1, 45), st.integers(0, 2**31))
@settings(deadline=None, max_examples=60)
def test_windowed_sums(n: int, slope: float, window: int, seed: int) -> None:
    weights = np.random.default_rng(seed).random((2, n)) ** 8
    ours = windowed_suffix_sums(weights, np.array([slope, 0.0]), window)
    for row, s in ((0, slope), (1, 0.0)):
        np.testing.assert_allclose(
            ours[row], brute(weights[row], s, window).astype(float), rtol=1e-13, atol=1e-250
        )


@pytest.mark.parametrize("slope", [0.0, 1e-12, 0.01, 3.0, 200.0])
def test_blocks_are_joined_without_a_seam(slope: float) -> None:
    """Longer than a block of 256: the answer must not depend on where blocks end."""
    weights = np.random.default_rng(0).random((1, 1, 900))
    ours = decayed_suffix_sums(weights, np.array([slope]))[0, 0]
    expected, y = np.empty(900), 0.0
    for j in range(899, -1, -1):
        expected[j] = y
        y = weights[0, 0, j] + np.exp(-slope) * y
    np.testing.assert_allclose(ours, expected, rtol=1e-13)


def test_a_window_forgets_completely() -> None:
    """Subtracting what left the window would leave rounding errors where the sum is exactly 0."""
    weights = np.zeros((1, 1000))
    weights[0, 500] = 1.0
    out = windowed_suffix_sums(weights, np.array([0.0]), 10)[0]
    assert np.flatnonzero(out).tolist() == list(range(491, 500))


@given(st.floats(0, 1000), st.integers(0, 5000))
def test_geometric_sum(slope: float, count: int) -> None:
    q = np.exp(-np.longdouble(slope))
    expected = np.longdouble(count) if q == 1 else (1 - q**count) / (1 - q)
    if slope > 1e-10 or slope == 0:  # the plain quotient cancels for smaller slopes
        assert float(geometric(np.array(slope), np.array(float(count)))) == pytest.approx(
            float(expected), rel=1e-8
        )
    exact = float(np.sum(q ** np.arange(count)))
    assert float(geometric(np.array(slope), np.array(float(count)))) == pytest.approx(
        exact, rel=1e-13
    )


@given(st.integers(1, 70), st.floats(0, 1))
def test_scan_is_the_recursion(count: int, decay: float) -> None:
    x = np.random.default_rng(count).random((1, count))
    expected, y = [], 0.0
    for value in x[0]:
        y = value + decay * y
        expected.append(y)
    running_scan(x, np.array([decay]))
    np.testing.assert_allclose(x[0], expected, rtol=1e-13)
