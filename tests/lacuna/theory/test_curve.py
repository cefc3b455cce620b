"""Mass is kept whatever grid a curve is read on."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lacuna.theory.curve import Curve, normalised

weights = st.floats(0, 1e300, allow_subnormal=False)
curves = st.integers(1, 60).flatmap(
    lambda n: arrays(np.float64, n, elements=weights).filter(lambda row: row.max() > 0)
)


@given(curves, st.integers(1, 90))
def test_bins_are_the_masses_of_equal_intervals(row: np.ndarray, count: int) -> None:
    curve = Curve(row)
    binned = curve.bins(count)
    edges = np.linspace(0, len(curve), count + 1)
    assert binned.sum() == pytest.approx(1)
    assert (binned >= 0).all()
    by_mass = [curve.mass(a, b) for a, b in pairwise(edges)]
    np.testing.assert_allclose(binned, by_mass, atol=1e-14)
    np.testing.assert_allclose(
        np.cumsum(binned),
        np.interp(edges[1:], np.arange(len(curve) + 1), curve.cumulative()),
        atol=1e-14,
    )


@given(curves, st.integers(1, 12))
def test_refining_and_coming_back_changes_nothing(row: np.ndarray, factor: int) -> None:
    curve = Curve(row)
    back = Curve(Curve(curve.bins(len(curve) * factor)).bins(len(curve)))
    np.testing.assert_allclose(back.influence, curve.influence, rtol=1e-12, atol=1e-300)


def test_binning_keeps_small_masses_exact_next_to_large_ones() -> None:
    row = np.full(1000, 1e-18)
    row[0] = 1.0
    np.testing.assert_allclose(Curve(row).bins(500)[1:], 2e-18, rtol=1e-12)


@given(curves, st.floats(-5, 70), st.floats(-5, 70), st.floats(-5, 70))
def test_mass_is_additive(row: np.ndarray, a: float, b: float, c: float) -> None:
    a, b, c = sorted((a, b, c))
    curve = Curve(row)
    assert curve.mass(a, c) == pytest.approx(curve.mass(a, b) + curve.mass(b, c), abs=1e-12)
    assert curve.mass(c, a) == 0 or a == c


@given(curves)
def test_every_number_is_finite(row: np.ndarray) -> None:
    curve = Curve(row)
    assert np.isfinite(curve.density()).all()
    assert curve.density().mean() == pytest.approx(1)
    assert 0 <= curve.mean_position() <= 1
    cumulative = curve.cumulative()
    assert cumulative[0] == 0
    assert cumulative[-1] == 1
    assert (np.diff(cumulative) >= 0).all()


def test_one_token_carries_everything() -> None:
    curve = Curve(np.array([3.0]))
    assert curve.influence.tolist() == [1]
    assert curve.mean_position() == 0
    assert curve.bins(4).tolist() == [0.25] * 4


def test_mean_position_of_the_ends() -> None:
    assert Curve(np.array([1.0, 0, 0])).mean_position() == 0
    assert Curve(np.array([0, 0, 1.0])).mean_position() == 1


@pytest.mark.parametrize("tiny", [5e-324, 1e-310, 1e-200])
def test_the_faintest_curve_is_normalised(tiny: float) -> None:
    np.testing.assert_allclose(normalised([tiny, tiny]), 0.5)


@pytest.mark.parametrize(
    "bad", [[], [0.0, 0.0], [1.0, -1.0], [np.nan, 1.0], [np.inf, 1.0], 3.0, [[1.0], [0.0]]]
)
def test_what_is_no_curve_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="influence"):
        normalised(bad)  # type: ignore[arg-type]


def test_a_curve_cannot_be_changed_and_has_one_axis() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Curve(np.ones(3)).influence[0] = 2
    with pytest.raises(ValueError, match="one axis"):
        Curve(np.ones((2, 3)))
    with pytest.raises(ValueError, match="bins must be at least 1"):
        Curve(np.ones(3)).bins(0)
