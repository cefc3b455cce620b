from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacuna import views
from lacuna.comparisons import compare
from lacuna.contract.errors import InvalidRequest
from lacuna.contract.profile_requests import PREDICTION_NAMES
from lacuna.contract.profiles import Profile, Source
from lacuna.evidence.zones import ZoneEnds
from lacuna.theory import shape

curves = st.lists(st.floats(0, 1), min_size=1, max_size=60)


def flat(values: Any) -> set[str]:
    return {name for part in get_args(values) for name in (get_args(part) or (part,))}


def test_every_curve_is_a_source() -> None:
    seen = {"measured", "mean_of_norms", "last_token_attention"}
    assert flat(Source) == seen | set(PREDICTION_NAMES)


def test_the_last_token_s_attention_is_a_curve_like_others(make_profile: Any) -> None:
    plain = make_profile(tokens=32)
    attention = np.linspace(1, 2, 32) / 48
    measured = plain.measured.model_copy(update={"last_token_attention": attention.tolist()})
    profile = plain.model_copy(update={"measured": measured})
    assert views.curve(profile, "last_token_attention") == attention.tolist()
    zone = views.dead_zone(profile, 0.9, "last_token_attention").dead_zone
    assert zone is not None
    assert zone.start == 0
    assert views.rows(profile, 4)[0]["last_token_attention"] == pytest.approx(attention[:8].sum())
    assert b"last_token_attention" in views.csv(profile, None).splitlines()[0]
    assert compare(profile, profile, source="last_token_attention").wasserstein == 0
    bare = plain.model_copy(
        update={"measured": plain.measured.model_copy(update={"last_token_attention": None})}
    )
    with pytest.raises(InvalidRequest, match="no curve last_token_attention; it has measured, "):
        views.curve(bare, "last_token_attention")
    assert "last_token_attention" not in views.rows(bare, 4)[0]


def test_a_standard_error_is_binned_with_its_curve(make_profile: Any) -> None:
    plain = make_profile(tokens=32)
    measured = plain.measured.model_copy(update={"standard_error": [0.001] * 32})
    binned = views.binned(plain.model_copy(update={"measured": measured}), 8)
    assert binned.measured.standard_error == pytest.approx([0.004] * 8)


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


def test_a_zone_has_bands_where_its_ends_have(make_profile: Any) -> None:
    profile = make_profile(tokens=64)
    zone = profile.dead_zone
    assert profile.dead_zone_verdict == "zone"
    assert zone.start_band.low <= zone.start <= zone.start_band.high
    assert zone.end_band.low <= zone.end <= zone.end_band.high
    bare = zone.model_copy(update={"start_band": None, "end_band": None})
    elsewhere = ZoneEnds("zone", start=(0, 1), end=(2, 3))
    assert views.banded_zone(bare, elsewhere) == (bare, "zone")
    assert views.banded_zone(bare, ZoneEnds("undecided")) == (bare, "undecided")
    assert views.banded_zone(None, ZoneEnds("none")) == (None, "none")


def test_other_thresholds_have_verdicts_from_the_band_that_is_kept(make_profile: Any) -> None:
    profile = make_profile(tokens=64)
    stored = views.dead_zone(profile, shape.THRESHOLD, "measured")
    assert (stored.dead_zone, stored.verdict) == (profile.dead_zone, "zone")
    near = views.dead_zone(profile, shape.THRESHOLD + 1e-9, "measured")
    assert near.verdict == "zone"
    assert near.dead_zone.start_band == profile.dead_zone.start_band
    assert views.dead_zone(profile, 0.01, "measured").verdict == "none"
    lowest = min(profile.measured.smoothed) * 64
    assert views.dead_zone(profile, lowest, "measured").verdict == "undecided"
    assert views.dead_zone(profile, shape.THRESHOLD, "residual").verdict is None
    few = make_profile(tokens=64, documents=8)
    assert few.measured.low is None
    assert views.dead_zone(few, 0.5, "measured").verdict == "undecided"


def test_a_profile_without_a_band_has_no_columns_for_it(make_profile: Any) -> None:
    few, many = (make_profile(tokens=64, documents=count) for count in (8, 32))
    assert set(views.columns_of(many)) - set(views.columns_of(few)) == set(views.BANDS)
    binned = views.binned(many, 16).measured
    assert sum(binned.simultaneous_high) == pytest.approx(sum(many.measured.simultaneous_high))
    assert views.binned(few, 16).measured.low is None
