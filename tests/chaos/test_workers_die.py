"""Workers that are killed, frozen or poisoned: the job ends all the same, and once."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import pytest
import redis.asyncio

from lacuna.contract.jobs import Job
from lacuna.contract.profile_requests import ProfileRequest
from service.store import keys
from service.store.profiles import ProfileStore
from service.store.queue import JobStore
from workers.faults import EXIT_DEVICE

if TYPE_CHECKING:
    from tests.conftest import Workers

pytestmark = pytest.mark.chaos

Make = Callable[..., ProfileRequest]
Submit = Callable[[ProfileRequest], Awaitable[str]]
Until = Callable[..., Awaitable[Job]]


async def body(client: redis.asyncio.Redis, job: Job) -> bytes:
    assert job.profile_id is not None
    stored = await ProfileStore(client).get(job.profile_id)
    assert stored is not None
    return stored.body


async def test_killed_in_the_middle_the_job_ends_elsewhere_with_the_same_numbers(
    workers: Workers,
    submit: Submit,
    until: Until,
    make_request: Make,
    redis_async: redis.asyncio.Redis,
) -> None:
    first = workers.start()
    request = make_request("sleep 1")
    undisturbed = await body(redis_async, await until(await submit(request)))
    await redis_async.flushall()
    await submit(request)
    await until(request.job_id, "running")
    second = workers.start()
    first.kill()
    killed = time.monotonic()
    job = await until(request.job_id)
    assert (job.state, job.attempt) == ("done", 2)
    assert await body(redis_async, job) == undisturbed
    assert time.monotonic() - killed < 2 * 2.0 + 2 * 1.0 + 2  # lease, run, poll
    assert workers.notes("ends")[-1] == (request.job_id, second.pid)


async def test_a_poison_job_fails_after_three_workers(
    workers: Workers,
    submit: Submit,
    until: Until,
    make_request: Make,
    redis_async: redis.asyncio.Redis,
) -> None:
    job_id = await submit(make_request("crash"))
    supervised = asyncio.create_task(supervise(workers, 1))
    job = await until(job_id)
    supervised.cancel()
    assert job.state == "failed"
    assert job.failure is not None
    assert (job.failure.code, job.failure.retryable) == ("worker_lost", True)
    assert "lease expired 3 times" in job.failure.detail
    assert [note[0] for note in workers.notes("starts")] == [job_id] * 3
    ((_, letter),) = await redis_async.xrange(keys.DEAD)
    assert letter[b"job"].decode() == job_id


async def supervise(workers: Workers, number: int) -> None:
    """Keep so many workers alive, as a supervisor would."""
    while True:
        alive = sum(process.poll() is None for process in workers.processes)
        for _ in range(number - alive):
            workers.start()
        await asyncio.sleep(0.05)


async def test_a_broken_device_costs_an_attempt_and_a_fresh_process_goes_on(
    workers: Workers, submit: Submit, until: Until, make_request: Make
) -> None:
    job_id = await submit(make_request("device"))
    healthy = await submit(make_request("sleep 0.1"))
    supervised = asyncio.create_task(supervise(workers, 1))
    assert (await until(healthy)).state == "done"
    job = await until(job_id)
    supervised.cancel()
    assert job.failure is not None
    assert job.failure.code == "worker_lost"
    codes = {p.returncode for p in workers.processes if p.poll() is not None}
    assert codes == {EXIT_DEVICE}


async def test_a_frozen_worker_cannot_overwrite_when_it_wakes(
    workers: Workers,
    submit: Submit,
    until: Until,
    make_request: Make,
    redis_async: redis.asyncio.Redis,
) -> None:
    frozen = workers.start()
    job_id = await submit(make_request("busy 1.5"))  # no check: it would run to its end
    await until(job_id, "running")
    await asyncio.sleep(0.3)
    frozen.send_signal(signal.SIGSTOP)
    second = workers.start()
    job = await until(job_id)
    assert job.state == "done"
    before = await redis_async.hgetall(keys.job(job_id))
    frozen.send_signal(signal.SIGCONT)
    end = time.monotonic() + 10
    while '"settled": "lost"' not in workers.log(0):
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
    assert await redis_async.hgetall(keys.job(job_id)) == before
    assert second.poll() is None
    # The frozen one is of use again.
    second.kill()
    assert (await until(await submit(make_request("sleep 0")))).state == "done"


async def test_a_frozen_worker_stops_at_its_next_check(
    workers: Workers, submit: Submit, until: Until, make_request: Make
) -> None:
    frozen = workers.start()
    job_id = await submit(make_request("sleep 6"))
    await until(job_id, "running")
    frozen.send_signal(signal.SIGSTOP)
    workers.start()
    end = time.monotonic() + 20
    while len(workers.notes("starts")) < 2:
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
    frozen.send_signal(signal.SIGCONT)
    woken = time.monotonic()
    while '"settled": "lost"' not in workers.log(0):
        assert time.monotonic() - woken < 3
        await asyncio.sleep(0.02)
    assert (await until(job_id)).state == "done"
    assert len(workers.notes("ends")) == 1


async def test_a_long_job_with_an_idle_peer_starts_once(
    workers: Workers, submit: Submit, until: Until, make_request: Make
) -> None:
    for _ in range(2):
        workers.start(lease=1.0)
    job_id = await submit(make_request("busy 6"))  # six leases without a single check
    job = await until(job_id)
    assert (job.state, job.attempt) == ("done", 1)
    assert len(workers.notes("starts")) == 1


async def test_a_thousand_identical_requests_run_once(
    workers: Workers, jobs: JobStore, make_request: Make, until: Until
) -> None:
    for _ in range(2):
        workers.start()
    request = make_request("sleep 0.5")
    text = request.model_dump_json().encode()
    calls = [jobs.submit(request.job_id, text, queue="cpu") for _ in range(1_000)]
    answers = await asyncio.gather(*calls)
    assert sum(answer.created for answer in answers) == 1
    assert (await until(request.job_id)).state == "done"
    assert len(workers.notes("starts")) == 1


async def test_no_worker_is_left_yet_the_job_does_not_run_for_ever(
    workers: Workers, submit: Submit, until: Until, make_request: Make, jobs: JobStore
) -> None:
    process = workers.start(lease=1.0)
    job_id = await submit(make_request("hang"))
    await until(job_id, "running")
    process.kill()
    end = time.monotonic() + 10
    while (job := await jobs.get(job_id)).state == "running":
        assert time.monotonic() < end
        await jobs.sweep(1.0)
        await asyncio.sleep(0.1)
    assert (job.state, job.position) == ("queued", 0)
    # Asked for again, it is the same job, and can be withdrawn.
    assert (await jobs.cancel(job_id)).state == "cancelled"
