"""One subscription per process, fanned out to every open wait.

The scripts publish the id of each job that changed. The watcher reads a job once per change and
hands it to all who wait for it, so a thousand waits cost one connection. After a reconnect it reads
every watched job again, because messages may have been missed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import redis
import redis.asyncio

from lacuna.contract.errors import StoreUnavailable
from lacuna.contract.jobs import TERMINAL, JobState
from service.store import keys
from service.store.connection import cancel_tasks, is_outage

RECONNECT_SECONDS = 0.5
IDLE_SECONDS = 5.0
"""Without a message for this long, the connection is pinged; after as long again it is dropped."""
_MAX_READS = 16
"""How many jobs are read at the same time after a burst of changes."""


class Watched(Protocol):
    """What the watcher needs to know of a job."""

    @property
    def state(self) -> JobState:
        """One of `TERMINAL` at its end."""


J = TypeVar("J", bound=Watched)


@dataclass(eq=False)
class _Watch(Generic[J]):
    """One job that callers wait for."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    watchers: int = 0
    job: J | None = None
    version: int = 0
    dirty: bool = False
    reads: int = 0
    latest: int = 0
    """Number of reads begun, and the number of the one whose answer is in `job`."""


class Watcher(Generic[J]):
    """Hands changes of jobs to those who wait for them.

    Args:
        client: where the events are published.
        read: reads one job; None when there is none.
    """

    def __init__(
        self, client: redis.asyncio.Redis, read: Callable[[str], Awaitable[J | None]]
    ) -> None:
        self._client = client
        self._read = read
        self._watches: dict[str, _Watch[J]] = {}
        self._listener: asyncio.Task[None] | None = None
        self._readers: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_MAX_READS)
        self._subscribed = asyncio.Event()

    async def wait(self, job_id: str, timeout: float) -> J | None:
        """The job at its end, or after `timeout` seconds; None when there is none."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout), contextlib.aclosing(self.follow(job_id)) as jobs:
                async for job in jobs:
                    if job.state in TERMINAL:
                        return job
                return None
        return await self._read(job_id)

    async def follow(self, job_id: str, refresh: float | None = None) -> AsyncGenerator[J]:
        """The job now and after each change; ends when the job is gone.

        Args:
            job_id: whose changes.
            refresh: while the job waits, read it again after this many seconds, because its
                position changes without an event.

        Raises:
            StoreUnavailable: Redis was away at the start; the watcher waits out later outages.
        """
        watch = self._watches.setdefault(job_id, _Watch())
        watch.watchers += 1
        try:
            self._listen()
            with contextlib.suppress(TimeoutError):
                # Subscribe first, then read: a change between the two would be missed.
                # (wait_for would swallow a cancel that arrives together with the subscription.)
                async with asyncio.timeout(2.0):
                    await self._subscribed.wait()
            seen, job = watch.version, await self._read(job_id)
            while job is not None:
                yield job
                pause = refresh if job.state == "queued" else None
                try:
                    async with asyncio.timeout(pause):
                        while watch.version == seen:
                            await watch.changed.wait()
                    seen, job = watch.version, watch.job
                except TimeoutError:
                    with contextlib.suppress(StoreUnavailable):
                        job = await self._read(job_id)
        finally:
            watch.watchers -= 1
            if watch.watchers == 0:
                self._watches.pop(job_id, None)

    async def close(self) -> None:
        """Stop listening."""
        tasks = [*self._readers, *([self._listener] if self._listener else [])]
        self._listener = None
        await cancel_tasks(tasks)

    def _listen(self) -> None:
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._run(), name="job events")

    async def _run(self) -> None:
        while True:
            try:
                async with self._client.pubsub(ignore_subscribe_messages=False) as channel:
                    await channel.subscribe(keys.EVENTS)
                    await self._relay(channel)
            except (redis.RedisError, OSError) as error:
                if not is_outage(error):
                    raise
            self._subscribed.clear()
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _relay(self, channel: redis.asyncio.client.PubSub) -> None:
        pinged = False
        while True:
            message = await channel.get_message(timeout=IDLE_SECONDS)
            if message is None:
                if pinged:
                    raise redis.ConnectionError("no message and no reply to a ping")
                await channel.ping()
                pinged = True
                continue
            pinged = False
            if message["type"] == "subscribe":
                self._subscribed.set()
                for job_id in list(self._watches):
                    self._refresh(job_id)
            elif message["type"] == "message":
                self._refresh(message["data"].decode())

    def _refresh(self, job_id: str) -> None:
        """Read a watched job, once for any number of changes that arrive meanwhile."""
        watch = self._watches.get(job_id)
        if watch is None or watch.dirty:
            return
        watch.dirty = True
        task = asyncio.create_task(self._deliver(job_id, watch))
        self._readers.add(task)
        task.add_done_callback(self._readers.discard)

    async def _deliver(self, job_id: str, watch: _Watch[J]) -> None:
        while watch.watchers > 0:
            async with self._slots:
                watch.dirty = False
                with contextlib.suppress(StoreUnavailable):
                    watch.reads += 1
                    turn = watch.reads
                    job = await self._read(job_id)
                    if turn < watch.latest:
                        return  # reads overlap, and a later one has answered already
                    watch.latest, watch.job = turn, job
                    watch.version += 1
                    watch.changed.set()
                    watch.changed = asyncio.Event()
                    return
            watch.dirty = True
            await asyncio.sleep(RECONNECT_SECONDS)
