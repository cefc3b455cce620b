from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contract.profiles import PREDICTION_NAMES, Profile
from service.contract.views import Source
from service.usecases import views
from service.usecases.comparisons import compare

curves = st.lists(st.floats(0, 1), min_size=1, max_size=60)


def test_every_prediction_is_a_source() -> None:
    assert set(get_args(Source)) == {"measured", "per_document", *PREDICTION_NAMES}


@given(curves, st.integers(1, 100))
def test_bins_keep_totals_and_halves(values: list[float], bins: int) -> None:
    binned = views.rebin(values, bins)
    assert len(binned) == bins
    assert all(value >= 0 for value in binned)
    assert sum(binned) == pytest.approx(sum(values), rel=1e-4, abs=1e-12)


@given(curves)
def test_as_many_bins_as_positions_change_nothing(values: list[float]) -> None:
    assert views.rebin(values, len(values)) == pytest.approx(values, rel=1e-5, abs=1e-12)


def test_joined_is_the_profile(profile: Profile, make_profile: Any) -> None:
    body = profile.model_dump_json(exclude={"timings", "environment", "created_at"}).encode()
    envelope = profile.model_dump_json(include={"timings", "environment", "created_at"}).encode()
    assert views.parse(views.joined(body, envelope)) == profile
    assert views.parse(views.joined(body + b"\n", b" " + envelope)) == profile


def test_a_compared_profile_is_what_its_curve_is(make_profile: Any) -> None:
    a, b = make_profile(tokens=64), make_profile(tokens=96, seed=3, identifier="b" * 32)
    found = compare(a, b, bins=32)
    assert found.a.primacy_mass == pytest.approx(a.shape.primacy_mass, rel=1e-4)
    assert found.a.dead_zone == a.dead_zone
    expected = np.array(views.rebin(b.measured.influence, 32)) - np.array(
        views.rebin(a.measured.influence, 32)
    )
    assert found.difference == pytest.approx(expected.tolist(), abs=1e-6)
    assert found.dead_zone_change is not None
    assert found.dead_zone_change.fraction == pytest.approx(
        b.dead_zone.fraction - a.dead_zone.fraction, abs=1e-6
    )


def test_equal_lengths_are_compared_token_by_token(make_profile: Any) -> None:
    # Within one bin the two differ, so bins alone would see nothing.
    a = make_profile(tokens=64)
    swapped = a.measured.influence.copy()
    swapped[0], swapped[1] = swapped[1], swapped[0]
    b = a.model_copy(update={"measured": a.measured.model_copy(update={"influence": swapped})})
    found = compare(a, b, bins=1)
    assert found.difference == [0.0]
    assert found.wasserstein == pytest.approx(abs(swapped[0] - swapped[1]) / 63, rel=1e-4)
