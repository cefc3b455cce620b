"""The clock of the store is set, workers are killed or frozen for longer than their lease: nothing
is lost, nothing differs.

Needs libfaketime (Debian: `apt-get install libfaketime`; elsewhere LACUNA_FAKETIME names the file).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis.asyncio

from lacuna.contract.jobs import TERMINAL, Job
from lacuna.contract.profile_requests import ProfileRequest
from service.local import store as embedded
from service.store.profiles import ProfileStore
from service.store.queue import JobStore

if TYPE_CHECKING:
    from tests.chaos.conftest import Store
    from tests.conftest import Workers

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

Make = Callable[..., ProfileRequest]
Submit = Callable[[ProfileRequest], Awaitable[str]]
Until = Callable[..., Awaitable[Job]]
HOUR = 3_600
LEASE = 2.0


class Clock:
    """The clock of the store."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    def set(self, ahead: int) -> None:
        """Set it: seconds ahead of the true time."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{ahead:+d}\n")
        new.replace(self._file)


def faketime() -> Path | None:
    """The library that shows a process another time, if it is here."""
    named = os.environ.get("LACUNA_FAKETIME")
    found = [Path(named)] if named else sorted(Path("/usr/lib").rglob("libfaketimeMT.so.1"))
    return next((path for path in found if path.is_file()), None)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "clock")


@pytest.fixture
def store(short_dir: Path, clock: Clock, tmp_path: Path) -> Iterator[embedded.EmbeddedServer]:
    """A store with that clock, in place of one with the true time."""
    library = faketime()
    if library is None:
        pytest.skip("libfaketime is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        patch.setenv("FAKETIME_TIMESTAMP_FILE", str(tmp_path / "clock"))
        patch.setenv("FAKETIME_NO_CACHE", "1")
        patch.setenv("DONT_FAKE_MONOTONIC", "1")
        server = embedded.ensure(short_dir, fsync="always")
    yield server
    server.close()


@pytest.fixture
def redis_url(store: Store) -> str:
    return store.url  # type: ignore[attr-defined, no-any-return]


async def test_the_store_has_the_clock(clock: Clock, redis_async: redis.asyncio.Redis) -> None:
    for ahead in (0, -HOUR, HOUR):
        clock.set(ahead)
        end = time.monotonic() + 10
        # The server reads its clock once in a turn of its loop: the first answer may be older.
        while abs((await redis_async.time())[0] - time.time() - ahead) > 5:
            assert time.monotonic() < end
            await asyncio.sleep(0.05)


async def test_set_back_an_hour_a_killed_workers_job_is_taken_within_leases(
    clock: Clock, workers: Workers, submit: Submit, until: Until, make_request: Make
) -> None:
    killed = workers.start(lease=LEASE)
    job_id = await submit(make_request("sleep 3"))
    await until(job_id, "running")
    clock.set(-HOUR)
    killed.kill()
    workers.start(lease=LEASE)
    job = await until(job_id, seconds=40)
    assert (job.state, job.attempt) == ("done", 2)


async def test_set_back_an_hour_and_nobody_left_but_a_gateway(
    clock: Clock, workers: Workers, submit: Submit, jobs: JobStore, make_request: Make
) -> None:
    killed = workers.start(lease=LEASE)
    job_id = await submit(make_request("sleep 30"))
    while (await jobs.get(job_id)).state != "running":
        await asyncio.sleep(0.05)
    await jobs.sweep(LEASE)
    clock.set(-HOUR)
    killed.kill()
    end = time.monotonic() + 30
    while (await jobs.get(job_id)).state != "queued":
        assert time.monotonic() < end
        await jobs.sweep(LEASE)
        await asyncio.sleep(0.2)


@pytest.mark.parametrize("ahead", [-HOUR, HOUR])
async def test_a_job_whose_worker_lives_runs_once_whatever_the_clock_does(
    ahead: int, clock: Clock, workers: Workers, submit: Submit, until: Until, make_request: Make
) -> None:
    for _ in range(2):  # an idle peer looks for expired leases all the time
        workers.start(lease=LEASE)
    job_id = await submit(make_request("sleep 9"))
    await until(job_id, "running")
    await asyncio.sleep(2 * LEASE)  # by now leases are judged
    clock.set(ahead)
    job = await until(job_id)
    assert (job.state, job.attempt) == ("done", 1)
    assert len(workers.notes("starts")) == 1


class Storm:
    """Kills workers, freezes them for longer than their lease, and sets the clock."""

    def __init__(self, workers: Workers, clock: Clock) -> None:
        self.workers, self.clock, self.random = workers, clock, random.Random(15)
        self.killed, self.frozen, self.set = 0, 0, 0

    async def of_workers(self) -> None:
        """Of three workers, one at a time; a supervisor starts the next."""
        while True:
            alive = [one for one in self.workers.processes if one.poll() is None]
            for _ in range(3 - len(alive)):
                self.workers.start(lease=LEASE)
            await asyncio.sleep(self.random.uniform(0.5, 2.0))
            victim = self.random.choice(
                [one for one in self.workers.processes if one.poll() is None]
            )
            if self.random.random() < 0.4:
                victim.kill()
                self.killed += 1
                continue
            victim.send_signal(signal.SIGSTOP)
            self.frozen += 1
            await asyncio.sleep(self.random.uniform(1.2, 2.5) * LEASE)
            victim.send_signal(signal.SIGCONT)

    async def of_the_clock(self) -> None:
        """An hour back, forth, and anything between."""
        while True:
            await asyncio.sleep(self.random.uniform(4, 9))
            self.clock.set(self.random.choice([-HOUR, -60, 0, 60, HOUR]))
            self.set += 1


async def test_a_storm_of_frozen_workers_under_a_clock_that_jumps(
    clock: Clock,
    workers: Workers,
    jobs: JobStore,
    make_request: Make,
    redis_async: redis.asyncio.Redis,
    capsys: pytest.CaptureFixture[str],
) -> None:
    storm, number = Storm(workers, clock), 150
    requests = [
        make_request(f"sleep {0.1 + 0.8 * storm.random.random():.2f}#{n}") for n in range(number)
    ]
    started = time.monotonic()
    chaos = [asyncio.create_task(one) for one in (storm.of_workers(), storm.of_the_clock())]
    for request in requests:
        await jobs.submit(request.job_id, request.model_dump_json().encode(), queue="cpu")
    left, ends = {request.job_id for request in requests}, dict[str, Job]()
    while left:
        assert time.monotonic() - started < 240, f"{len(left)} jobs left"
        await jobs.sweep(LEASE)  # as the gateway does
        for job_id in list(left):
            job = await jobs.get(job_id)
            if job.state in TERMINAL:
                ends[job_id] = job
                left.discard(job_id)
        await asyncio.sleep(0.5)
    for task in chaos:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    states = Counter(job.state for job in ends.values())
    differing = 0
    for job_id, job in ends.items():
        if job.profile_id is not None:
            stored = await ProfileStore(redis_async).get(job.profile_id)
            differing += stored is None or stored.body != undisturbed(job_id)
    with capsys.disabled():
        print(
            f"\nclocks: {number} jobs in {time.monotonic() - started:.0f} s: {dict(states)}; "
            f"{storm.killed} workers killed, {storm.frozen} frozen, clock set {storm.set} times; "
            f"starts {len(workers.notes('starts'))}, bodies that differ {differing}"
        )
    assert differing == 0
    assert states["done"] + states["failed"] == number
    assert states["done"] >= 0.95 * number
    assert all(job.failure is not None for job in ends.values() if job.state == "failed")
    assert storm.frozen >= 2
    assert storm.set >= 2


def undisturbed(job_id: str) -> bytes:
    """What a run of the fake worker leaves that nothing disturbs."""
    digest = hashlib.sha256(job_id.encode()).hexdigest()
    return json.dumps({"id": digest[:32], "numbers": [int(c, 16) for c in digest] * 20}).encode()
