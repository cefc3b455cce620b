"""Clocks that are set, records that are over, and texts that must leave the disk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
import redis
import redis.asyncio

from lacuna.contract.jobs import Failure
from lacuna.contract.models import WorkerModels
from service.store import keys, kinds
from service.store.claims import Claim, ClaimStore, ExperimentOutcome, ProfileOutcome
from service.store.kinds import needs
from service.store.monitoring import live_worker_names, served_queues, store_metrics
from service.store.profiles import ProfileStore
from service.store.queue import JobStore
from service.store.upkeep import FORGET_AT_ONCE, Steadiness, texts_left

HOUR = 3_600_000_000
LEASE = 20.0


class Server:
    """What a server says of itself, and our clock."""

    def __init__(self) -> None:
        self.ours, self.wall, self.run = 100.0, 1e9, "a"

    def passes(self, seconds: float) -> None:
        self.ours += seconds
        self.wall += seconds

    def facts(self) -> dict[str, Any]:
        return {"run_id": self.run, "server_time_usec": int(self.wall * 1e6)}


def calm(server: Server) -> Steadiness:
    made = Steadiness(LEASE, lambda: server.ours)
    assert not made.steady(server.facts())
    for _ in range(12):
        server.passes(2)
        found = made.steady(server.facts())
    assert found
    return made


def test_leases_are_judged_one_lease_after_the_start_and_after_an_outage() -> None:
    server = Server()
    made = calm(server)
    made.unsettle()
    server.passes(LEASE)
    assert not made.steady(server.facts())
    server.passes(1)
    assert made.steady(server.facts())


def a_restart(server: Server) -> None:
    server.run = "b"


def forwards(server: Server) -> None:
    server.wall += 3_600


def backwards(server: Server) -> None:
    server.wall -= 3_600


@pytest.mark.parametrize("event", [a_restart, forwards, backwards])
def test_leases_are_left_alone_for_one_lease_after(event: Callable[[Server], None]) -> None:
    server = Server()
    made = calm(server)
    event(server)
    assert not made.steady(server.facts())
    server.passes(LEASE - 1)
    assert not made.steady(server.facts())
    server.passes(2)
    assert made.steady(server.facts())


def test_a_pause_of_this_process_and_a_late_answer_are_no_jump() -> None:
    server = Server()
    made = calm(server)
    server.passes(3_600)
    assert made.steady(server.facts())
    server.ours += 0.4
    assert made.steady(server.facts())


def job(number: int) -> str:
    return f"{number:032x}"


@pytest.fixture
def claims(redis_sync: redis.Redis) -> ClaimStore:
    return ClaimStore(redis_sync, name="w", queues=["cpu"], lease=LEASE)


@pytest.fixture
def jobs(redis_async: redis.asyncio.Redis) -> JobStore:
    return JobStore(redis_async)


def taken(claims: ClaimStore) -> Claim:
    claim = claims.claim()
    assert claim is not None
    return claim


def move(client: redis.Redis, key: str, by: int) -> None:
    """Shift all scores of an index, as if they had been written while the clock was ahead."""
    for member, score in cast(
        "list[tuple[bytes, float]]", client.zrange(key, 0, -1, withscores=True)
    ):
        client.zadd(key, {member: score + by})


def server_time(client: redis.Redis) -> int:
    seconds, micros = cast("tuple[int, int]", client.time())
    return seconds * 1_000_000 + micros


async def test_a_lease_ends_at_latest_one_lease_from_now(
    jobs: JobStore, claims: ClaimStore, redis_sync: redis.Redis
) -> None:
    """Its own length, which another process need not share."""
    long = ClaimStore(redis_sync, name="l", queues=["cpu"], lease=10 * LEASE)
    for number in range(3):
        await jobs.submit(job(number), b"{}", queue="cpu")
    short_one, long_one = taken(claims), taken(long)
    move(redis_sync, keys.leased("cpu"), HOUR)
    untouched = taken(claims)
    before = redis_sync.zscore(keys.leased("cpu"), untouched.job_id)
    claims.expire()
    now = server_time(redis_sync)
    ends = {
        claim: cast(float, redis_sync.zscore(keys.leased("cpu"), claim.job_id)) - now
        for claim in (short_one, long_one, untouched)
    }
    assert LEASE - 2 < ends[short_one] / 1e6 <= LEASE
    assert 10 * LEASE - 2 < ends[long_one] / 1e6 <= 10 * LEASE
    assert redis_sync.zscore(keys.leased("cpu"), untouched.job_id) == before
    assert claims.beat(short_one, 0.5, "") == "ok"


async def test_whoever_waits_keeps_his_place_when_the_clock_goes_back(
    jobs: JobStore, claims: ClaimStore, redis_sync: redis.Redis
) -> None:
    for number in range(3):
        await jobs.submit(job(number), b"{}", queue="cpu")
    lane = keys.ready("cpu", needs("profile"))
    move(redis_sync, lane, HOUR)
    for number in range(3):
        redis_sync.hincrby(keys.job(job(number)), "created", HOUR)
    claims.expire()
    await jobs.submit(job(9), b"{}", queue="cpu")
    assert [taken(claims).job_id for _ in range(4)] == [job(0), job(1), job(2), job(9)]
    counted = (await store_metrics(jobs._client)).wait
    assert 0 <= counted.sum < 60


async def test_no_worker_counts_as_alive_for_an_hour(
    claims: ClaimStore, redis_sync: redis.Redis, redis_async: redis.asyncio.Redis
) -> None:
    facts = WorkerModels(worker="w", device="cpu", queue="cpu", warm=[], local=[])
    claims.announce(facts, 20)
    lane = keys.lane("cpu", needs("profile"))
    for index in ("cpu", lane):
        move(redis_sync, f"{keys.WORKERS}{index}", HOUR)
        redis_sync.hincrby(keys.STATS, f"{keys.LAST_SEEN}{index}", HOUR)
    redis_sync.set(keys.HOUSEKEEPER, "x", px=HOUR // 1_000)
    claims.expire()
    assert await live_worker_names(redis_async) == []
    assert ("cpu", "profile") in await served_queues(redis_async)  # as of now, and not longer
    assert int(redis_sync.hget(keys.STATS, f"{keys.LAST_SEEN}{lane}") or 0) <= server_time(
        redis_sync
    )
    assert not redis_sync.exists(keys.HOUSEKEEPER)
    claims.announce(facts, 20)
    claims.expire()
    assert await live_worker_names(redis_async) == ["w"]


async def test_a_run_that_ends_before_it_began_took_no_time(
    jobs: JobStore, claims: ClaimStore, redis_sync: redis.Redis
) -> None:
    await jobs.submit(job(1), b"{}", queue="cpu")
    claim = taken(claims)
    redis_sync.hincrby(keys.job(job(1)), "started", HOUR)
    assert claims.finish(claim, ProfileOutcome("b" * 32, b"{}", b"{}", b'{"model": "m"}')) == "ok"
    metrics = await store_metrics(jobs._client)
    assert metrics.run.sum == 0
    await jobs.submit(job(2), b"{}", queue="cpu")
    eta = (await jobs.get(job(2))).eta_seconds
    assert eta is not None
    assert eta >= 0


async def test_a_full_server_is_settled_all_the_same(
    jobs: JobStore, claims: ClaimStore, redis_sync: redis.Redis
) -> None:
    await jobs.submit(job(1), b"{}", queue="cpu")
    taken(claims)
    move(redis_sync, keys.leased("cpu"), HOUR)
    redis_sync.config_set("maxmemory", 1)
    claims.expire()
    end = cast(float, redis_sync.zscore(keys.leased("cpu"), job(1)))
    assert end <= server_time(redis_sync) + LEASE * 1e6


def ids_in_indexes(client: redis.Redis) -> set[str]:
    """Every job id that any set of the store holds."""
    found: set[str] = set()
    for key in cast("list[bytes]", client.keys(f"{keys.PREFIX}:*")):
        kind = cast(bytes, client.type(key))
        members: Any = ()
        if kind == b"zset":
            members = client.zrange(key, 0, -1)
        elif kind == b"set":
            members = client.smembers(key)
        found |= {m.decode() for m in members if m.startswith(b"0000")}
    return found


def end_in_every_way(claims: ClaimStore) -> None:
    """Take what waits: a profile, an experiment, a failure."""
    while (claim := claims.claim()) is not None:
        number = int(claim.job_id, 16)
        if claim.kind == "experiment":
            claims.finish(claim, ExperimentOutcome(b"{}", b""))
        elif number % 3 == 0:
            claims.fail(claim, Failure(code="not_finite", detail="", retryable=False))
        else:
            body = ProfileOutcome(f"f{number:031x}", b"{}", b"{}", b'{"model": "m"}')
            claims.finish(claim, body)


async def test_ids_leave_every_index_with_their_records(
    redis_sync: redis.Redis, redis_async: redis.asyncio.Redis
) -> None:
    ttl = 0.2
    jobs = JobStore(redis_async, job_ttl=ttl)
    claims = ClaimStore(redis_sync, name="w", queues=["cpu"], job_ttl=ttl)
    kept = job(1)
    for number in range(1, 8):
        await jobs.submit(job(number), b"{}", queue="cpu", pinned=job(number) == kept)
    await jobs.submit(job(8), b"{}", queue="cpu")
    await jobs.cancel(job(8))
    if "experiment" in kinds.KINDS:
        await jobs.submit(job(10), b"{}", queue="cpu", kind="experiment")
    end_in_every_way(claims)
    assert len(ids_in_indexes(redis_sync)) >= 8
    assert await jobs.forget() == 0  # none is over yet
    await asyncio.sleep(ttl + 0.1)
    assert await jobs.forget() >= 7
    # A pinned revision stays as long as its profile.
    assert ids_in_indexes(redis_sync) == {kept}
    assert (await jobs.get(kept)).state == "done"
    left = {key.removeprefix(keys.JOB.encode()) for key in redis_sync.keys(f"{keys.JOB}*")}
    assert left == {kept.encode()}
    await ProfileStore(redis_async, job_ttl=ttl).delete(f"f{1:031x}")
    await asyncio.sleep(ttl + 0.1)
    await jobs.forget()
    assert ids_in_indexes(redis_sync) == set()


async def test_records_that_redis_dropped_leave_no_id_behind(
    jobs: JobStore, claims: ClaimStore, redis_sync: redis.Redis
) -> None:
    for number in (1, 2):
        await jobs.submit(job(number), b"{}", queue="cpu")
    await jobs.cancel(job(1))
    redis_sync.delete(keys.job(job(1)))
    assert await jobs.forget() == 1
    assert ids_in_indexes(redis_sync) == {job(2)}


async def test_records_that_stay_do_not_hide_those_behind_them(
    jobs: JobStore, redis_sync: redis.Redis
) -> None:
    stay, over = FORGET_AT_ONCE + 20, 30
    index = f"{keys.ENDED}done"
    for number in range(stay):
        redis_sync.hset(keys.job(job(number)), "state", "done")
        redis_sync.zadd(index, {job(number): number})
    for number in range(stay, stay + over):
        redis_sync.zadd(index, {job(number): number})
    for _ in range(4):
        await jobs.forget()
    assert redis_sync.zcard(index) == stay
    redis_sync.delete(*(keys.job(job(number)) for number in range(stay)))
    for _ in range(4):
        await jobs.forget()
    assert redis_sync.zcard(index) == 0


async def test_a_job_that_made_another_profile_leaves_the_index_of_the_first(
    jobs: JobStore, claims: ClaimStore, redis_async: redis.asyncio.Redis, redis_sync: redis.Redis
) -> None:
    aged = JobStore(redis_async, resolve_ttl=0.001)
    for profile in ("b" * 32, "c" * 32):
        await aged.submit(job(1), b"{}", queue="cpu")
        claims.finish(taken(claims), ProfileOutcome(profile, b"{}", b"{}", b'{"model": "m"}'))
        await asyncio.sleep(0.01)
    assert not redis_sync.exists(f"{keys.profile('b' * 32)}{keys.JOBS_OF}")
    await ProfileStore(redis_async).delete("b" * 32)
    assert (await jobs.get(job(1))).profile_id == "c" * 32


DONE = {"aof_enabled": 1, "aof_rewrite_in_progress": 0, "aof_last_bgrewrite_status": "ok"}


@pytest.mark.parametrize(
    ("counts", "changed", "found"),
    [
        ((None, None), {}, None),
        ((b"3", b"3"), {}, None),
        ((b"3", b"2"), {}, 3),
        ((b"3", None), {}, 3),
        ((b"3", b"2"), {"aof_rewrite_in_progress": 1}, None),
        ((b"3", b"2"), {"aof_enabled": 0}, None),
        ((b"3", b"3"), {"aof_last_bgrewrite_status": "err"}, 3),
        ((None, None), {"aof_last_bgrewrite_status": "err"}, None),
    ],
)
def test_when_the_file_is_written_anew(
    counts: tuple[Any, Any], changed: dict[str, Any], found: int | None
) -> None:
    assert texts_left(counts, {**DONE, **changed}) == found


async def test_the_gateway_alone_expires_what_a_dead_worker_held(
    redis_async: redis.asyncio.Redis, redis_sync: redis.Redis
) -> None:
    """The clock went back after the claim, and no worker lives."""
    lease = 0.3
    jobs = JobStore(redis_async)
    claims = ClaimStore(redis_sync, name="w", queues=["cpu"], lease=lease)
    await jobs.submit(job(1), b"{}", queue="cpu")
    taken(claims)
    move(redis_sync, keys.leased("cpu"), HOUR)
    end = time.monotonic() + 10
    while (await jobs.get(job(1))).state != "queued":
        assert time.monotonic() < end
        await jobs.sweep(lease)
        await asyncio.sleep(0.05)
