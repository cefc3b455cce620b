from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacuna import views
from lacuna.contract.errors import InvalidRequest
from lacuna.contract.profile_requests import PREDICTION_NAMES
from lacuna.contract.profiles import Profile, Source
from lacuna.evidence.zones import ZoneEnds
from lacuna.theory import shape
from lacuna.views import compare

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
    with pytest.raises(
        InvalidRequest, match="no curve last_token_attention; it has measured, "
    ):
        views.curve(bare, "last_token_attention")
    assert "last_token_attention" not in views.rows(bare, 4)[0]


def test_a_standard_error_is_binned_with_its_curve(make_profile: Any) -> None:
    plain = make_profile(tokens=32)
    measured = plain.measured.model_copy(update={"standard_error": [0.001] * 32})
    binned = views.binned(plain.model_copy(update={"measured": measured}), 8)
    assert binned.measured.standard_error == pytest.approx([0.004] * 8)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"objective": "jacobian"}, "different objectives: a argmax_probability, b jacobian"),
        ({"documents_source": "corpus"}, "different documents: "),
        ({"documents_digest": "0" * 32}, "different tokens"),
        ({"positional_encoding": "off"}, "different positional encodings: a on, b off"),
        ({"content_scale": "raw"}, "different content scales: a model, b raw"),
        ({"sequence_length": 96}, "different lengths: a 64, b 96"),
        ({"dtype": "bfloat16"}, "different dtypes: a float32, b bfloat16"),
    ],
)
def test_what_else_differs_is_said(changes: dict[str, Any], words: str, make_profile: Any) -> None:
    a = make_profile(tokens=64)
    a = a.model_copy(
        update={
            "request": a.request.model_copy(
                update={"objective": "argmax_probability", "dtype": "float32"}
            )
        }
    )
    b = a.model_copy(update={"request": a.request.model_copy(update=changes)})
    assert compare(a, a).warnings == []
    found = compare(a, b)
    (warning,) = found.warnings
    assert warning.startswith(words)
    for name, value in changes.items():
        assert getattr(found.b, name) == value


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
