"""Distances against scipy, and the figures that were published."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import spearmanr, wasserstein_distance

from lacuna.theory import agreement

weights = st.floats(0, 1, allow_subnormal=False)


def rows(count: int) -> st.SearchStrategy[np.ndarray]:
    return st.integers(1, 40).flatmap(
        lambda n: arrays(np.float64, (count, n), elements=weights).filter(
            lambda a: bool((a.max(axis=1) > 0).all())
        )
    )


@given(rows(2))
def test_wasserstein_is_scipys_over_the_length(pair: np.ndarray) -> None:
    p, q = pair
    n = p.size
    expected = 0.0
    if n > 1:
        at = np.arange(n)
        expected = wasserstein_distance(at, at, p / p.sum(), q / q.sum()) / (n - 1)
    assert agreement.wasserstein(p, q) == pytest.approx(expected, abs=1e-12)


@given(rows(3))
def test_wasserstein_is_a_metric_within_the_unit_interval(three: np.ndarray) -> None:
    p, q, r = three
    d = agreement.wasserstein
    assert d(p, p) == 0
    assert 0 <= d(p, q) == pytest.approx(d(q, p), abs=1e-12)
    assert d(p, q) <= 1
    assert d(p, r) <= d(p, q) + d(q, r) + 1e-12
    assert d(7e200 * p, q) == pytest.approx(d(p, q), abs=1e-12)


def test_a_shift_by_one_token_costs_one_step() -> None:
    p, q = np.zeros(11), np.zeros(11)
    p[4], q[5] = 1, 1
    assert agreement.wasserstein(p, q) == pytest.approx(0.1)


@given(rows(2))
def test_spearman_is_scipys_and_none_where_that_is_nan(pair: np.ndarray) -> None:
    p, q = pair
    ours = agreement.spearman(p, q)
    if p.size < 3 or np.ptp(p) == 0 or np.ptp(q) == 0:
        assert ours is None
    else:
        assert ours == pytest.approx(spearmanr(p, q).statistic, abs=1e-12)


def test_curves_of_different_lengths_are_refused() -> None:
    for measure in (agreement.wasserstein, agreement.spearman):
        with pytest.raises(ValueError, match="cannot be compared"):
            measure([1.0, 2.0, 3.0], [1.0, 2.0])


def test_the_published_figures_of_bloom_176b(published: dict[str, np.ndarray]) -> None:
    measured = published["d_measured"]
    figures = {
        "a_no_residual": (0.6511, None),
        "b_mask_pos_residual": (0.0790, 0.907),
        "c_plus_content": (0.0159, 0.831),
    }
    for name, (distance, rank) in figures.items():
        assert agreement.wasserstein(published[name], measured) == pytest.approx(distance, abs=5e-5)
        if rank is not None:
            assert agreement.spearman(published[name], measured) == pytest.approx(rank, abs=5e-4)


@pytest.fixture
def published(reference: Path) -> dict[str, np.ndarray]:
    path = reference / "bloom176b_fineweb_256.csv"
    if not path.exists():
        pytest.skip(f"no published curves: {path.name} is not in the reference directory")
    table = np.genfromtxt(path, delimiter=",", names=True)
    # Read off a vector figure: values of 0 come out as -1e-9.
    return {name: np.clip(table[name], 0, None) for name in table.dtype.names}
