"""Drift of stored profiles: what alarms, what does not, and which profiles are paired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lacuna.contract.profiles import Profile, ProfileBody, ProfileSummary
from service.answers.drift import TRIED, Drifts, ModelDrift, versions_of_models
from service.store.profiles import StoredProfile

N = 256


def documents(count: int, rng: np.random.Generator) -> np.ndarray:
    """Norms of heavy-tailed documents with a low middle."""
    at, knots = np.linspace(0, 1, N), np.linspace(0, 1, 12)
    base = 0.7 + 0.8 * np.exp(-at / 0.05) + 2.0 * np.exp((at - 1) / 0.08)
    slow = np.stack([np.interp(at, knots, one) for one in rng.normal(size=(count, 12))])
    return np.asarray(base * np.exp(0.4 * slow + 0.95 * rng.normal(size=(count, 1))))


def version(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Another version of a model: each curve moves a little."""
    at, knots = np.linspace(0, 1, N), np.linspace(0, 1, 6)
    slow = np.stack([np.interp(at, knots, one) for one in rng.normal(size=(len(rows), 6))])
    return np.asarray(rows * np.exp(0.1 * slow))


def fallen(rows: np.ndarray, factor: float) -> np.ndarray:
    """Tokens 1 to 229 of 256 times `factor`."""
    lower = rows.copy()
    lower[:, 1:230] *= factor
    return lower


def summary(profile: Profile, **changes: Any) -> ProfileSummary:
    found = ProfileSummary(
        id=profile.id, model=profile.model.id, revision=None, weights=profile.request.weights,
        sequence_length=profile.request.sequence_length, objective=profile.request.objective,
        documents=profile.measured.documents, shape=profile.shape.class_,
        dead_zone=profile.dead_zone, dead_zone_verdict=profile.dead_zone_verdict,
        primacy_mass=profile.shape.primacy_mass, recency_mass=profile.shape.recency_mass,
        created_at="",
    )  # fmt: skip
    return found.model_copy(update=changes)


class Kept:
    """A store of profiles in memory that counts what is read."""

    def __init__(self, profiles: Sequence[Profile]) -> None:
        fields = set(ProfileBody.model_fields)
        self.bodies = {p.id: p.model_dump_json(include=fields).encode() for p in profiles}
        self.read: list[str] = []

    async def get(self, identifier: str) -> StoredProfile | None:
        self.read.append(identifier)
        body = self.bodies.get(identifier)
        return None if body is None else StoredProfile(body, b"{}", b"{}")


async def drifts(*newest_first: Profile) -> list[ModelDrift]:
    watch = Drifts(Kept(newest_first).get)
    return await watch.among([summary(profile) for profile in newest_first])


async def test_a_fall_to_seven_tenths_alarms_and_says_where(profile_of_norms: Any) -> None:
    rng = np.random.default_rng(0)
    rows = documents(32, rng)
    before = profile_of_norms(version(rows, rng))
    after = profile_of_norms(version(fallen(rows, 0.7), rng), "b" * 32)
    (found,) = await drifts(after, before)
    assert found.summary.id == after.id
    assert found.documents == 32
    assert found.alert
    changes = {one.statistic: one for one in found.changes}
    assert len(changes) == 12
    assert changes["recency"].low > 0.01
    zone = before.dead_zone
    densities = [
        np.array(p.measured.influence)[zone.start : zone.end].mean() * N for p in (before, after)
    ]
    moved = changes["zone_density"]
    assert moved.low <= moved.value <= moved.high < 0
    assert moved.value == pytest.approx(densities[1] - densities[0], abs=0.01)
    totals = [np.log(p.measured.summaries.totals).mean() for p in (before, after)]
    assert changes["total_influence"].value == pytest.approx(np.expm1(totals[1] - totals[0]))
    assert changes["total_influence"].high < -0.1


async def test_the_same_model_does_not_alarm(profile_of_norms: Any) -> None:
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(12):
        rows = documents(16, rng)
        pair = [profile_of_norms(version(rows, rng), name * 32) for name in "ab"]
        (found,) = await drifts(*pair)
        alarms += found.alert
    assert alarms <= 1


