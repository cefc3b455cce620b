"""Bands against theorems, against classical intervals, and on heavy-tailed populations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lacuna.evidence import bands

N = 40


def population(documents: int = 400, seed: int = 0, length: int = N) -> np.ndarray:
    """Norms with raised ends, log-normal tokens and totals that differ 20-fold."""
    rng = np.random.default_rng(seed)
    at = np.linspace(0, 1, length)
    base = 0.7 + 0.8 * np.exp(-at / 0.05) + 2.0 * np.exp((at - 1) / 0.08)
    slow = np.stack(
        [np.interp(at, np.linspace(0, 1, 9), k) for k in rng.normal(size=(documents, 9))]
    )
    rows = base * np.exp(0.5 * slow + 0.4 * rng.normal(size=(documents, length)))
    return rows * np.exp(0.95 * rng.normal(size=(documents, 1)))


def shares(norms: np.ndarray) -> np.ndarray:
    return norms / norms.sum(axis=1, keepdims=True)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30), st.floats(1e-3, 1e3))
def test_effective_documents_lie_between_one_and_all_and_ignore_scale(w, scale):
    found = bands.effective_documents(w)
    assert 1 - 1e-9 <= found <= len(w) + 1e-9
    assert bands.effective_documents(np.array(w) * scale) == pytest.approx(found)


def test_equal_weights_count_in_full():
    assert bands.effective_documents(np.full(7, 1e200)) == pytest.approx(7)


@pytest.mark.parametrize("bad", [[], [0.0, 0.0], [-1.0, 2.0], [np.nan], [[1.0]]])
def test_weights_that_are_none_are_refused(bad):
    with pytest.raises(ValueError, match="weights"):
        bands.effective_documents(bad)


def test_of_a_mean_the_interval_is_the_classical_one_made_wider():
    rows = population(25)
    found = bands.interval(lambda curves: curves[:, 3], rows)
    low, high = stats.t.interval(0.95, 24, rows[:, 3].mean(), stats.sem(rows[:, 3]))
    assert found is not None
    assert found.value == pytest.approx(rows[:, 3].mean())
    wider = bands.widening(25)
    assert found.high - found.low == pytest.approx((high - low) * wider)
    assert found.high + found.low == pytest.approx(low + high)


def test_the_pointwise_band_is_the_t_interval_of_the_logarithm():
    rows = population(40)
    found = bands.band(rows)
    assert found is not None
    half = stats.t.ppf(0.975, 39) * stats.sem(rows, axis=0) / rows.mean(axis=0)
    assert np.log(found.high / found.value) == pytest.approx(half * bands.widening(40))
    assert found.low * found.high == pytest.approx(found.value**2)


def test_the_jackknife_leaves_each_document_out():
    rows, w = population(15), np.random.default_rng(1).lognormal(size=15)
    mean = w @ rows / w.sum()
    keep = ~np.eye(15, dtype=bool)
    without = np.array([w[k] @ rows[k] / w[k].sum() for k in keep])
    brute = np.sqrt(14 / 15 * ((without - without.mean(axis=0)) ** 2).sum(axis=0))
    assert bands._jackknife_error(rows, w, mean) == pytest.approx(brute)


def test_redrawn_errors_are_those_of_each_draw_computed_alone():
    rows, w = population(20), np.random.default_rng(1).lognormal(size=20)
    picks = bands._picks(20, 5, seed=3)
    found = bands._studentised(rows, w, picks)
    root = np.sqrt(w @ rows / w.sum())
    for draw, counts in zip(found, picks, strict=True):
        again = np.repeat(np.arange(20), counts.astype(int))
        error = bands.root_error(rows[again], w[again])
        mean = w[again] @ rows[again] / w[again].sum()
        assert draw == pytest.approx((np.sqrt(mean) - root) / error)


def test_blocks_of_positions_change_nothing(monkeypatch):
    rows = population(32)
    whole = bands.band(rows)
    monkeypatch.setattr(bands, "_BLOCK", 7)
    parts = bands.band(rows)
    assert whole is not None
    assert parts is not None
    assert parts.simultaneous_high == pytest.approx(whole.simultaneous_high)


def test_equal_seeds_give_equal_bands_and_documents_have_no_order():
    rows, w = population(32), np.random.default_rng(2).lognormal(size=32)
    a, b = bands.band(rows, w, seed=5), bands.band(rows, w, seed=5)
    assert a is not None
    assert b is not None
    assert (a.simultaneous_low == b.simultaneous_low).all()
    turned = bands.band(rows[::-1], w[::-1])
    assert turned is not None
    assert turned.low == pytest.approx(a.low)


def test_documents_without_weight_do_not_exist():
    rows, w = population(40), np.repeat([1.0, 0.0], [30, 10])
    a, b = bands.band(rows, w), bands.band(rows[:30])
    assert a is not None
    assert b is not None
    assert a.documents == 30
    assert a.simultaneous_high == pytest.approx(b.simultaneous_high)


def test_few_effective_documents_have_no_band():
    rows = population(64)
    heavy = np.ones(64)
    heavy[0] = 1000.0
    assert bands.band(rows[:8]) is None
    assert bands.band(rows, heavy) is None
    assert bands.interval(lambda curves: curves[:, 0], rows, heavy) is None


def test_a_position_of_zeros_is_certain_and_breaks_nothing():
    rows = population(32)
    rows[:, 5] = 0.0
    found = bands.band(rows)
    assert found is not None
    for ends in (found.low, found.high, found.simultaneous_low, found.simultaneous_high):
        assert ends[5] == 0.0
        assert np.isfinite(ends).all()


def test_negative_values_are_refused():
    with pytest.raises(ValueError, match="at least 0"):
        bands.band(-population(20))


def test_limits_and_logit_keep_an_interval_in_range():
    rows = shares(population(20))
    plain = bands.interval(lambda c: 1 - 1e-9 * c[:, 0], rows, limits=(0.0, 1.0))
    logit = bands.interval(lambda c: c[:, :2].sum(axis=1), rows, scale="logit")
    assert plain is not None
    assert logit is not None
    assert plain.high <= 1.0
    assert 0 < logit.low < logit.value < logit.high < 1


def test_support_counts_classes_of_redrawn_sets():
    rows = population(32)
    curve = rows.mean(axis=0)[0]
    found = bands.support(lambda c: list(c[:, 0] > curve), rows)
    assert sum(found.values()) == pytest.approx(1.0)
    assert found[True] == pytest.approx(0.5, abs=0.15)
    assert next(iter(found.values())) == max(found.values())
    assert bands.support(lambda c: ["one"] * len(c), rows) == {"one": 1.0}


@pytest.mark.parametrize("weighted", [False, True])
def test_bands_cover_at_32_documents_where_percentiles_do_not(weighted):
    norms = population()
    values, totals = shares(norms), norms.sum(axis=1)
    totals = totals if weighted else np.ones(len(totals))
    truth = np.average(values, axis=0, weights=totals)
    rng = np.random.default_rng(0)
    point, whole, percentile = [], [], []
    for _ in range(200):
        rows = rng.integers(0, len(norms), 32)
        found = bands.band(values[rows], totals[rows], draws=300)
        if found is None:
            continue
        point.append((found.low <= truth) & (truth <= found.high))
        whole.append(((found.simultaneous_low <= truth) & (truth <= found.simultaneous_high)).all())
        draws = bands.redrawn(values[rows], totals[rows], draws=300)
        low, high = np.quantile(draws, [0.025, 0.975], axis=0)
        percentile.append((low <= truth) & (truth <= high))
    assert len(point) > 120  # the others have too few effective documents
    assert 0.925 <= np.mean(point) <= 0.975
    assert np.mean(whole) >= 0.92
    assert np.mean(percentile) < np.mean(point) - 0.02


def test_intervals_of_masses_and_distances_cover():
    norms = population()
    values = shares(norms)
    truth = values.mean(axis=0)
    other = truth * np.linspace(1, 1.5, N)
    other /= other.sum()

    def distance(curves):
        return np.abs(np.cumsum(curves - other, axis=1)).sum(axis=1)

    def recency(curves):
        return curves[:, -4:].sum(axis=1)

    rng = np.random.default_rng(1)
    hits: dict[str, list[bool]] = {"distance": [], "recency": []}
    for _ in range(300):
        rows = values[rng.integers(0, len(norms), 32)]
        for name, statistic in (("distance", distance), ("recency", recency)):
            scale = "logit" if name == "recency" else "plain"
            found = bands.interval(statistic, rows, scale=scale)
            right = statistic(truth[None])[0]
            hits[name].append(found.low <= right <= found.high)
    assert {name: np.mean(hit) >= 0.92 for name, hit in hits.items()} == dict.fromkeys(hits, True)
