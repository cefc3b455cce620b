"""Aggregates over documents and their bootstrap."""

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lacuna.theory import agreement

How = Literal["mean", "per_document", "rms"]
AGGREGATES = {
    "mean": agreement.mean_of_norms,
    "per_document": agreement.per_document,
    "rms": agreement.root_mean_square,
}
norms = st.tuples(st.integers(1, 6), st.integers(1, 12)).flatmap(
    lambda size: arrays(np.float64, size, elements=st.floats(0, 1e300)).filter(
        lambda a: a.max() > 0
    )
)


@given(norms, st.sampled_from(["mean", "per_document", "rms"]))
def test_curves_sum_to_one_and_scale_does_not_matter(rows: np.ndarray, how: How) -> None:
    curve = AGGREGATES[how](rows)
    assert curve.sum() == pytest.approx(1)
    assert (curve >= 0).all()
    if rows[rows > 0].min() > 1e-150:
        np.testing.assert_allclose(AGGREGATES[how](rows * 1e-100), curve, rtol=1e-9, atol=1e-200)


@given(norms, st.sampled_from(["mean", "per_document", "rms"]))
def test_every_bootstrap_draw_is_a_curve_between_the_documents(rows: np.ndarray, how: How) -> None:
    curves = agreement.bootstrap(rows, how, draws=8, seed=1)
    assert curves.shape == (8, rows.shape[1])
    np.testing.assert_allclose(curves.sum(axis=1), 1)
    low, high = agreement.band(curves)
    assert (low <= high).all()


@given(norms, st.sampled_from(["mean", "per_document", "rms"]))
def test_documents_without_influence_count_for_nothing(rows: np.ndarray, how: How) -> None:
    padded = np.concatenate([np.zeros((2, rows.shape[1])), rows])
    np.testing.assert_array_equal(AGGREGATES[how](padded), AGGREGATES[how](rows))
    np.testing.assert_array_equal(
        agreement.bootstrap(padded, how, draws=3), agreement.bootstrap(rows, how, draws=3)
    )


def test_what_the_aggregates_mean() -> None:
    rows = np.array([[3.0, 1.0], [100.0, 300.0]])
    np.testing.assert_allclose(agreement.mean_of_norms(rows), np.array([103, 301]) / 404)
    np.testing.assert_allclose(agreement.per_document(rows), [0.5, 0.5])
    squares = np.sqrt([10009, 90001])
    np.testing.assert_allclose(agreement.root_mean_square(rows), squares / squares.sum())


def test_per_document_gives_faint_documents_their_vote() -> None:
    rows = np.array([[1e-250, 0.0], [0.0, 1e250]])
    np.testing.assert_allclose(agreement.per_document(rows), [0.5, 0.5])


@pytest.mark.parametrize("how", ["mean", "per_document", "rms"])
def test_bootstrap_is_resampling_with_replacement(how: How) -> None:
    generator = np.random.default_rng(5)
    rows = generator.lognormal(size=(12, 6))
    ours = agreement.bootstrap(rows, how, draws=4000, seed=2)
    naive = np.array(
        [AGGREGATES[how](rows[generator.integers(0, 12, size=12)]) for _ in range(4000)]
    )
    np.testing.assert_allclose(ours.mean(axis=0), naive.mean(axis=0), rtol=0.01)
    np.testing.assert_allclose(ours.std(axis=0), naive.std(axis=0), rtol=0.08)
    np.testing.assert_array_equal(ours, agreement.bootstrap(rows, how, draws=4000, seed=2))


def test_the_band_narrows_with_documents_and_is_a_point_for_one() -> None:
    generator = np.random.default_rng(6)
    width = {}
    for count in (1, 8, 200):
        rows = generator.lognormal(size=(count, 5))
        low, high = agreement.band(agreement.bootstrap(rows, "mean"))
        width[count] = float((high - low).max())
    assert width[1] == 0
    assert width[200] < 0.5 * width[8]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[0.0, 0.0]], "no document has any influence"),
        ([[1.0, np.nan]], "finite"),
        ([[1.0, -1.0]], "at least 0"),
        ([1.0, 2.0], "documents x positions"),
    ],
)
def test_what_cannot_be_aggregated_is_refused(rows: list[object], message: str) -> None:
    for how in AGGREGATES.values():
        with pytest.raises(ValueError, match=message):
            how(np.asarray(rows, dtype=np.float64))


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="draws"):
        agreement.bootstrap([[1.0]], "mean", draws=0)
    with pytest.raises(ValueError, match="level"):
        agreement.band([[1.0]], level=1.0)
    with pytest.raises(ValueError, match="how must be one of"):
        agreement.bootstrap([[1.0]], "median")  # type: ignore[arg-type]
