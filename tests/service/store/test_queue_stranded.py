"""Whether a kind of worker is gone for good, or only starting anew."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis
import redis.asyncio

from lacuna.contract.models import WorkerModels
from service.store import keys
from service.store.claims import ClaimStore
from service.store.keys import QueueName
from service.store.kinds import needs
from service.store.monitoring import served_queues
from service.store.queue import JobStore

NEEDS = needs("profile")
JOBS = [f"{number:032x}" for number in range(50)]


@pytest.fixture
async def jobs(redis_async: redis.asyncio.Redis) -> AsyncIterator[JobStore]:
    store = JobStore(redis_async)
    yield store
    await store.close()


def announce(claims: ClaimStore, queue: QueueName) -> None:
    claims.announce(
        WorkerModels(worker=claims.name, device=queue, queue=queue, warm=[], local=[]), 30
    )


@pytest.fixture
def gpu(redis_sync: redis.Redis) -> ClaimStore:
    """The only GPU worker; a CPU worker lives beside it."""
    announce(ClaimStore(redis_sync, name="c", queues=["cpu"]), "cpu")
    claims = ClaimStore(redis_sync, name="g", queues=["gpu", "cpu"])
    announce(claims, "gpu")
    return claims


def waiting(client: redis.Redis) -> tuple[int, int]:
    """How many profiles wait in the GPU queue and in the CPU queue."""
    gpu, cpu = (client.zcard(keys.ready(queue, NEEDS)) for queue in keys.DEVICE_QUEUES)
    return gpu, cpu


def age(client: redis.Redis, seconds: int, *, seen: bool) -> None:
    """Every job was submitted so long ago; `seen`: the queue's last worker is gone as long."""
    past = (client.time()[0] - seconds) * 1_000_000
    for number, job in enumerate(JOBS):
        client.hset(keys.job(job), "created", past + number)
        client.zadd(keys.ready("gpu", NEEDS), {job: past + number}, xx=True)
    if seen:
        client.hset(keys.STATS, f"{keys.LAST_SEEN}{keys.lane('gpu', NEEDS)}", past)


async def test_a_backlog_waits_for_a_worker_that_starts_anew(
    jobs: JobStore, gpu: ClaimStore, redis_sync: redis.Redis
) -> None:
    for job in JOBS:
        await jobs.submit(job, b"{}", queue="gpu")
    age(redis_sync, 660, seen=False)
    gpu.farewell()
    gpu.expire()
    assert waiting(redis_sync) == (50, 0)
    announce(gpu, "gpu")
    claim = gpu.claim()
    assert claim is not None
    assert claim.job_id == JOBS[0]


async def test_a_backlog_whose_workers_are_gone_for_good_goes_to_those_that_live(
    jobs: JobStore, gpu: ClaimStore, redis_sync: redis.Redis
) -> None:
    for job in JOBS:
        await jobs.submit(job, b"{}", queue="gpu")
    gpu.farewell()
    age(redis_sync, 660, seen=True)
    gpu.expire()
    assert waiting(redis_sync) == (0, 50)


async def test_a_queue_is_served_while_its_worker_may_come_back(
    redis_async: redis.asyncio.Redis, redis_sync: redis.Redis, gpu: ClaimStore
) -> None:
    assert ("gpu", "profile") in await served_queues(redis_async)
    gpu.farewell()
    assert ("gpu", "profile") in await served_queues(redis_async)
    age(redis_sync, 660, seen=True)
    served = await served_queues(redis_async)
    assert ("cpu", "profile") in served
    assert ("gpu", "profile") not in served


def test_a_full_server_does_not_take_a_worker_for_gone(
    redis_sync: redis.Redis, gpu: ClaimStore
) -> None:
    before = redis_sync.hget(keys.STATS, f"{keys.LAST_SEEN}{keys.lane('gpu', NEEDS)}")
    redis_sync.config_set("maxmemory", 1)
    announce(gpu, "gpu")
    assert redis_sync.hget(keys.STATS, f"{keys.LAST_SEEN}{keys.lane('gpu', NEEDS)}") != before


async def test_a_waiting_job_says_that_its_only_worker_is_gone(
    jobs: JobStore, gpu: ClaimStore
) -> None:
    assert (await jobs.submit(JOBS[0], b"{}", queue="gpu")).job.message == ""
    gpu.farewell()
    assert (await jobs.get(JOBS[0])).message == "waits for a GPU worker: none is running"
    announce(gpu, "gpu")
    assert (await jobs.get(JOBS[0])).message == ""


async def test_jobs_for_endpoints_stay_in_their_queue(
    jobs: JobStore, gpu: ClaimStore, redis_sync: redis.Redis
) -> None:
    """A worker that loads weights cannot run them, however long they wait."""
    await jobs.submit(JOBS[0], b"{}", queue="endpoints")
    past = (redis_sync.time()[0] - 660) * 1_000_000
    redis_sync.zadd(keys.ready("endpoints", NEEDS), {JOBS[0]: past}, xx=True)
    gpu.expire()
    assert redis_sync.zcard(keys.ready("endpoints", NEEDS)) == 1
    assert waiting(redis_sync) == (0, 0)
