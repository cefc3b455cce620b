"""The Cesàro closed forms against exact arithmetic, integrals and each other."""

from fractions import Fraction
from math import comb, factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import eval_genlaguerre

from lacuna.theory import cesaro, kernels, rollout

MIXING = st.one_of(st.sampled_from([0.0, 1.0, 1e-12, 0.5]), st.floats(0, 1))


def log_power_moment(power: int, k: int) -> Fraction:
    """int_0^1 x^power (ln 1/x)^(k-1) dx / (k-1)!, exactly."""
    return Fraction(1, (power + 1) ** k)


@pytest.mark.parametrize("n", [1, 2, 7, 12])
@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_binomial_integral_identity(n: int, k: int) -> None:
    """M^k[n-1, j] = C(n-1, j) int x^j (1-x)^(n-1-j) (ln 1/x)^(k-1)/(k-1)! dx, in rationals."""
    ours = cesaro.finite(n, k, 1.0)
    for j in range(n):
        integral = sum(
            ((-1) ** m * comb(n - 1 - j, m) * log_power_moment(j + m, k) for m in range(n - j)),
            start=Fraction(0),
        )
        assert ours[j] == pytest.approx(float(comb(n - 1, j) * integral), rel=1e-13)


@given(st.integers(1, 200), st.integers(1, 40), MIXING)
@settings(deadline=None)
def test_finite_is_the_rollout_of_uniform_kernels(n: int, layers: int, a: float) -> None:
    expected = rollout.rollout([kernels.uniform(n)] * layers, np.full(layers, a))
    np.testing.assert_allclose(cesaro.finite(n, layers, a), expected, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("layers", [1, 2, 5, 12, 24])
@pytest.mark.parametrize("a", [0.05, 0.5, 0.9])
def test_density_is_the_laguerre_form(layers: int, a: float) -> None:
    p = np.linspace(0.01, 1, 40)
    laguerre = eval_genlaguerre(layers - 1, 1, a * np.log(p) / (1 - a))
    density, atom = cesaro.density(p, layers, a)
    np.testing.assert_allclose(density, a * (1 - a) ** (layers - 1) * laguerre, rtol=1e-12)
    assert atom == pytest.approx((1 - a) ** layers)


@pytest.mark.parametrize(("layers", "a"), [(1, 0.3), (2, 1.0), (6, 0.4), (32, 0.1), (12, 1.0)])
def test_density_and_atom_are_a_distribution(layers: int, a: float) -> None:
    def integrand(x: float) -> float:  # p = exp(-x)
        return float(cesaro.density(np.exp(-x), layers, a)[0] * np.exp(-x))

    mass = quad(integrand, 0, 120, epsabs=1e-12, limit=200)[0]
    assert mass + cesaro.atom(layers, a) == pytest.approx(1, abs=1e-9)


def test_density_without_residual_is_a_power_of_the_logarithm() -> None:
    p = np.array([0.01, 0.3, 1.0])
    for layers in (1, 2, 7):
        expected = np.log(1 / p) ** (layers - 1) / factorial(layers - 1)
        density, atom = cesaro.density(p, layers, 1.0)
        np.testing.assert_allclose(density, expected, rtol=1e-13)
        assert atom == 0


@pytest.mark.parametrize(("layers", "a"), [(3, 0.5), (8, 0.2), (3, 1.0)])
def test_finite_rows_tend_to_the_continuum(layers: int, a: float) -> None:
    """Away from the ends the error falls with the grid."""
    errors = []
    for n in (2_000, 8_000):
        row = cesaro.finite(n, layers, a)
        p = (np.arange(n) + 0.5) / n
        inside = (p > 0.1) & (p < 0.9)
        density = cesaro.density(p, layers, a)[0]
        errors.append(float(np.abs(n * row / density - 1)[inside].max()))
        assert row[-1] == pytest.approx(cesaro.atom(layers, a), abs=5 * layers / n)
    assert errors[1] < 0.3 * errors[0] < 0.02


@pytest.mark.parametrize("threshold", [0.1, 0.75, 2.0])
@pytest.mark.parametrize("layers", [2, 3, 12, 32, 400])
def test_closed_boundary_of_the_dead_zone(layers: int, threshold: float) -> None:
    """At p* the density is the threshold: the closed form needs no root finding."""
    boundary = cesaro.dead_zone_boundary(layers, threshold)
    if boundary > 0:
        assert cesaro.density(boundary, layers, 1.0)[0] == pytest.approx(threshold, rel=1e-6)
    nearly = cesaro.dead_zone_boundary(layers, threshold, 1 - 1e-13)
    assert nearly == pytest.approx(boundary, rel=1e-5, abs=1e-300)


@given(st.integers(1, 200), MIXING, st.floats(1e-3, 10))
@settings(deadline=None)
def test_dead_zone_lies_where_the_density_is_low(layers: int, a: float, threshold: float) -> None:
    boundary = cesaro.dead_zone_boundary(layers, threshold, a)
    assert 0 <= boundary <= 1
    if 1e-250 < boundary < 1:
        inside, outside = boundary + (1 - boundary) * 1e-3, boundary * (1 - 1e-3)
        assert cesaro.density(inside, layers, a)[0] < threshold
        assert cesaro.density(outside, layers, a)[0] >= threshold * (1 - 1e-12)


@given(st.integers(1, 100), MIXING, st.floats(0.05, 3))
@settings(deadline=None)
def test_decomposition(layers: int, a: float, threshold: float) -> None:
    parts = cesaro.decompose(layers, a, threshold)
    masses = (parts.primacy_tail_mass, parts.dead_zone_mass, parts.recency_delta)
    assert all(0 <= mass <= 1 for mass in masses)
    assert sum(masses) == pytest.approx(1)
    assert parts.floor == pytest.approx(layers * a * (1 - a) ** (layers - 1), rel=1e-9, abs=1e-300)
    # the zone's density lies between the floor and the threshold
    width = parts.dead_zone_width
    assert parts.floor * width - 1e-9 <= parts.dead_zone_mass <= threshold * width + 1e-9


def test_decomposition_has_the_masses_of_a_long_row() -> None:
    n, layers, a, threshold = 20_000, 8, 0.3, 0.75
    parts = cesaro.decompose(layers, a, threshold)
    row = cesaro.finite(n, layers, a)
    start = round(parts.dead_zone_start * n)
    assert row[:start].sum() == pytest.approx(parts.primacy_tail_mass, abs=1e-3)
    assert row[start:-1].sum() == pytest.approx(parts.dead_zone_mass, abs=1e-3)


def test_with_residual_the_least_density_is_next_to_the_end() -> None:
    """Not in the middle, and far above the 1/(H-1)! of attention alone."""
    density = cesaro.density(np.linspace(0.001, 1, 500), 32, 0.1)[0]
    assert np.all(np.diff(density) < 0)
    assert density[-1] > 1e9 / factorial(31)


def test_dead_zone_without_residual_grows_with_depth() -> None:
    widths = cesaro.width_by_depth([2, 4, 8, 16, 32, 64], 1.0, 0.75)
    assert np.all(np.diff(widths) > 0)
    assert widths[-1] > 0.999


@given(st.integers(1, 5_000), MIXING, st.floats(1e-300, 1))
@settings(deadline=None, max_examples=60)
def test_never_nan(layers: int, a: float, p: float) -> None:
    density, atom = cesaro.density([p, 1.0], layers, a)
    assert not np.isnan(density).any()
    assert density.min() >= 0
    assert 0 <= atom <= 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: cesaro.finite(0, 1, 0.5),
        lambda: cesaro.finite(3, 0, 0.5),
        lambda: cesaro.finite(3, 1, 1.5),
        lambda: cesaro.density([0.0], 2, 0.5),
        lambda: cesaro.density([1.1], 2, 0.5),
        lambda: cesaro.dead_zone_boundary(2, 0.0),
        lambda: cesaro.atom(2, float("nan")),
    ],
)
def test_refusals(call: object) -> None:
    with pytest.raises(ValueError, match="must"):
        call()  # type: ignore[operator]
