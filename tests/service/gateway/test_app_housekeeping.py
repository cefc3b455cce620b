"""The gateway's background task."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import redis
import redis.asyncio

from service.gateway.app import keep_house
from service.local import store
from service.store import keys
from service.store.claims import ClaimStore, ProfileOutcome
from service.store.connection import connect, connect_async
from service.store.profiles import ProfileStore
from service.store.queue import JobStore

JOB, OTHER, PROFILE = "a" * 32, "b" * 32, "c" * 32


async def test_it_sweeps_evicts_and_survives_an_outage(short_dir: Path) -> None:
    server = store.ensure(short_dir, fsync="always")
    client = connect_async(server.url)
    jobs, profiles = JobStore(client), ProfileStore(client)
    claims = ClaimStore(connect(server.url), name="w", queues=["cpu"], lease=0.4)
    await jobs.submit(JOB, b"{}", queue="cpu")
    claim = claims.claim()
    assert claim is not None
    claims.finish(claim, ProfileOutcome(PROFILE, b"x", b"{}", b'{"model": "m"}'))
    await client.zadd(keys.PROFILES_USED, {PROFILE: 1})
    await jobs.submit(OTHER, b"{}", queue="cpu")
    assert claims.claim() is not None
    task = asyncio.create_task(keep_house(jobs, profiles, lease=0.4, profile_ttl=60))
    server.close()
    await asyncio.sleep(0.5)
    with store.ensure(short_dir):
        end = time.monotonic() + 10
        while (await jobs.get(OTHER)).state != "queued":
            assert time.monotonic() < end
            await asyncio.sleep(0.05)
        assert not task.done()
        assert await profiles.get(PROFILE) is None
        task.cancel()
        await client.aclose()


async def test_a_job_that_lost_its_last_worker_is_named_in_the_log(
    short_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with store.ensure(short_dir) as server:
        client = connect_async(server.url)
        jobs, profiles = JobStore(client, max_attempts=1), ProfileStore(client)
        claims = ClaimStore(connect(server.url), name="w", queues=["cpu"], lease=0.2)
        await jobs.submit(JOB, b"{}", queue="cpu", trace="asked-by")
        assert claims.claim() is not None
        task = asyncio.create_task(keep_house(jobs, profiles, lease=0.2))
        end = time.monotonic() + 10
        while (await jobs.get(JOB)).state != "failed":
            assert time.monotonic() < end
            await asyncio.sleep(0.05)
        task.cancel()
        await client.aclose()
    (line,) = [vars(r) for r in caplog.records if r.levelname == "ERROR"]
    assert (line["job_id"], line["request_id"], line["worker"]) == (JOB, "asked-by", "w")


async def test_leases_are_left_alone_by_a_gateway_that_has_just_started(
    redis_async: redis.asyncio.Redis, redis_sync: redis.Redis
) -> None:
    """It may be starting after an outage, of which it cannot know."""
    while redis_sync.info("server")["uptime_in_seconds"] < 2:
        await asyncio.sleep(0.1)
    claims = ClaimStore(redis_sync, name="w", queues=["cpu"], lease=0.01)
    await JobStore(redis_async).submit(JOB, b"{}", queue="cpu")
    claims.claim()
    await asyncio.sleep(0.05)
    jobs = JobStore(redis_async)
    assert await jobs.sweep(lease=0.5) == 0
    await asyncio.sleep(0.6)
    assert await jobs.sweep(lease=0.5) == 1


async def test_leases_are_left_alone_right_after_a_start(
    redis_async: redis.asyncio.Redis, redis_sync: redis.Redis
) -> None:
    """The session's server has been up for less than this lease."""
    jobs = JobStore(redis_async)
    claims = ClaimStore(redis_sync, name="w", queues=["cpu"], lease=0.01)
    await jobs.submit(JOB, b"{}", queue="cpu")
    claims.claim()
    await asyncio.sleep(0.05)
    assert await jobs.sweep(lease=1e6) == 0
    assert (await jobs.get(JOB)).state == "running"
