"""A profile read at another length: mass, anchors, and curves computed at two lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacuna.theory.agreement import wasserstein
from lacuna.theory.curve import anchor, cumulative


@given(st.integers(1, 400), st.integers(1, 3000), st.booleans(), st.integers(0, 2**32 - 1))
def test_cumulative_is_a_distribution(n0: int, n: int, anchored: bool, seed: int) -> None:
    F = cumulative(np.random.default_rng(seed).random(n0) + 1e-9, n, anchored=anchored)
    assert F.shape == (n + 2,)
    assert F[0] == 0
    assert F[n] == pytest.approx(1)
    assert (np.diff(F) >= -1e-15).all()
    assert F[n + 1] - F[n] == pytest.approx(F[n] - F[n - 1])


def test_the_same_length_changes_nothing() -> None:
    p = np.random.default_rng(0).random(300)
    assert np.diff(cumulative(p, 300))[:300] == pytest.approx(p / p.sum())


@pytest.mark.parametrize("n", [300, 1000, 5000])
def test_the_ends_keep_their_distance_in_tokens(n: int) -> None:
    p = np.random.default_rng(1).random(256)
    ends = anchor(256, n)
    got = np.diff(cumulative(p, n))[:n]
    assert ends == 16
    assert got[:ends] == pytest.approx(p[:ends] / p.sum())
    assert got[-ends:] == pytest.approx(p[-ends:] / p.sum())
    assert got[ends:-ends].sum() == pytest.approx(p[ends:-ends].sum() / p.sum())


def test_a_curve_over_relative_positions_is_stretched_whole() -> None:
    F = cumulative(np.array([1.0, 3.0]), 100, anchored=False)
    assert F[50] == pytest.approx(0.25)


def alibi_profile(n: int, layers: int = 24, heads: int = 16, mixing: float = 0.1) -> np.ndarray:
    """Residual rollout of dense ALiBi kernels, the slow way."""
    distance = np.subtract.outer(np.arange(n), np.arange(n))
    kernel = np.zeros((n, n))
    for slope in 2.0 ** (-8 * (np.arange(heads) + 1) / heads):
        weights = np.where(distance >= 0, np.exp(-slope * np.maximum(distance, 0)), 0.0)
        kernel += weights / weights.sum(axis=1, keepdims=True) / heads
    row = np.zeros(n)
    row[-1] = 1
    for _ in range(layers):
        row = (1 - mixing) * row + mixing * (row @ kernel)
    return row


@pytest.mark.parametrize(("measured", "wanted"), [(128, 256), (256, 128), (128, 512)])
def test_anchoring_beats_plain_stretching_on_curves_of_two_lengths(
    measured: int, wanted: int
) -> None:
    """Recency is a distance in tokens, not a share of the prompt: ALiBi's residual rollout."""
    short, long = alibi_profile(measured), alibi_profile(wanted)
    anchored = np.diff(cumulative(short, wanted))[:wanted]
    stretched = np.diff(cumulative(short, wanted, anchored=False))[:wanted]
    assert wasserstein(anchored, long) < wasserstein(stretched, long)
    tail = slice(-8, None)
    miss = np.abs(anchored[tail] - long[tail]).sum()
    assert miss < 0.1 * np.abs(stretched[tail] - long[tail]).sum()


@pytest.mark.parametrize("bad", [[], [0.0, 0.0], [1.0, -1.0], [1.0, np.nan], [np.inf]])
def test_curves_without_meaning_are_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="positive sum"):
        cumulative(np.array(bad), 10)
