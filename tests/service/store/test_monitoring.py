"""The numbers that the operator sees."""

from __future__ import annotations

import asyncio
import hashlib

import pytest
import redis
import redis.asyncio

from lacuna.contract.jobs import Failure
from lacuna.contract.models import WorkerModels
from service.store import connection, keys
from service.store.claims import ClaimStore, ProfileOutcome
from service.store.monitoring import COUNTERS, live_workers, store_metrics
from service.store.queue import JobStore


def name(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()[:32]


async def test_an_empty_store_counts_nothing(redis_async: redis.asyncio.Redis) -> None:
    found = await store_metrics(redis_async)
    assert set(found.counters) == set(COUNTERS)
    assert set(found.counters.values()) == {0}
    assert found.wait.count == found.run.count == 0
    assert [q.depth for q in found.queues] == [0, 0, 0]
    assert [q.oldest_seconds for q in found.queues] == [0, 0, 0]


async def test_every_event_is_counted(
    redis_async: redis.asyncio.Redis, redis_sync: redis.Redis
) -> None:
    jobs = JobStore(redis_async)
    claims = ClaimStore(redis_sync, name="w", queues=["cpu"], lease=0.05, max_attempts=2)
    for number in range(6):
        await jobs.submit(name(number), b"{}", queue="cpu", high=number == 5)
    await asyncio.sleep(0.02)
    first = await store_metrics(redis_async)
    cpu = next(q for q in first.queues if q.queue == "cpu")
    assert (cpu.depth, cpu.running) == (6, 0)
    assert 0.02 <= cpu.oldest_seconds < 5
    held = [claims.claim() for _ in range(4)]
    assert all(held)
    high, done, failed, back = (claim for claim in held if claim)
    claims.finish(done, ProfileOutcome("p" * 32, b"body", b"{}", b'{"model": "m"}'))
    claims.fail(failed, Failure(code="too_long", detail="", retryable=False))
    claims.release(back)
    await jobs.cancel(name(4))
    await asyncio.sleep(0.06)
    assert claims.expire() == 1
    again = claims.claim()
    assert again is not None
    assert again.job_id == high.job_id
    await asyncio.sleep(0.06)
    claims.expire()
    found = await store_metrics(redis_async)
    assert found.counters == {
        "submitted": 6, "ended:done": 1, "ended:failed": 2, "ended:cancelled": 1,
        "redeliveries": 1, "lost_leases": 2, "dead": 1, "given_back": 1, "declined": 0,
        "mended": 0,
    }  # fmt: skip
    assert found.wait.count == 4
    assert found.run.count == 1
    assert sum(found.run.buckets.values()) >= found.run.count
    assert 0 < found.wait.sum < 20
    assert (found.dead_letters, found.profiles) == (1, 1)
    assert found.profile_bytes == len(b'body{}{"model": "m"}')


async def test_workers_come_and_go(
    redis_async: redis.asyncio.Redis, redis_sync: redis.Redis
) -> None:
    facts = WorkerModels(worker="w", device="cuda:0", queue="gpu", warm=["gpt2"], local=[])
    claims = ClaimStore(redis_sync, name="w", queues=["gpu", "cpu"])
    claims.announce(facts, 30)
    known = facts.model_copy(update={"knows": list(claims.knows)})
    assert await live_workers(redis_async) == [known]
    assert [q.workers for q in (await store_metrics(redis_async)).queues] == [1, 1, 0]
    claims.announce(facts, 0.05)
    await asyncio.sleep(0.1)
    assert await live_workers(redis_async) == []
    assert [q.workers for q in (await store_metrics(redis_async)).queues] == [0, 0, 0]
    claims.announce(facts, 30)
    claims.farewell()
    assert await live_workers(redis_async) == []


async def test_jobs_of_a_queue_without_workers_move_after_a_while(
    redis_async: redis.asyncio.Redis,
    redis_sync: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = JobStore(redis_async)
    cpu = ClaimStore(redis_sync, name="c", queues=["cpu"])
    await jobs.submit(name(1), b"{}", queue="gpu")
    cpu.announce(WorkerModels(worker="c", device="cpu", queue="cpu", warm=[], local=[]), 30)
    cpu.expire()
    assert cpu.claim() is None
    monkeypatch.setattr(keys, "STRANDED_US", 1)
    connection.lua_source.cache_clear()
    ClaimStore(redis_sync, name="c", queues=["cpu"]).expire()
    connection.lua_source.cache_clear()
    assert cpu.claim() is not None
