"""The store goes away at bad moments: nothing is lost, nothing runs twice."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis.asyncio

from lacuna.contract.errors import StoreUnavailable
from lacuna.contract.jobs import Job
from lacuna.contract.profile_requests import ProfileRequest
from service.store.profiles import ProfileStore
from service.store.queue import JobStore

if TYPE_CHECKING:
    from tests.chaos.conftest import Store
    from tests.conftest import Workers

pytestmark = pytest.mark.chaos

Make = Callable[..., ProfileRequest]
Submit = Callable[[ProfileRequest], Awaitable[str]]
Until = Callable[..., Awaitable[Job]]


async def eventually(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


@pytest.fixture
def kept(tmp_path: Path) -> Callable[[], list[Path]]:
    return lambda: list((tmp_path / "pending-results").glob("*.json"))


async def test_away_for_three_leases_in_the_middle_of_a_job(
    workers: Workers, store: Store, submit: Submit, until: Until, make_request: Make
) -> None:
    """The idle peer is back before the owner is; it must not take the job all the same."""
    owner = workers.start(lease=2.0)
    job_id = await submit(make_request("sleep 9"))
    await until(job_id, "running")
    workers.start(lease=2.0)
    await asyncio.sleep(1.5)
    store.kill()
    await asyncio.sleep(5)
    owner.send_signal(signal.SIGSTOP)
    store.start()
    await asyncio.sleep(1.5)
    owner.send_signal(signal.SIGCONT)
    job = await until(job_id)
    assert (job.state, job.attempt) == ("done", 1)
    assert len(workers.notes("starts")) == 1


async def test_away_at_the_end_the_result_is_kept_and_recorded(
    workers: Workers,
    store: Store,
    submit: Submit,
    until: Until,
    make_request: Make,
    kept: Callable[[], list[Path]],
) -> None:
    workers.start()
    job_id = await submit(make_request("busy 1"))
    await until(job_id, "running")
    store.kill()
    await eventually(lambda: len(kept()) == 1)
    store.start()
    job = await until(job_id)
    assert (job.state, job.attempt) == ("done", 1)
    assert len(workers.notes("starts")) == 1
    await eventually(lambda: not kept())


async def test_away_at_the_end_and_the_worker_killed_another_one_records_it(
    workers: Workers,
    store: Store,
    submit: Submit,
    until: Until,
    make_request: Make,
    kept: Callable[[], list[Path]],
    redis_async: redis.asyncio.Redis,
) -> None:
    process = workers.start()
    job_id = await submit(make_request("busy 1"))
    await until(job_id, "running")
    store.kill()
    await eventually(lambda: len(kept()) == 1)
    process.kill()
    store.start()
    workers.start()
    job = await until(job_id)
    assert job.state == "done"
    assert len(workers.notes("starts")) == 1
    assert job.profile_id is not None
    assert await ProfileStore(redis_async).get(job.profile_id) is not None
    await eventually(lambda: not kept())


async def test_a_full_store_takes_results_and_no_new_jobs(
    workers: Workers,
    submit: Submit,
    until: Until,
    make_request: Make,
    kept: Callable[[], list[Path]],
    redis_async: redis.asyncio.Redis,
) -> None:
    workers.start()
    # More than a lease: beats go through on a full server.
    running, waiting = await submit(make_request("busy 3")), await submit(make_request("sleep 0"))
    await until(running, "running")
    await redis_async.config_set("maxmemory", 1)
    with pytest.raises(StoreUnavailable):
        await submit(make_request("sleep 5"))
    for job_id in (running, waiting):
        job = await until(job_id)
        assert (job.state, job.attempt) == ("done", 1)
    assert kept() == []
    await redis_async.config_set("maxmemory", 0)


async def test_the_gateway_says_so_quickly_and_open_waits_live_on(
    workers: Workers, store: Store, submit: Submit, make_request: Make, jobs: JobStore
) -> None:
    workers.start()
    job_id = await submit(make_request("sleep 4"))
    wait = asyncio.create_task(jobs.wait(job_id, 60))
    await asyncio.sleep(0.5)
    store.kill()
    for call in (jobs.get(job_id), submit(make_request("sleep 0")), jobs.cancel(job_id)):
        started = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await call
        assert time.monotonic() - started < 1
    await asyncio.sleep(1)
    store.start()
    assert (await wait).state == "done"


async def test_an_idle_worker_waits_and_comes_back(
    workers: Workers, store: Store, submit: Submit, until: Until, make_request: Make
) -> None:
    process = workers.start()
    assert (await until(await submit(make_request("sleep 0")))).state == "done"
    store.kill()
    await asyncio.sleep(3)
    assert process.poll() is None
    store.start()
    assert (await until(await submit(make_request("sleep 0.1")))).state == "done"


async def test_a_worker_may_start_before_the_store(
    workers: Workers, store: Store, submit: Submit, until: Until, make_request: Make
) -> None:
    store.kill()
    workers.start()
    await eventually(lambda: "waiting for the store" in workers.log())
    store.start()
    assert (await until(await submit(make_request("sleep 0.1")))).state == "done"


async def test_a_store_that_hangs_is_said_within_seconds_even_to_many(
    workers: Workers, store: Store, submit: Submit, until: Until, make_request: Make, jobs: JobStore
) -> None:
    workers.start(lease=3.0)
    job_id = await submit(make_request("sleep 12"))
    await until(job_id, "running")
    store.freeze()
    try:
        started = time.monotonic()
        calls = [jobs.get(job_id) for _ in range(100)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(answer) for answer in answers} == {StoreUnavailable}
        assert time.monotonic() - started < 12
    finally:
        store.thaw()
    job = await until(job_id)
    assert (job.state, job.attempt) == ("done", 1)
