"""A store that can be killed and started again, in place of the session's."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import redis.asyncio

from lacuna.contract.jobs import TERMINAL
from lacuna.contract.profile_requests import ProfileRequest
from service.local import store as embedded
from service.store.queue import JobRecord, JobStore

Submit = Callable[[ProfileRequest], Awaitable[str]]
Until = Callable[..., Awaitable[JobRecord]]


class Store:
    """An embedded store under attack; every write is on disk before it is acknowledged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fsync = "always"
        self.server = embedded.ensure(folder, fsync=self.fsync)

    def kill(self) -> None:
        """SIGKILL."""
        assert self.server.pid is not None
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.close()

    def freeze(self) -> None:
        """SIGSTOP: it accepts connections but answers nothing."""
        assert self.server.pid is not None
        os.kill(self.server.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        assert self.server.pid is not None
        os.kill(self.server.pid, signal.SIGCONT)

    def start(self) -> None:
        """Again, from what is on disk."""
        self.server = embedded.ensure(self.folder, fsync=self.fsync)


@pytest.fixture
def store(short_dir: Path) -> Iterator[Store]:
    started = Store(short_dir)
    yield started
    started.server.close()


@pytest.fixture
def redis_url(store: Store) -> str:
    """Address of the store under attack; takes the place of the session's."""
    return store.server.url


@pytest.fixture
async def jobs(redis_async: redis.asyncio.Redis) -> AsyncIterator[JobStore]:
    made = JobStore(redis_async)
    yield made
    await made.close()


@pytest.fixture
def submit(jobs: JobStore) -> Submit:
    async def call(request: ProfileRequest) -> str:
        await jobs.submit(request.job_id, request.model_dump_json().encode(), queue="cpu")
        return request.job_id

    return call


@pytest.fixture
def until(jobs: JobStore) -> Until:
    """Waits for a job to be in one of the given states, or at its end."""

    async def call(job_id: str, *states: str, seconds: float = 40) -> JobRecord:
        end = time.monotonic() + seconds
        while (job := await jobs.get(job_id)).state not in (states or TERMINAL):
            assert time.monotonic() < end, f"still {job}"
            await asyncio.sleep(0.02)
        return job

    return call
