"""Dead zones and shape classes: properties, and the published curve of BLOOM-176B."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lacuna.theory.curve import Curve
from lacuna.theory.shape import dead_zone, shape, smoothed_density


def valley(n: int, depth: float, centre: float = 0.5) -> np.ndarray:
    """A smooth U with its minimum at `centre` of the prompt, sampled at n tokens."""
    at = (np.arange(n) + 0.5) / n
    return 1 - depth * np.exp(-(((at - centre) / 0.2) ** 2))


@given(st.integers(1, 300), st.floats(0.01, 1), st.floats(1e-300, 1e300), st.floats(0, 1))
def test_a_flat_profile_has_no_dead_zone(
    n: int, threshold: float, level: float, window: float
) -> None:
    flat = np.full(n, level)
    assert dead_zone(flat, threshold, window) is None
    assert shape(flat).name == "flat"


@given(st.integers(20, 400), st.floats(0.5, 0.95), st.floats(0.35, 0.65))
def test_a_u_has_a_zone_that_excludes_both_ends(n: int, depth: float, centre: float) -> None:
    curve = valley(n, depth, centre)
    zone = dead_zone(curve)
    assert zone is not None
    assert 0 < zone.start < zone.end < n
    assert zone.start <= zone.argmin < zone.end
    assert zone.argmin == pytest.approx(centre * n, abs=max(2, 0.02 * n))
    assert zone.min_density <= zone.threshold
    assert shape(curve).name == "u_shaped"


@given(
    arrays(np.float64, st.integers(2, 120), elements=st.floats(0, 1e3, allow_subnormal=False)),
    st.floats(0.05, 3),
    st.floats(0, 1),
)
def test_the_least_the_mean_and_the_threshold_are_in_that_order(
    curve: np.ndarray, threshold: float, window: float
) -> None:
    assume(curve.max() > 1e-3)
    zone = dead_zone(curve, threshold, window)
    if zone is not None:
        assert 0 <= zone.min_density <= zone.mean_density < threshold


def test_a_single_loud_token_does_not_lift_the_mean_above_the_threshold() -> None:
    curve = np.full(300, 0.5)
    curve[:30] = curve[-30:] = 3.0
    curve[150] = 3.0
    zone = dead_zone(curve)
    assert zone is not None
    assert zone.start < 150 < zone.end
    assert zone.min_density < zone.mean_density < zone.threshold


def test_a_u_is_told_by_its_middle_even_where_the_start_has_less_than_an_even_share() -> None:
    curve = np.full(100, 0.7)
    curve[:10], curve[-10:] = 0.9, 3.5
    named = shape(curve)
    assert named.primacy_excess < 0
    assert named.name == "u_shaped"


@given(
    st.integers(30, 300), st.floats(0.6, 0.95), st.floats(0.3, 0.7), st.sampled_from([2, 3, 5, 7])
)
def test_resampling_moves_the_zone_by_about_a_token(
    n: int, depth: float, centre: float, factor: int
) -> None:
    short, long = dead_zone(valley(n, depth, centre)), dead_zone(valley(n * factor, depth, centre))
    stretched = dead_zone(Curve(valley(n, depth, centre)).bins(n * factor))
    assert short is not None
    for other in (long, stretched):
        assert other is not None
        assert abs(other.start / factor - short.start) <= 1.5
        assert abs(other.end / factor - short.end) <= 1.5
        assert other.min_density == pytest.approx(short.min_density, abs=0.02)


@given(
    arrays(np.float64, st.integers(1, 80), elements=st.floats(0, 1e3, allow_subnormal=False)),
    st.floats(0.05, 3),
    st.floats(1e-200, 1e200),
)
def test_scale_changes_nothing_and_nothing_is_nan(
    curve: np.ndarray, threshold: float, scale: float
) -> None:
    assume(curve.max() > 1e-3)
    zone, scaled = dead_zone(curve, threshold), dead_zone(curve * scale, threshold)
    assert (zone is None) == (scaled is None)
    if zone is not None and scaled is not None:
        assert (zone.start, zone.end) == (scaled.start, scaled.end)
        assert np.isfinite([zone.fraction, zone.mean_density, zone.min_density]).all()
    named = shape(curve)
    total = named.primacy_mass + named.middle_mass + named.recency_mass
    assert total == pytest.approx(1)
    assert named.primacy_excess == pytest.approx(named.primacy_mass - 0.1)


@given(
    arrays(np.float64, st.integers(4, 120), elements=st.floats(0, 10, allow_subnormal=False)),
    st.floats(0, 1),
)
def test_smoothing_is_the_mean_over_the_window(curve: np.ndarray, fraction: float) -> None:
    assume(curve.max() > 1e-6)
    n, density = curve.size, Curve(curve).density()
    smooth = smoothed_density(curve, fraction)
    assert smooth[0] == density[0]
    assert smooth[-1] == density[-1]
    inner = Curve(curve[1:-1]) if curve[1:-1].max() > 0 else None
    for j in range(1, n - 1):
        half = max(fraction * n, 1) / 2
        left, right = max(j - 0.5 - half, 0), min(j - 0.5 + half, n - 2)
        mass = inner.mass(left, right) if inner is not None else 0
        mean = mass * density[1:-1].sum() / (right - left)
        assert smooth[j] == pytest.approx(mean, rel=1e-9, abs=1e-9)


def test_the_spikes_at_both_ends_do_not_leak_into_the_zone() -> None:
    curve = np.full(100, 0.5)
    curve[0] = curve[-1] = 25.5
    zone = dead_zone(curve)
    assert zone is not None
    assert (zone.start, zone.end) == (1, 99)
    assert zone.min_density == pytest.approx(0.5)


def test_a_falling_curve_has_its_zone_at_the_end() -> None:
    zone = dead_zone(np.linspace(2, 0, 200))
    assert zone is not None
    assert zone.end == 200
    assert zone.argmin == 199
    assert shape(np.linspace(2, 0, 200)).name == "primacy"
    assert shape(np.linspace(0, 2, 200)).name == "recency"


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_shortest_prompts(n: int) -> None:
    last = np.eye(n)[-1]
    zone = dead_zone(last)
    assert (zone is None) == (n == 1)
    if zone is not None:
        assert (zone.start, zone.end) == (0, n - 1)
    assert shape(last).name == ("flat" if n == 1 else "recency")
    assert shape(np.eye(n)[0]).name == ("flat" if n == 1 else "collapsed")


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="threshold"):
        dead_zone([1.0], threshold=0.0)
    with pytest.raises(ValueError, match="window_fraction"):
        dead_zone([1.0], window_fraction=2.0)


def test_the_published_curve_of_bloom_176b() -> None:
    default = Path(__file__).parents[3].parent / "shared" / "reference"
    path = Path(os.environ.get("LACUNA_REFERENCE_DIR", default)) / "bloom176b_fineweb_256.csv"
    if not path.exists():
        pytest.skip(f"no published curves: {path.name} is not in the reference directory")
    table = np.genfromtxt(path, delimiter=",", names=True)
    zone = dead_zone(table["d_measured"])
    assert zone is not None
    assert (zone.start, zone.end) == (18, 181)
    assert dead_zone(table["d_measured"], threshold=0.5) is None
    assert shape(table["d_measured"]).name == "u_shaped"
    assert shape(np.clip(table["a_no_residual"], 0, None)).name == "collapsed"
