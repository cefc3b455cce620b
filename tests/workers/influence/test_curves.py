"""What a profile says of gradient norms, against sums by hand and on simulated documents."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lacuna.theory import agreement, shape
from workers.influence import curves as told
from workers.influence.curves import Curves

N = 64
TRUTH = 0.4 + np.exp(-np.arange(N) / 4) + 2.5 * np.exp((np.arange(N) - N + 1) / 6)


def documents(count: int, seed: int, spread: float = 0.5, n: int = N) -> np.ndarray:
    """Norms around `TRUTH`: slow deviations, and totals that are 20-fold apart."""
    rng = np.random.default_rng(seed)
    truth = np.interp(np.linspace(0, 1, n), np.linspace(0, 1, N), TRUTH)
    knots = np.linspace(0, n - 1, 6)
    slow = np.stack([np.interp(np.arange(n), knots, k) for k in rng.normal(size=(count, 6))])
    return truth * np.exp(spread * slow + 0.9 * rng.normal(size=(count, 1)))


def made(norms: np.ndarray, how: str = "mean") -> Curves:
    return Curves(norms, tuple(f"{row:x}" for row in range(len(norms))), how)  # type: ignore[arg-type]


def wire(curves: Curves) -> told.Measured:
    return told.measured_to_wire(curves, told.sampling_to_wire("fixed", curves.norms))


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 20), st.integers(1, 80), st.integers(0, 1000))
def test_bands_contain_the_curve_and_everyone_has_one_vote(count: int, n: int, seed: int) -> None:
    norms = documents(count, seed, n=n)
    found = wire(made(norms))
    shares = norms / norms.sum(axis=1, keepdims=True)
    assert found.influence == pytest.approx(shares.mean(axis=0), rel=1e-5)
    assert found.mean_of_norms == pytest.approx(norms.sum(axis=0) / norms.sum(), rel=1e-5)
    smoothed = shape.smoothed_density(found.influence) / n
    assert found.smoothed == pytest.approx(smoothed, rel=1e-4)
    assert (found.low is None) == (found.simultaneous_high is None) == (count < 12)
    if found.low is None:
        return
    names = ("simultaneous_low", "low", "smoothed", "high", "simultaneous_high")
    rows = np.array([getattr(found, name) for name in names])
    assert (rows[[0, 1]] <= rows[2]).all()
    assert (rows[2] <= rows[[3, 4]]).all()


def test_a_document_s_scale_moves_the_mean_of_norms_alone() -> None:
    norms = documents(16, 3)
    scaled = norms.copy()
    scaled[0] *= 1e6
    one, other = wire(made(norms)), wire(made(scaled))
    assert one.influence == other.influence
    assert one.low == other.low
    assert other.mean_of_norms == pytest.approx(norms[0] / norms[0].sum(), rel=1e-3)
    assert other.effective_documents == pytest.approx(1, abs=1e-4)


def test_the_papers_aggregate_of_the_jacobian_is_the_root_of_the_mean_square() -> None:
    norms = documents(5, 0)
    rms = np.sqrt(np.square(norms).mean(axis=0))
    assert wire(made(norms, "rms")).mean_of_norms == pytest.approx(rms / rms.sum(), rel=1e-5)


def test_the_error_over_probes_is_the_spread_of_repeated_measurements() -> None:
    true, rng = documents(6, 1), np.random.default_rng(2)
    errors = 0.05 * true * rng.uniform(0.5, 1.5, true.shape)
    sampled = told.sampling_to_wire("fixed", true)
    claimed = told.measured_to_wire(made(true, "rms"), sampled, errors).standard_error
    repeats = []
    for _ in range(800):
        norms = true + errors * rng.standard_normal(true.shape)
        repeats.append((norms / norms.sum(axis=1, keepdims=True)).mean(axis=0))
    # Totals are held fixed, and move with the largest tokens.
    np.testing.assert_allclose(np.std(repeats, axis=0), claimed, rtol=0.15)


def test_zone_and_shape_are_decided_by_many_documents_and_not_by_few() -> None:
    truth = shape.shape(TRUTH)
    many, few = made(documents(48, 5)), made(documents(8, 5))
    zone, verdict = told.zone_to_wire(many)
    form = told.shape_to_wire(many)
    assert verdict == "zone"
    assert zone is not None
    assert zone.start_band is not None
    assert zone.start_band.low <= zone.start <= zone.start_band.high
    assert form.decided
    assert form.class_ == truth.name
    assert form.support is not None
    assert next(iter(form.support)) == form.class_
    assert form.primacy_band is not None
    assert form.primacy_band.low <= form.primacy_mass <= form.primacy_band.high
    zone, verdict = told.zone_to_wire(few)
    assert verdict == "undecided"
    assert zone is not None
    assert zone.start_band is None
    assert told.shape_to_wire(few).support is None
    assert not told.shape_to_wire(few).decided


def test_a_class_between_two_is_undecided() -> None:
    rng = np.random.default_rng(0)
    norms = np.ones((40, 50))
    norms[:, -5:] *= (1.1 * np.exp(0.2 * rng.normal(size=(40, 1)))) / np.exp(0.02)
    form = told.shape_to_wire(made(norms))
    assert form.support is not None
    assert set(form.support) == {"flat", "recency"}
    assert not form.decided


def test_masses_and_classes_are_those_of_the_theory() -> None:
    rng = np.random.default_rng(1)
    for n in (1, 2, 7, 64, 101):
        curve = rng.lognormal(0, 2, n)
        found = shape.shape(curve)
        first, middle, last, token = (curve / curve.sum()) @ shape.features(n)
        assert (first, middle, last) == pytest.approx(
            (found.primacy_mass, found.middle_mass, found.recency_mass), abs=1e-9
        )
        assert shape.classify(first, middle, last, token if n > 1 else None) == found.name


def test_intervals_of_a_prediction_s_distances_hold() -> None:
    population = documents(4000, 9)
    shares = population / population.sum(axis=1, keepdims=True)
    truth, rng = shares.mean(axis=0), np.random.default_rng(1)
    prediction = truth * np.exp(0.5 * np.linspace(0, 1, N))
    prediction /= prediction.sum()
    right = agreement.wasserstein(prediction, truth)
    hits = []
    for _ in range(150):
        rows = rng.integers(0, len(population), 32)
        found = told.prediction_to_wire(prediction, made(population[rows]))
        assert found.wasserstein_band is not None
        hits.append(found.wasserstein_band.low <= right <= found.wasserstein_band.high)
    assert np.mean(hits) >= 0.92


def test_paired_noise_bounds_a_perfect_prediction_and_not_a_wrong_one() -> None:
    rng = np.random.default_rng(4)
    within, beyond = [], []
    for seed in range(60):
        norms = documents(16, seed)
        shares = norms / norms.sum(axis=1, keepdims=True)
        perfect = shares * np.exp(0.2 * rng.normal(size=shares.shape))
        perfect /= perfect.sum(axis=1, keepdims=True)
        wrong = perfect * np.linspace(1.3, 0.7, N)
        wrong /= wrong.sum(axis=1, keepdims=True)
        for rows, seen in ((perfect, within), (wrong, beyond)):
            curve = rows.mean(axis=0)
            found = told.prediction_to_wire(curve, made(norms), (np.arange(16), rows))
            assert found.same_documents is not None
            assert found.same_documents.noise is not None
            seen.append(found.same_documents.wasserstein <= found.same_documents.noise)
    assert np.mean(within) >= 0.85
    assert np.mean(beyond) == 0


def test_ranks_are_those_of_twenty_intervals() -> None:
    norms = documents(20, 7)
    prediction = TRUTH / TRUTH.sum()
    found = told.prediction_to_wire(prediction, made(norms))
    to_bins = told.overlaps(N, 20)
    assert found.spearman == pytest.approx(
        agreement.spearman(prediction @ to_bins, made(norms).main @ to_bins), rel=1e-5
    )
    constant = told.prediction_to_wire(np.full(N, 1 / N), made(norms))
    assert constant.spearman is None
    assert constant.spearman_band is None


def test_ranks_tell_tiny_masses_apart() -> None:
    """Attention alone leaves 1e-70 at the end of a prompt, and the rank of that counts."""
    norms = documents(20, 7)
    falling = 10.0 ** -np.linspace(0, 70, N)
    found = told.prediction_to_wire(falling / falling.sum(), made(norms))
    gentle = told.prediction_to_wire(np.linspace(2, 1, N) / (1.5 * N), made(norms))
    assert found.spearman == gentle.spearman
    assert found.spearman_band == gentle.spearman_band
