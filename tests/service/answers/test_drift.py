"""Drift of stored profiles: what alarms, what does not, and which profiles are paired."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from lacuna.contract.profiles import Profile, ProfileBody, ProfileSummary
from service.answers.drift import (
    TRIED,
    Drifts,
    InfluenceDrift,
    ModelDrift,
    RecallDrift,
    versions_of_models,
)
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
    shape, measured = profile.shape, profile.measured
    found = ProfileSummary(
        id=profile.id, model=profile.model.id, revision=None, weights=profile.request.weights,
        sequence_length=profile.request.sequence_length, objective=profile.request.objective,
        documents=measured.documents if measured else 40, shape=shape.class_ if shape else None,
        dead_zone=profile.dead_zone, dead_zone_verdict=profile.dead_zone_verdict,
        primacy_mass=shape.primacy_mass if shape else None,
        recency_mass=shape.recency_mass if shape else None, recall=profile.recall is not None,
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


async def told(*newest_first: Profile) -> list[ModelDrift]:
    watch = Drifts(Kept(newest_first).get)
    return await watch.among([summary(profile) for profile in newest_first])


async def drifts(*newest_first: Profile) -> list[InfluenceDrift]:
    """Of influence alone."""
    return [one.influence for one in await told(*newest_first) if one.influence is not None]


async def test_a_fall_to_seven_tenths_alarms_and_says_where(profile_of_norms: Any) -> None:
    rng = np.random.default_rng(0)
    rows = documents(32, rng)
    before = profile_of_norms(version(rows, rng))
    after = profile_of_norms(version(fallen(rows, 0.7), rng), "b" * 32)
    (model,) = await told(after, before)
    assert (model.summary.id, model.recall) == (after.id, ())
    found = model.influence
    assert found is not None
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


Served = Callable[..., Profile]


def recalled(count: int, rng: np.random.Generator) -> np.ndarray:
    """F64[groups, 5]: facts differ far more than depths do."""
    level = rng.beta(2, 2, (count, 1))
    return np.clip(level + 0.05 * rng.normal(size=(count, 5)), 0, 1)


def again(rows: np.ndarray, rng: np.random.Generator, last: float = 0.0) -> np.ndarray:
    """The same groups asked again, `last` points worse at the last depth."""
    moved = rows + 0.03 * rng.normal(size=rows.shape)
    moved[:, -1] -= last
    return np.clip(moved, 0, 1)


async def recall_drifts(*newest_first: Profile) -> list[RecallDrift]:
    return [probe for one in await told(*newest_first) for probe in one.recall]


async def test_recall_that_fell_at_a_depth_alarms_and_says_where(make_served: Served) -> None:
    rng = np.random.default_rng(0)
    rows = recalled(24, rng)
    before = make_served("b" * 32, by_group=rows.tolist())
    after = make_served("a" * 32, by_group=again(rows, rng, 0.15).tolist())
    (model,) = await told(after, before)
    assert model.influence is None
    (found,) = model.recall
    assert (found.probe, found.groups, found.alert) == ("facts", 24, True)
    changes = {one.statistic: one for one in found.changes}
    assert list(changes) == ["depth_1", "depth_2", "depth_3", "depth_4", "depth_5", "level"]
    assert changes["depth_5"].high < 0
    assert changes["depth_1"].low < 0 < changes["depth_1"].high
    depths = [one.value for name, one in changes.items() if name != "level"]
    assert changes["level"].value == pytest.approx(np.mean(depths))


async def test_recall_that_rose_or_stayed_does_not_alarm(make_served: Served) -> None:
    alarms = 0
    for draw in range(12):
        rng = np.random.default_rng(draw)
        rows = recalled(24, rng)
        for last in (0.0, -0.15):
            pair = (rows, again(rows, rng, last))
            earlier, newest = (
                make_served(name * 32, by_group=one.tolist())
                for name, one in zip("ba", pair, strict=True)
            )
            (found,) = await recall_drifts(newest, earlier)
            alarms += found.alert
            if last:
                assert found.changes[4].low > 0
    assert alarms <= 1


async def test_a_certain_but_tiny_fall_does_not_alarm(make_served: Served) -> None:
    rows = recalled(24, np.random.default_rng(1)).clip(0.2, 1)
    pair = [
        make_served(name * 32, by_group=(rows - fall).tolist())
        for name, fall in (("a", 0.03), ("b", 0))
    ]
    (found,) = await recall_drifts(*pair)
    assert found.changes[-1].high < 0
    assert not found.alert


async def test_recall_is_paired_on_the_same_groups_asked_alike(make_served: Served) -> None:
    rng = np.random.default_rng(2)
    rows = recalled(24, rng)
    before = make_served("b" * 32, by_group=rows.tolist())
    after = make_served("a" * 32, by_group=again(rows, rng, 0.3).tolist())
    curve = after.recall["facts"]
    echo, served = after.request.recall, after.endpoint
    others = [
        {"request": after.request.model_copy(update={"seed": 1})},
        {"request": after.request.model_copy(
            update={"recall": echo.model_copy(update={"question": "first"})}
        )},
        {"endpoint": served.model_copy(update={"groups_lost": {"facts": 1}})},
        {"recall": {"facts": curve.model_copy(update={"rung": "text"})}},
        {"recall": {"facts": curve.model_copy(update={"form": "chat"})}},
        {"recall": {"pairs": curve}},
        {"recall": {"facts": curve.model_copy(update={"by_group": curve.by_group[:8]})}},
    ]  # fmt: skip
    for changes in others:
        assert await recall_drifts(after.model_copy(update=changes), before) == [], changes
    (found,) = await recall_drifts(after, before)
    assert found.alert
    other_model = {"endpoint": served.model_copy(update={"canary": "d" * 32, "fingerprint": "x"})}
    (found,) = await recall_drifts(after.model_copy(update=other_model), before)
    assert found.alert, "another model behind the same endpoint is what drift is about"


async def test_influence_and_recall_may_pair_with_different_profiles(
    profile_of_norms: Any, make_served: Served
) -> None:
    rng = np.random.default_rng(3)
    rows, norms = recalled(24, rng), documents(16, rng)
    asked = make_served().request.recall

    def both(name: str, groups: np.ndarray | None) -> Profile:
        plain = profile_of_norms(norms, name * 32)
        if groups is None:
            return plain
        curve = make_served(by_group=groups.tolist()).recall
        request = plain.request.model_copy(update={"recall": asked})
        return plain.model_copy(update={"recall": curve, "request": request})

    newest, between = both("a", again(rows, rng, 0.2)), both("b", None)
    (found,) = await told(newest, between, both("c", rows))
    assert found.influence is not None
    assert not found.influence.alert
    assert [probe.alert for probe in found.recall] == [True]
    assert await recall_drifts(between, newest) == []


async def test_the_probes_of_a_model_share_one_level(make_served: Served) -> None:
    rng = np.random.default_rng(4)
    rows = recalled(24, rng)
    after = again(rows, rng, 0.03)
    pair = [
        make_served(name * 32, by_group=one.tolist()) for name, one in (("a", after), ("b", rows))
    ]
    (alone,) = await recall_drifts(*pair)
    several = [
        one.model_copy(update={"recall": dict.fromkeys(("facts", "pairs"), one.recall["facts"])})
        for one in pair
    ]
    found = await recall_drifts(*several)
    assert [one.probe for one in found] == ["facts", "pairs"]
    assert found[0].changes[0].high - found[0].changes[0].low > (
        alone.changes[0].high - alone.changes[0].low
    )


async def test_a_pinned_profile_is_the_baseline(make_served: Served) -> None:
    """Each step is small, and the newest profile is far from where it began."""
    rng = np.random.default_rng(5)
    rows = recalled(48, rng).clip(0.3, 1)
    steps = [
        make_served(name * 32, by_group=again(rows, rng, fall).tolist())
        for name, fall in (("a", 0.08), ("b", 0.04), ("c", 0.0))
    ]
    watch = Drifts(Kept(steps).get)
    for pinned in (False, True):
        told = [summary(one) for one in steps[:2]]
        told.append(summary(steps[2], pinned=pinned))
        (found,) = await watch.among(told)
        assert [one.alert for one in found.recall] == [pinned]
