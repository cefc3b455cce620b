"""Summaries against sums over tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacuna.evidence.summaries import BINS, shared, summarise


def keys(count: int) -> list[str]:
    return [f"document-{number}" for number in range(count)]


@given(st.integers(1, 200), st.integers(0, 2**32 - 1))
def test_tenths_are_integrals_of_the_density(n, seed):
    norms = np.random.default_rng(seed).lognormal(size=(3, n))
    found = summarise(norms, keys(3))
    total = np.concatenate([np.zeros((3, 1)), np.cumsum(norms, axis=1)], axis=1)
    edges = np.linspace(0, n, 11)
    ahead = np.stack([np.interp(edges, np.arange(n + 1), row) for row in total])
    expected = np.diff(ahead, axis=1) / norms.sum(axis=1, keepdims=True)
    assert found.tenths == pytest.approx(expected, abs=1e-12)
    assert found.masses.shape == (3, min(n, BINS))
    assert found.masses.sum(axis=1) == pytest.approx(np.ones(3))
    assert found.totals == pytest.approx(norms.sum(axis=1))


def test_isolated_ends_are_kept_apart():
    norms = np.ones((2, 100))
    norms[:, 0], norms[:, -1] = 7.0, 3.0
    found = summarise(norms, keys(2))
    assert found.first == pytest.approx([7 / 108] * 2)
    assert found.last == pytest.approx([3 / 108] * 2)


def test_stretches_are_sums_of_tenths_and_parts_of_them():
    found = summarise(np.random.default_rng(0).lognormal(size=(4, 10)), keys(4))
    assert found.mass(0, 1) == pytest.approx(np.ones(4))
    assert found.mass(0.2, 0.45) == pytest.approx(
        found.masses[:, 2] + found.masses[:, 3] + found.masses[:, 4] / 2
    )
    assert found.mass(0.5, 0.5) == pytest.approx(np.zeros(4))


@given(st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_tenths_are_sums_of_the_masses_that_are_kept(n, seed):
    found = summarise(np.random.default_rng(seed).lognormal(size=(2, n)), keys(2))
    if n >= BINS:
        assert found.tenths == pytest.approx(found.masses.reshape(2, 10, BINS // 10).sum(axis=2))
    for tenth in range(10):
        assert found.mass(tenth / 10, (tenth + 1) / 10) == pytest.approx(found.tenths[:, tenth])


def test_the_mean_position_of_an_even_prompt_is_its_middle():
    assert summarise(np.ones((1, 30)), keys(1)).mean_position() == pytest.approx([0.5])


def test_shared_documents_are_found_by_key_in_the_order_of_the_first():
    norms = np.random.default_rng(1).lognormal(size=(4, 20))
    first, second = summarise(norms, ["a", "b", "c", "d"]), summarise(norms, ["d", "x", "b", "y"])
    a, b = shared(first, second)
    assert a.keys == b.keys == ("b", "d")
    assert b.totals == pytest.approx(norms[[2, 0]].sum(axis=1))


def test_what_cannot_be_summed_is_refused():
    with pytest.raises(ValueError, match="same key"):
        summarise(np.ones((2, 5)), ["a", "a"])
    with pytest.raises(ValueError, match="without any influence"):
        summarise(np.zeros((1, 5)), ["a"])
    with pytest.raises(ValueError, match="at least 0"):
        summarise(-np.ones((1, 5)), ["a"])
    with pytest.raises(ValueError, match="shapes"):
        summarise(np.ones((2, 5)), ["a"])
