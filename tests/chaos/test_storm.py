"""Everything at once: many jobs, three workers killed at random, the store killed at random.

With `appendfsync always` what was acknowledged is never lost, so nothing may run twice to its end.
With `everysec` the last second may be lost with the store: a job that ended in it may run again,
and is counted.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import pytest
import redis.asyncio

from lacuna.contract.errors import StoreUnavailable
from lacuna.contract.jobs import TERMINAL, Job
from lacuna.contract.profile_requests import ProfileRequest
from service.store.monitoring import store_metrics
from service.store.profiles import ProfileStore
from service.store.queue import JobStore

if TYPE_CHECKING:
    from tests.chaos.conftest import Store
    from tests.conftest import Workers

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

JOBS = 200
WORKERS = 3


@dataclass
class Storm:
    """Kills workers and the store at random until told to stop."""

    workers: Workers
    store: Store
    random: random.Random
    killed: set[int] = field(default_factory=set)
    outages: int = 0
    over: bool = False

    async def kill_workers(self) -> None:
        """One SIGKILL every second or so; a supervisor starts the next."""
        while True:
            alive = [p for p in self.workers.processes if p.poll() is None]
            for _ in range(WORKERS - len(alive)):
                self.workers.start(lease=2.0)
            await asyncio.sleep(self.random.uniform(0.3, 1.8))
            if self.over:
                continue
            victim = self.random.choice([p for p in self.workers.processes if p.poll() is None])
            victim.kill()
            self.killed.add(victim.pid)

    async def kill_store(self) -> None:
        """SIGKILL and a restart from what is on disk, after a pause."""
        while not self.over:
            await asyncio.sleep(self.random.uniform(3, 8))
            if self.over:
                return
            self.store.kill()
            self.outages += 1
            await asyncio.sleep(self.random.uniform(0.05, 2.5))
            await asyncio.to_thread(self.store.start)


T = TypeVar("T")


async def persistently(call: Callable[[], Awaitable[T]]) -> T:
    """As a client would: a 503 means try again."""
    while True:
        try:
            return await call()
        except StoreUnavailable:
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(("fsync", "number"), [("always", JOBS), ("everysec", 60)])
async def test_jobs_in_a_storm(
    fsync: str,
    number: int,
    workers: Workers,
    store: Store,
    jobs: JobStore,
    redis_async: redis.asyncio.Redis,
    make_request: Callable[..., ProfileRequest],
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed = 20_26
    store.fsync = fsync
    await redis_async.config_set("appendfsync", fsync)
    storm = Storm(workers, store, random.Random(seed))
    requests = [
        make_request(f"sleep {0.1 + 0.4 * storm.random.random():.2f}#{n}") for n in range(number)
    ]
    started = time.monotonic()
    chaos = [asyncio.create_task(storm.kill_workers()), asyncio.create_task(storm.kill_store())]
    for request in requests:
        text = request.model_dump_json().encode()
        await persistently(lambda r=request, t=text: jobs.submit(r.job_id, t, queue="cpu"))
    ends = await all_ended(jobs, [request.job_id for request in requests], storm)
    for task in chaos:
        task.cancel()
    await asyncio.gather(*chaos, return_exceptions=True)
    seconds = time.monotonic() - started

    states = Counter(job.state for job in ends)
    undisturbed = {r.job_id: expected_body(r) for r in requests}
    differing = 0
    for job in ends:
        if job.state == "done":
            assert job.profile_id is not None
            stored = await ProfileStore(redis_async).get(job.profile_id)
            differing += stored is None or stored.body != undisturbed[job.id]
    full_runs = Counter(job for job, _ in workers.notes("ends"))
    # A worker that was killed between the end of its run and its report leaves a run that nobody
    # knows of; only such a run may be repeated.
    repeats = sum(
        1
        for job, runs in full_runs.items()
        if runs > 1
        and sum(pid not in storm.killed for j, pid in workers.notes("ends") if j == job) > 1
    )
    counts = (await store_metrics(redis_async)).counters
    with capsys.disabled():
        print(
            f"\nstorm, appendfsync {fsync}: {number} jobs in {seconds:.0f} s: {dict(states)}; "
            f"{len(storm.killed)} workers killed, {storm.outages} outages; "
            f"starts {len(workers.notes('starts'))}, full runs {sum(full_runs.values())} "
            f"(repeated without need {repeats}), redeliveries {counts['redeliveries']}, "
            f"dead {counts['dead']}, bodies that differ {differing}"
        )
    assert states["done"] + states["failed"] == number
    assert all(job.failure is not None for job in ends if job.state == "failed")
    assert states["done"] >= 0.95 * number
    assert differing == 0
    assert storm.outages >= 2
    assert len(storm.killed) >= 10
    if fsync == "always":
        assert repeats == 0
        # Each end was recorded exactly once: the fence let nobody end a job twice.
        assert counts["ended:done"] == states["done"]
        assert counts["ended:failed"] == states["failed"]


async def all_ended(jobs: JobStore, ids: list[str], storm: Storm) -> list[Job]:
    """All jobs at their ends; the storm abates for the last few, so that it ends at all.

    On a busy machine workers are killed about as fast as they start, so the time is bounded without
    an end of any job, not in all.
    """
    end, fewest = time.monotonic() + 300, len(ids)
    while True:
        found = [await persistently(lambda i=i: jobs.get(i)) for i in ids]
        left = [job for job in found if job.state not in TERMINAL]
        if not left:
            return found
        storm.over = len(left) <= 5
        if len(left) < fewest:
            end, fewest = time.monotonic() + 300, len(left)
        assert time.monotonic() < end, f"{len(left)} jobs left, such as {left[0]}"
        await asyncio.sleep(0.5)


def expected_body(request: ProfileRequest) -> bytes:
    """What an undisturbed run of the fake worker leaves."""
    digest = hashlib.sha256(request.job_id.encode()).hexdigest()
    return json.dumps({"id": digest[:32], "numbers": [int(c, 16) for c in digest] * 20}).encode()
