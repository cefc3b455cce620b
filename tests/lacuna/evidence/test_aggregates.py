"""Curves from many documents, and the noise left in them."""

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lacuna.evidence import aggregates
from lacuna.theory.agreement import wasserstein

How = Literal["mean", "per_document", "rms"]
AGGREGATES = {
    "mean": aggregates.mean_of_norms,
    "per_document": aggregates.per_document,
    "rms": aggregates.root_mean_square,
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
def test_documents_without_influence_count_for_nothing(rows: np.ndarray, how: How) -> None:
    padded = np.concatenate([np.zeros((2, rows.shape[1])), rows])
    np.testing.assert_array_equal(AGGREGATES[how](padded), AGGREGATES[how](rows))


def test_what_the_aggregates_mean() -> None:
    rows = np.array([[3.0, 1.0], [100.0, 300.0]])
    np.testing.assert_allclose(aggregates.mean_of_norms(rows), np.array([103, 301]) / 404)
    np.testing.assert_allclose(aggregates.per_document(rows), [0.5, 0.5])
    squares = np.sqrt([10009, 90001])
    np.testing.assert_allclose(aggregates.root_mean_square(rows), squares / squares.sum())


def test_per_document_gives_faint_documents_their_vote() -> None:
    rows = np.array([[1e-250, 0.0], [0.0, 1e250]])
    np.testing.assert_allclose(aggregates.per_document(rows), [0.5, 0.5])


def test_split_half_of_equal_documents_is_nothing_and_of_one_is_unknown() -> None:
    document = np.arange(1.0, 9.0)
    assert aggregates.split_half(np.tile(document, (6, 1)), aggregates.mean_of_norms) == (
        pytest.approx(0, abs=1e-15)
    )
    assert aggregates.split_half(document[None], aggregates.per_document) is None
    assert aggregates.split_half([document, np.zeros(8)], aggregates.per_document) is None


def test_split_half_shrinks_with_documents_and_covers_the_error_of_the_whole() -> None:
    generator = np.random.default_rng(3)
    truth = np.linspace(1, 2, 64)
    noise = {}
    for count in (8, 128):
        norms = truth * generator.lognormal(sigma=1.0, size=(count, 64))
        noise[count] = aggregates.split_half(norms, aggregates.mean_of_norms)
        assert noise[count] is not None
        error = wasserstein(aggregates.mean_of_norms(norms), truth)
        assert error < 2 * noise[count]
    assert noise[128] < 0.5 * noise[8]


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
