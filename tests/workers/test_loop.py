"""One worker process and its queue: how each kind of end is reported."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
import redis.asyncio

from lacuna.contract.jobs import TERMINAL, Job
from lacuna.contract.profile_requests import METHOD_VERSION, ProfileRequest
from service.store import keys
from service.store.claims import ClaimStore
from service.store.monitoring import live_workers
from service.store.profiles import ProfileStore
from service.store.queue import JobStore
from workers.faults import EXIT_CONFIG, EXIT_DEVICE, EXIT_STUCK

if TYPE_CHECKING:
    from tests.conftest import Workers

Make = Callable[..., ProfileRequest]


@pytest.fixture
async def jobs(redis_async: redis.asyncio.Redis) -> AsyncIterator[JobStore]:
    store = JobStore(redis_async)
    yield store
    await store.close()


async def submit(jobs: JobStore, request: ProfileRequest) -> str:
    document, private = request.model_dump_json().encode(), request.confidential
    await jobs.submit(request.job_id, document, queue="cpu", private=private)
    return request.job_id


async def until(jobs: JobStore, job_id: str, *states: str, seconds: float = 20) -> Job:
    """The job, once it is in one of these states (by default: any at its end)."""
    end = time.monotonic() + seconds
    while (job := await jobs.get(job_id)).state not in (states or TERMINAL):
        assert time.monotonic() < end, f"still {job}"
        await asyncio.sleep(0.02)
    return job


async def test_jobs_of_all_kinds_in_one_life(
    workers: Workers, jobs: JobStore, redis_async: redis.asyncio.Redis, make_request: Make
) -> None:
    """Results and failures follow one another in the same process; nothing is left behind."""
    texts = ["sleep 0.1", "bug", "memory", "refuse", "sleep 0"]
    ids = [await submit(jobs, make_request(text)) for text in texts]
    workers.start()
    ends = [await until(jobs, job_id) for job_id in ids]
    assert [job.state for job in ends] == ["done", "failed", "failed", "failed", "done"]
    codes = [job.failure.code for job in ends if job.failure]
    assert codes == ["internal_error", "out_of_memory", "model_unsupported"]
    assert ends[2].failure is not None
    assert "128" in ends[2].failure.detail
    assert all(job.attempt == 1 for job in ends)
    page = await ProfileStore(redis_async).list(model="local:tiny")
    assert len(page.items) == 2
    assert "secret detail" in workers.log()  # the operator sees what the caller does not
    (facts,) = await live_workers(redis_async)
    assert (facts.device, facts.queue, facts.warm) == ("cpu", "cpu", ["preset:gpt2"])
    workers.processes[0].terminate()
    assert workers.processes[0].wait(5) == 0
    assert await live_workers(redis_async) == []


async def test_cancel_stops_a_running_job_within_seconds(
    workers: Workers, jobs: JobStore, make_request: Make
) -> None:
    workers.start()
    job_id = await submit(jobs, make_request("sleep 60"))
    await until(jobs, job_id, "running")
    started = time.monotonic()
    await jobs.cancel(job_id)
    assert (await until(jobs, job_id)).state == "cancelled"
    assert time.monotonic() - started < 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_gives_back_what_does_not_fit(
    workers: Workers, jobs: JobStore, make_request: Make, number: signal.Signals
) -> None:
    process = workers.start(grace=0.5)
    job_id = await submit(jobs, make_request("sleep 60"))
    await until(jobs, job_id, "running")
    process.send_signal(number)
    assert process.wait(5) == 0
    job = await jobs.get(job_id)
    assert (job.state, job.attempt, job.position) == ("queued", 0, 0)


async def test_sigterm_lets_end_what_fits(
    workers: Workers, jobs: JobStore, make_request: Make
) -> None:
    process = workers.start(grace=10)
    first, second = [await submit(jobs, make_request(f"sleep 1#{n}")) for n in range(2)]
    await until(jobs, first, "running")
    process.terminate()
    assert process.wait(10) == 0
    assert (await jobs.get(first)).state == "done"
    assert (await jobs.get(second)).state == "queued"


async def test_a_job_that_ignores_sigterm_is_given_back_all_the_same(
    workers: Workers, jobs: JobStore, make_request: Make
) -> None:
    process = workers.start(grace=0.2, TEST_STOP_LIMIT="0.2")
    job_id = await submit(jobs, make_request("hang"))
    await until(jobs, job_id, "running")
    process.terminate()
    assert process.wait(5) == EXIT_STUCK
    job = await jobs.get(job_id)
    assert (job.state, job.attempt) == ("queued", 0)


async def test_a_job_that_ignores_a_cancel_ends_with_its_process(
    workers: Workers, jobs: JobStore, make_request: Make
) -> None:
    process = workers.start(TEST_CANCEL_LIMIT="0.2")
    job_id = await submit(jobs, make_request("hang"))
    await until(jobs, job_id, "running")
    await jobs.cancel(job_id)
    assert process.wait(5) == EXIT_STUCK
    assert (await jobs.get(job_id)).state == "cancelled"


async def test_a_broken_device_ends_the_process_and_leaves_the_job(
    workers: Workers, jobs: JobStore, make_request: Make
) -> None:
    process = workers.start()
    job_id = await submit(jobs, make_request("device"))
    assert process.wait(10) == EXIT_DEVICE
    assert (await jobs.get(job_id)).state == "running"


async def test_a_job_that_lost_its_last_worker_is_named_in_the_log(
    workers: Workers, jobs: JobStore, make_request: Make
) -> None:
    """By whichever worker finds it."""
    job_id = await submit(jobs, make_request("crash"))
    assert workers.start(lease=0.5).wait(10) == -signal.SIGKILL
    workers.start(lease=0.5, LACUNA_MAX_ATTEMPTS="1")
    assert (await until(jobs, job_id)).state == "failed"
    await asyncio.sleep(0.2)
    lines = [json.loads(line) for line in workers.log(1).splitlines()]
    (line,) = [line for line in lines if line["level"] == "error"]
    assert line["job_id"] == job_id
    assert line["attempts"] == 1


async def test_what_lies_wrong_on_disk_does_not_keep_a_worker_from_working(
    workers: Workers, jobs: JobStore, make_request: Make
) -> None:
    folder = workers.data_dir / "pending-results"
    (folder / "odd.json").mkdir(parents=True)
    claim = {"job_id": "a" * 32, "token": "w/1", "attempt": 1}
    outcome = {"profile_id": "b" * 32, "body": "{}", "envelope": "{}", "summary": "{}"}
    (folder / "kept.json").write_text(json.dumps({"claim": claim, "outcome": outcome}))
    job_id = await submit(jobs, make_request("sleep 0"))
    workers.start()
    assert (await until(jobs, job_id)).state == "done"
    assert {path.name for path in folder.iterdir()} == {"odd.unreadable", "kept.unreadable"}


async def test_a_worker_that_has_just_started_takes_no_lease_for_lost(
    workers: Workers, jobs: JobStore, redis_sync: redis.Redis, make_request: Make
) -> None:
    """It may be starting after an outage, in which every lease ran out though all were at work."""
    job_id = await submit(jobs, make_request("sleep 0"))
    other = ClaimStore(redis_sync, name="other", queues=["cpu"], lease=0.01)
    claim = other.claim()
    assert claim is not None
    workers.start(lease=2.0)
    end = time.monotonic() + 20
    while not await live_workers(jobs._client):
        assert time.monotonic() < end
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.7)  # it sweeps every third of a second
    assert (await jobs.get(job_id)).attempt == 1
    assert other.beat(claim, 0.5, "") == "ok"
    assert (await until(jobs, job_id)).attempt == 2


async def test_a_server_that_evicts_is_refused(
    workers: Workers, redis_async: redis.asyncio.Redis
) -> None:
    await redis_async.config_set("maxmemory-policy", "allkeys-lru")
    try:
        process = workers.start()
        assert process.wait(10) == EXIT_CONFIG
        assert "allkeys-lru" in workers.log()
        tolerant = workers.start(LACUNA_EVICTION_POLICY_CHECK="warn")
        end = time.monotonic() + 10
        while not await live_workers(redis_async):
            assert time.monotonic() < end
            await asyncio.sleep(0.05)
        assert tolerant.poll() is None
    finally:
        await redis_async.config_set("maxmemory-policy", "noeviction")


async def test_settings_that_cannot_be_used_are_said(workers: Workers) -> None:
    process = workers.start(LACUNA_MAX_ATTEMPTS="0")
    assert process.wait(10) == EXIT_CONFIG
    assert "LACUNA_MAX_ATTEMPTS" in workers.log()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_idle_worker_stops_soon(
    workers: Workers, redis_async: redis.asyncio.Redis, number: signal.Signals
) -> None:
    process = workers.start()
    end = time.monotonic() + 10
    while not await live_workers(redis_async):
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
    process.send_signal(number)
    assert process.wait(5) == 0


async def test_the_callers_words_leave_the_stores_disk_soon_after_the_job(
    workers: Workers, jobs: JobStore, redis_async: redis.asyncio.Redis, make_request: Make
) -> None:
    words = "sleep 0#nobody-else-may-read-this"
    job_id = await submit(jobs, make_request(words))
    folder = Path((await redis_async.config_get("dir"))["dir"]) / "appendonlydir"

    def on_disk() -> bool:
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # the rewrite has just removed it
                if words.encode() in path.read_bytes():
                    return True
        return False

    assert on_disk()
    workers.start()
    await until(jobs, job_id)
    end = time.monotonic() + 20
    while on_disk():
        assert time.monotonic() < end
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("how", ["unknown field", "another name", "unknown kind"])
async def test_what_this_version_reads_otherwise_is_given_back_untouched(
    workers: Workers, jobs: JobStore, redis_sync: redis.Redis, make_request: Make, how: str
) -> None:
    request = make_request("sleep 0")
    document, identity = request.model_dump_json(), request.job_id
    if how == "unknown field":
        document = document.replace("{", '{"of_the_next_release": 1, ', 1)
    if how == "another name":
        identity = "d" * 32
    await jobs.submit(request.job_id, document.encode(), queue="cpu", identity=identity)
    if how == "unknown kind":
        redis_sync.hset(keys.job(request.job_id), "kind", "of_the_next_release")
    workers.start()
    other = await submit(jobs, make_request("sleep 0#2"))
    await until(jobs, other)
    raw = redis_sync.hmget(keys.job(request.job_id), ["state", "attempts", "declined", "document"])
    assert raw == [b"queued", b"0", b"1", document.encode()]
    await asyncio.sleep(0.5)
    assert redis_sync.hget(keys.STATS, "declined") == b"1", "it does not go round in circles"
    assert "another version made it" in workers.log()
    assert "starts" not in [path.name for path in workers.data_dir.iterdir()] or (
        request.job_id not in (workers.data_dir / "starts").read_text()
    )


async def test_an_older_worker_leaves_a_newer_request_to_a_newer_worker(
    workers: Workers, jobs: JobStore, redis_async: redis.asyncio.Redis, make_request: Make
) -> None:
    workers.start(TEST_METHOD_VERSION="3")
    end = time.monotonic() + 20
    while not await live_workers(redis_async):
        assert time.monotonic() < end
        await asyncio.sleep(0.02)
    job_id = await submit(jobs, make_request("sleep 0"))
    await asyncio.sleep(1.0)
    job = await jobs.get(job_id)
    assert (job.state, job.attempt) == ("queued", 0)
    assert job.message.startswith(f"waits for a CPU worker of method version {METHOD_VERSION}:")
    workers.start()
    assert (await until(jobs, job_id)).state == "done"
    assert "job starts" not in workers.log(0)
