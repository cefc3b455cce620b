"""Lists, deletion and eviction of profiles."""

from __future__ import annotations

import hashlib
import json

import pytest
import redis
import redis.asyncio

from lacuna.contract.errors import InvalidRequest, ProfileNotFound, StoreUnavailable
from lacuna.contract.profiles import ProfileSummary
from service.store import keys
from service.store.claims import ClaimStore, ProfileOutcome
from service.store.connection import connect_async
from service.store.profiles import ProfileStore
from service.store.queue import JobStore


def name(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()[:32]


def summary(number: int, model: str) -> ProfileSummary:
    return ProfileSummary(
        id=name(number), model=model, revision=None, weights="random", sequence_length=8,
        objective="jacobian", documents=1, shape="flat", dead_zone=None,
        dead_zone_verdict="none", primacy_mass=0.1,
        recency_mass=0.1, created_at="2026-01-01T00:00:00Z",
    )  # fmt: skip


@pytest.fixture
def store(redis_async: redis.asyncio.Redis) -> ProfileStore:
    return ProfileStore(redis_async, job_ttl=100)


class Maker:
    """Ends jobs with profiles, one after the other."""

    def __init__(self, client: redis.asyncio.Redis, sync: redis.Redis) -> None:
        self.jobs = JobStore(client, job_ttl=100)
        self.claims = ClaimStore(sync, name="w", queues=["cpu"], job_ttl=100)

    async def __call__(self, number: int, model: str = "m", size: int = 10) -> str:
        await self.jobs.submit(name(number), b"{}", queue="cpu", pinned=True)
        claim = self.claims.claim()
        assert claim is not None
        line = summary(number, model).model_dump_json().encode()
        self.claims.finish(claim, ProfileOutcome(name(number), b"x" * size, b"{}", line))
        return name(number)


@pytest.fixture
def make(redis_async: redis.asyncio.Redis, redis_sync: redis.Redis) -> Maker:
    return Maker(redis_async, redis_sync)


async def test_pages_are_newest_first_and_complete(store: ProfileStore, make: Maker) -> None:
    ids = [await make(number, model="ab"[number % 2]) for number in range(11)]
    seen: list[str] = []
    cursor = None
    while True:
        page = await store.list(limit=3, cursor=cursor)
        seen += [item.id for item in page.items]
        cursor = page.next
        if cursor is None:
            break
    assert seen == ids[::-1]
    only_a = await store.list(model="a", limit=50)
    assert [item.id for item in only_a.items] == ids[::-2]
    assert (await store.list(model="none")).items == []


async def test_a_cursor_survives_new_and_deleted_profiles(store: ProfileStore, make: Maker) -> None:
    ids = [await make(number) for number in range(4)]
    page = await store.list(limit=2)
    await make(9)
    await store.delete(ids[2])
    rest = await store.list(limit=2, cursor=page.next)
    assert [item.id for item in rest.items] == [ids[1], ids[0]]


async def test_profiles_of_the_same_moment_are_listed_once_each(
    store: ProfileStore, make: Maker, redis_async: redis.asyncio.Redis
) -> None:
    ids = [await make(number) for number in range(7)]
    await redis_async.zadd(keys.PROFILES, dict.fromkeys(ids, 5))
    seen: list[str] = []
    cursor = None
    for _ in range(4):
        page = await store.list(limit=2, cursor=cursor)
        seen += [item.id for item in page.items]
        cursor = page.next
    assert cursor is None
    assert seen == sorted(ids, reverse=True)


@pytest.mark.parametrize("cursor", ["", "x", "MTIz!", "YWJjOmRlZg", "ÿ"])
async def test_a_cursor_of_another_make_is_refused(store: ProfileStore, cursor: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        await store.list(cursor=cursor)
    assert refusal.value.field == "cursor"


async def test_deleting_leaves_nothing_and_the_job_runs_again(
    store: ProfileStore, make: Maker, redis_async: redis.asyncio.Redis
) -> None:
    made = await make(1)
    assert (await redis_async.ttl(keys.job(made))) == -1  # pinned: stands for ever
    assert not (await make.jobs.submit(made, b"{}", queue="cpu", pinned=True)).created
    await store.delete(made)
    assert await store.get(made) is None
    assert (await store.list()).items == []
    assert int((await redis_async.get(keys.PROFILES_BYTES)) or 0) == 0
    left = await redis_async.pttl(keys.job(made)) - keys.RECORD_GRACE_MS
    assert 0 < left <= 100_000
    with pytest.raises(ProfileNotFound):
        await store.delete(made)
    assert (await make.jobs.submit(made, b"{}", queue="cpu", pinned=True)).created
    left = [key async for key in redis_async.scan_iter("{lacuna}:profile*")]
    assert left == [keys.PROFILES_BYTES.encode()]


async def test_eviction_by_size_takes_the_least_recently_used_and_spares_the_pinned(
    store: ProfileStore, make: Maker, redis_async: redis.asyncio.Redis
) -> None:
    ids = [await make(number, size=10_000) for number in range(4)]
    await redis_async.zadd(keys.PROFILES_USED, {ids[0]: 1, ids[1]: 2, ids[2]: 3, ids[3]: 4})
    await store.touch(ids[0])
    await store.pin(ids[1], True)
    assert [one.id for one in (await store.list()).items if one.pinned] == [ids[1]]
    assert await store.evict(max_bytes=25_000) == 2
    kept = {number for number in range(4) if await store.get(ids[number])}
    assert kept == {0, 1}
    assert await store.evict(max_bytes=25_000) == 0
    await store.pin(ids[1], False)
    assert await store.evict(max_bytes=1) == 2


async def test_eviction_by_age(
    store: ProfileStore, make: Maker, redis_async: redis.asyncio.Redis
) -> None:
    old, young = await make(1), await make(2)
    assert await store.evict() == 0
    await redis_async.zadd(keys.PROFILES_USED, {old: 1})
    assert await store.evict(ttl=3_600) == 1
    assert await store.get(old) is None
    assert await store.get(young) is not None


async def test_eviction_stays_within_its_limit(store: ProfileStore, make: Maker) -> None:
    for number in range(5):
        await make(number)
    assert await store.evict(max_bytes=1, limit=2) == 2


async def test_pinning_nothing_is_said(store: ProfileStore) -> None:
    with pytest.raises(ProfileNotFound):
        await store.pin(name(1), True)


async def test_an_absent_store_is_said_but_a_touch_is_not_worth_an_error(
    short_dir: object,
) -> None:
    client = connect_async(f"unix://{short_dir}/nobody.sock")
    store = ProfileStore(client)
    with pytest.raises(StoreUnavailable):
        await store.get(name(1))
    with pytest.raises(StoreUnavailable):
        await store.list()
    await store.touch(name(1))
    await client.aclose()


async def test_summaries_come_back_as_they_went(store: ProfileStore, make: Maker) -> None:
    await make(3, model="owner/name-1.5")
    (item,) = (await store.list(model="owner/name-1.5")).items
    assert json.loads(item.model_dump_json()) == json.loads(
        summary(3, "owner/name-1.5").model_dump_json()
    )
