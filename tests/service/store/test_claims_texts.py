"""Callers' own texts leave the disk with their jobs, however those end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from lacuna.contract.jobs import Failure
from service.local import store
from service.store.claims import ClaimStore, ProfileOutcome
from service.store.connection import connect, connect_async
from service.store.queue import JobStore

JOB, SECRET = "a" * 32, b"what only its caller may know"
Ends = Callable[[ClaimStore], object]


@pytest.fixture
async def jobs(short_dir: Path) -> AsyncIterator[JobStore]:
    with store.ensure(short_dir, fsync="always") as server:
        client = connect_async(server.url)
        yield JobStore(client)
        await client.aclose()


@pytest.fixture
def claims(jobs: JobStore, short_dir: Path) -> ClaimStore:
    client = connect(f"unix://{short_dir}/redis.sock")
    return ClaimStore(client, name="w", queues=["cpu"], lease=0.05, max_attempts=1)


def done(claims: ClaimStore) -> None:
    claim = claims.claim()
    assert claim is not None
    assert claims.finish(claim, ProfileOutcome("b" * 32, b"{}", b"{}", b'{"model": "m"}')) == "ok"


def failed(claims: ClaimStore) -> None:
    claim = claims.claim()
    assert claim is not None
    assert claims.fail(claim, Failure(code="not_finite", detail="", retryable=False)) == "ok"


def lost(claims: ClaimStore) -> None:
    assert claims.claim() is not None
    time.sleep(0.1)
    assert claims.expire() == 1


def on_disk(folder: Path) -> bool:
    for path in (folder / "appendonlydir").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the rewrite has just removed it
            if SECRET in path.read_bytes():
                return True
    return False


def gone_within_seconds(folder: Path) -> bool:
    end = time.monotonic() + 20
    while on_disk(folder):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("ends", [done, failed, lost])
async def test_the_end_of_a_job_takes_its_texts_from_the_disk(
    jobs: JobStore, claims: ClaimStore, short_dir: Path, ends: Ends
) -> None:
    await jobs.submit(JOB, SECRET, queue="cpu", private=True)
    assert not claims.forget_history()  # nothing has ended yet
    ends(claims)
    assert on_disk(short_dir)
    assert claims.forget_history()
    assert gone_within_seconds(short_dir)
    assert not claims.forget_history()


async def test_so_does_a_withdrawal_that_no_worker_sees(
    jobs: JobStore, claims: ClaimStore, short_dir: Path
) -> None:
    await jobs.submit(JOB, SECRET, queue="cpu", private=True)
    assert (await jobs.cancel(JOB)).state == "cancelled"
    assert claims.forget_history()
    assert gone_within_seconds(short_dir)


async def test_without_any_worker_the_gateway_sees_to_it(jobs: JobStore, short_dir: Path) -> None:
    await jobs.submit(JOB, SECRET, queue="cpu", private=True)
    assert not await jobs.forget_history()
    assert (await jobs.cancel(JOB)).state == "cancelled"
    assert on_disk(short_dir)
    assert await jobs.forget_history()
    assert gone_within_seconds(short_dir)
    assert not await jobs.forget_history()


async def test_requests_that_hold_nobodys_texts_cost_no_rewrite(
    jobs: JobStore, claims: ClaimStore
) -> None:
    await jobs.submit(JOB, b"{}", queue="cpu")
    done(claims)
    assert not claims.forget_history()
