"""Ends of zones: by construction, and how often they are right on simulated documents."""

from __future__ import annotations

import numpy as np
import pytest

from lacuna.evidence import bands
from lacuna.evidence.zones import zone_ends

N = 60
VALLEY = 1.3 - 0.9 * np.exp(-(((np.arange(N) - 30) / 10) ** 2))


def documents(count: int, rng: np.random.Generator, curve: np.ndarray = VALLEY) -> np.ndarray:
    """Rows whose expectation is the curve, log-normal around it with smooth errors."""
    knots = rng.normal(size=(count, 8))
    slow = np.stack([np.interp(np.arange(N), np.linspace(0, N - 1, 8), k) for k in knots])
    weights = np.stack([np.interp(np.arange(N), np.linspace(0, N - 1, 8), k) for k in np.eye(8)])
    variance = np.square(weights).sum(axis=0)
    return curve * np.exp(0.5 * slow - 0.125 * variance)


def test_without_spread_the_ends_are_those_of_the_curve():
    rows = np.repeat(VALLEY[None], 20, axis=0)
    inside = np.flatnonzero(VALLEY < 0.75)
    found = zone_ends(rows, threshold=0.75)
    first, after = int(inside[0]), int(inside[-1]) + 1
    assert found.verdict == "zone"
    assert found.start == (first, first)
    assert found.end == (after, after)


def test_a_curve_above_the_threshold_has_none_and_few_documents_decide_nothing():
    rng = np.random.default_rng(0)
    high = documents(64, rng, np.full(N, 3.0))
    assert zone_ends(high, threshold=0.75).verdict == "none"
    assert zone_ends(documents(6, rng), threshold=0.75).verdict == "undecided"


def test_a_band_at_hand_is_used():
    rows = documents(64, np.random.default_rng(1))
    found = bands.band(rows)
    assert zone_ends(rows, threshold=0.75, banded=found) == zone_ends(rows, threshold=0.75)


@pytest.mark.parametrize("weighted", [False, True])
def test_ends_are_covered_and_zones_are_not_made_up(weighted):
    rng = np.random.default_rng(2)
    inside = np.flatnonzero(VALLEY < 0.75)
    right = int(inside[0]), int(inside[-1]) + 1
    flat = np.maximum(VALLEY, 0.75)
    starts, ends, decided, alarms = [], [], 0, 0
    for _ in range(200):
        w = rng.lognormal(0, 0.7, 40) if weighted else None
        found = zone_ends(documents(40, rng), w, threshold=0.75, draws=200)
        alarms += (
            zone_ends(documents(40, rng, flat), w, threshold=0.75, draws=200).verdict == "zone"
        )
        if found.verdict == "zone":
            decided += 1
            starts.append(found.start[0] <= right[0] <= found.start[1])
            ends.append(found.end[0] <= right[1] <= found.end[1])
    assert decided > 150
    assert np.mean(starts) >= 0.92
    assert np.mean(ends) >= 0.92
    assert alarms / 200 <= 0.06
