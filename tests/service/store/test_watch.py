"""Waiting when the subscription breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import redis
import redis.asyncio

from service.store import keys, watch
from service.store import queue as jobs_module
from service.store.claims import ClaimStore
from service.store.connection import connect_async
from service.store.queue import JobRecord, JobStore

JOB = "a" * 32


@pytest.fixture
async def jobs(redis_async: redis.asyncio.Redis) -> AsyncIterator[JobStore]:
    store = JobStore(redis_async)
    yield store
    await store.close()


async def test_what_happened_while_the_subscription_was_cut_is_made_up_for(
    jobs: JobStore, redis_sync: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "RECONNECT_SECONDS", 0.3)
    await jobs.submit(JOB, b"{}", queue="cpu")
    waiting = asyncio.create_task(jobs.wait(JOB, 20))
    await asyncio.sleep(0.2)
    assert redis_sync.client_kill_filter(_type="pubsub") == 1
    await jobs.cancel(JOB)  # nobody hears this
    assert (await asyncio.wait_for(waiting, 5)).state == "cancelled"


async def test_a_silent_subscription_is_tried_and_replaced(
    jobs: JobStore, redis_sync: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "IDLE_SECONDS", 0.1)
    await jobs.submit(JOB, b"{}", queue="cpu")
    waiting = asyncio.create_task(jobs.wait(JOB, 20))
    await asyncio.sleep(1)  # ten silences; the pings are answered, so it stays
    assert redis_sync.pubsub_numsub("{lacuna}:events") == [(b"{lacuna}:events", 1)]
    await jobs.cancel(JOB)
    assert (await asyncio.wait_for(waiting, 5)).state == "cancelled"


async def test_many_waits_share_one_subscription_and_leave_nothing(
    jobs: JobStore, redis_sync: redis.Redis
) -> None:
    await jobs.submit(JOB, b"{}", queue="cpu")
    before = redis_sync.info("clients")["pubsub_clients"]
    waits = [asyncio.create_task(jobs.wait(JOB, 20)) for _ in range(200)]
    await asyncio.sleep(1)
    assert redis_sync.info("clients")["pubsub_clients"] == before + 1
    for wait in waits[:100]:
        wait.cancel()
    await jobs.cancel(JOB)
    answers = await asyncio.gather(*waits, return_exceptions=True)
    assert sum(isinstance(answer, asyncio.CancelledError) for answer in answers) == 100
    assert jobs._watcher._watches == {}


async def test_an_event_reader_that_leaves_early_is_forgotten(
    jobs: JobStore, redis_sync: redis.Redis
) -> None:
    await jobs.submit(JOB, b"{}", queue="cpu")
    events = jobs.events(JOB)
    first = await anext(events)
    assert first.state == "queued"
    await events.aclose()
    assert jobs._watcher._watches == {}


async def test_waiting_survives_a_job_that_vanishes(
    jobs: JobStore, redis_sync: redis.Redis
) -> None:
    await jobs.submit(JOB, b"{}", queue="cpu")
    claims = ClaimStore(redis_sync, name="w", queues=["cpu"])
    assert claims.claim() is not None
    states = []

    async def follow() -> None:
        states.extend([job.state async for job in jobs.events(JOB)])

    task = asyncio.create_task(follow())
    await asyncio.sleep(0.2)
    redis_sync.flushall()
    redis_sync.publish("{lacuna}:events", JOB)
    await asyncio.wait_for(task, 5)
    assert states == ["running"]


async def test_who_follows_a_waiting_job_sees_it_move_up(
    jobs: JobStore, redis_sync: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "POSITION_SECONDS", 0.05)
    await jobs.submit("b" * 32, b"{}", queue="cpu")
    await jobs.submit(JOB, b"{}", queue="cpu")
    events = jobs.events(JOB)
    assert (await anext(events)).position == 1
    ClaimStore(redis_sync, name="w", queues=["cpu"]).claim()
    assert (await asyncio.wait_for(anext(events), 5)).position == 0
    await events.aclose()


async def test_two_gateways_both_hear(redis_url: str, jobs: JobStore) -> None:
    client = connect_async(redis_url)
    other = JobStore(client)
    await jobs.submit(JOB, b"{}", queue="cpu")
    waits = [asyncio.create_task(store.wait(JOB, 20)) for store in (jobs, other)]
    await asyncio.sleep(0.2)
    await jobs.cancel(JOB)
    assert {job.state for job in await asyncio.gather(*waits)} == {"cancelled"}
    await other.close()
    await client.aclose()


async def test_of_two_reads_that_overlap_the_younger_counts_whichever_arrives_last(
    redis_async: redis.asyncio.Redis, redis_sync: redis.Redis, jobs: JobStore
) -> None:
    now = (await jobs.submit(JOB, b"{}", queue="cpu")).job
    running, done = (replace(now, state=state) for state in ("running", "done"))
    late, reads = asyncio.Event(), 0

    async def read(job_id: str) -> JobRecord:
        nonlocal reads
        reads += 1
        if reads <= 2:  # of the waiter itself, and upon its subscription
            return now
        if reads == 3:
            await late.wait()
            return running
        late.set()  # what was asked for earlier arrives right behind this
        return done

    watcher = watch.Watcher(redis_async, read)
    waiting = asyncio.create_task(watcher.wait(JOB, 20))
    while reads < 2:
        await asyncio.sleep(0.01)
    for asked in (3, 4):
        redis_sync.publish(keys.EVENTS, JOB)
        while reads < asked:
            await asyncio.sleep(0.01)
    ended = await asyncio.wait_for(waiting, 5)
    assert ended is not None
    assert ended.state == "done"
    await watcher.close()