async def test_the_ends_of_a_zone_raise_nothing(profile_of_norms: Any) -> None:
    before = profile_of_norms(documents(32, np.random.default_rng(2)))
    zone = before.dead_zone.model_copy(update={"start": 100, "end": 101, "fraction": 1 / N})
    after = before.model_copy(update={"id": "b" * 32, "dead_zone": zone})
    (found,) = await drifts(after, before)
    assert not found.alert
    assert {one.value for one in found.changes} == {0.0}


async def test_other_documents_and_few_are_not_judged(profile_of_norms: Any) -> None:
    rows = documents(64, np.random.default_rng(3))
    before = profile_of_norms(rows[:32])
    others = profile_of_norms(fallen(rows[32:], 0.3), "b" * 32, 32)
    assert await drifts(others, before) == []
    few = profile_of_norms(fallen(rows[21:53], 0.3), "b" * 32, 21)
    assert await drifts(few, before) == []
    enough = profile_of_norms(fallen(rows[20:52], 0.3), "b" * 32, 20)
    (found,) = await drifts(enough, before)
    assert (found.documents, found.alert) == (12, True)
    assert await drifts(before) == []


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("request", {"dtype": "bfloat16"}),
        ("request", {"content_scale": "raw"}),
        ("request", {"target_digest": "0" * 64}),
        ("profile", {"method_version": "0"}),
    ],
)
async def test_other_settings_are_no_drift(
    part: str, changes: dict[str, Any], profile_of_norms: Any
) -> None:
    rows = documents(16, np.random.default_rng(4))
    before, after = profile_of_norms(rows), profile_of_norms(fallen(rows, 0.5), "b" * 32)
    update = changes
    if part == "request":
        update = {"request": after.request.model_copy(update=changes)}
    other = after.model_copy(update=update)
    assert await drifts(other, before) == []
    revised = after.request.model_copy(update={"revision": "1" * 40, "documents_digest": "1" * 64})
    (found,) = await drifts(after.model_copy(update={"request": revised}), before)
    assert found.alert


async def test_an_earlier_profile_is_searched_for(profile_of_norms: Any) -> None:
    rows = documents(32, np.random.default_rng(5))
    newest = profile_of_norms(fallen(rows[:16], 0.5), "a" * 32)
    between = profile_of_norms(rows[16:], "b" * 32, 16)
    earlier = profile_of_norms(rows[:16], "c" * 32)
    (found,) = await drifts(newest, between, earlier)
    assert found.alert
    far = [between.model_copy(update={"id": f"{n:032x}"}) for n in range(TRIED)]
    assert await drifts(newest, *far, earlier) == []


async def test_what_was_found_is_kept_until_the_profiles_change(profile_of_norms: Any) -> None:
    rows = documents(16, np.random.default_rng(6))
    profiles = [profile_of_norms(rows, name * 32) for name in "abc"]
    store = Kept(profiles)
    watch = Drifts(store.get)
    pair = [summary(profile) for profile in profiles[:2]]
    first = await watch.among(pair)
    assert await watch.among(pair) == first
    assert store.read == ["a" * 32, "b" * 32]
    await watch.among([summary(profiles[2]), *pair])
    assert len(store.read) == 4


async def test_what_is_gone_or_of_another_version_is_passed_over(profile_of_norms: Any) -> None:
    rows = documents(16, np.random.default_rng(7))
    profiles = [profile_of_norms(rows, name * 32) for name in "abc"]
    rows_of = [summary(profile) for profile in profiles]
    gone = Kept([profiles[0], profiles[2]])
    assert len(await Drifts(gone.get).among(rows_of)) == 1
    old = Kept(profiles)
    old.bodies["b" * 32] = b'{"method_version": "3"}'
    assert len(await Drifts(old.get).among(rows_of)) == 1
    assert await Drifts(Kept(profiles[1:]).get).among(rows_of) == []


async def test_untrained_weights_are_not_watched(profile_of_norms: Any) -> None:
    rows = documents(16, np.random.default_rng(8))
    pair = [profile_of_norms(rows, name * 32) for name in "ab"]
    found = [summary(profile, weights="random") for profile in pair]
    assert len(versions_of_models(found)[0]) == 2
    assert await Drifts(Kept(pair).get).among(found) == []
