"""A store that waiting requests have filled."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis
import redis.asyncio

from lacuna.contract.errors import StoreUnavailable
from service.local import store
from service.store import keys
from service.store.claims import Claim, ClaimStore, ProfileOutcome
from service.store.connection import connect, connect_async
from service.store.kinds import needs
from service.store.queue import JobStore

TEXT = b"a" * 1_000_000
ROOM = 20 * len(TEXT)


@pytest.fixture
async def small(short_dir: Path) -> AsyncIterator[redis.asyncio.Redis]:
    """A server of its own with room for few: what the session's holds depends on other tests."""
    with store.ensure(short_dir) as server:
        client = connect_async(server.url)
        used = (await client.info("memory"))["used_memory"]
        await client.config_set("maxmemory", used + ROOM)
        yield client
        await client.aclose()


@pytest.fixture
def worker(small: redis.asyncio.Redis, short_dir: Path) -> ClaimStore:
    return ClaimStore(connect(f"unix://{short_dir}/redis.sock"), name="w", queues=["cpu"])


def finish(worker: ClaimStore, claim: Claim, *, late: bool = False) -> str:
    outcome = ProfileOutcome(claim.job_id, b"x" * 10_000, b"{}", b'{"model": "m"}')
    return worker.finish(claim, outcome, late=late)


async def fill(jobs: JobStore, *, sweep: bool = False) -> tuple[int, str]:
    """Submits until the server refuses; returns how many it took, and what it says then."""
    for number in range(1_000):
        try:
            if sweep:
                await jobs.sweep(lease=1e6)
            await jobs.submit(f"{number:032x}", TEXT, queue="cpu")
        except StoreUnavailable as error:
            return number, error.detail
    raise AssertionError("the server has no bound")


async def test_it_drains(small: redis.asyncio.Redis, worker: ClaimStore) -> None:
    jobs = JobStore(small)
    waiting, _ = await fill(jobs)
    assert waiting > 5
    for _ in range(waiting):
        claim = worker.claim()
        assert claim is not None
        assert finish(worker, claim) == "ok"
    assert await small.zcard(keys.ready("cpu", needs("profile"))) == 0
    assert (await fill(jobs))[0] >= waiting - 1
    await jobs.close()


async def test_a_result_that_was_kept_frees_its_job_that_waits_again(
    small: redis.asyncio.Redis, worker: ClaimStore
) -> None:
    jobs = JobStore(small)
    assert (await fill(jobs))[0] > 5
    claim = worker.claim()
    assert claim is not None
    assert worker.release(claim) == "ok"
    assert finish(worker, claim, late=True) == "ok"
    assert (await jobs.get(claim.job_id)).state == "done"
    await jobs.close()


async def test_new_jobs_are_refused_before_it_is_full(
    small: redis.asyncio.Redis, worker: ClaimStore
) -> None:
    jobs = JobStore(small)
    accepted, why = await fill(jobs, sweep=True)
    assert "nearly out of memory" in why
    assert 0.75 * ROOM < accepted * len(TEXT) < ROOM
    # What is there already may be asked for again, and its end makes room.
    assert not (await jobs.submit(f"{0:032x}", TEXT, queue="cpu")).created
    for _ in range(accepted):
        claim = worker.claim()
        assert claim is not None
        finish(worker, claim)
    await jobs.sweep(lease=1e6)
    assert (await jobs.submit("f" * 32, TEXT, queue="cpu")).created
    await jobs.close()


async def test_what_a_slow_replica_has_yet_to_read_does_not_count(
    small: redis.asyncio.Redis, short_dir: Path
) -> None:
    jobs = JobStore(small)
    await small.config_set("repl-diskless-sync", "no")
    await small.config_set("repl-backlog-size", 16_384)
    with socket.socket(socket.AF_UNIX) as replica:
        replica.connect(str(short_dir / "redis.sock"))
        replica.sendall(b"SYNC\r\n")
        while not (await small.info("replication"))["connected_slaves"]:
            await asyncio.sleep(0.01)
        accepted, _ = await fill(jobs, sweep=True)
        assert (await small.info("memory"))["mem_not_counted_for_evict"] > ROOM / 3
    assert accepted * len(TEXT) > 0.75 * ROOM
    await jobs.close()
