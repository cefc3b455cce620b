"""The gateway's side of the queue: submit once, look, wait, withdraw."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

import redis.asyncio
from redis.commands.core import AsyncScript

from service.contract.errors import JobNotFound, QueueFull, StoreUnavailable
from service.contract.jobs import TERMINAL, Job
from service.store import keys, sweeps
from service.store.connection import crowded, translated
from service.store.records import job_from_view
from service.store.scripts import ROUTE, ScriptName, source
from service.store.watch import Watcher

POSITION_SECONDS = 3.0
"""How often those who follow a waiting job learn of its position."""
ANONYMOUS = "anonymous"
"""The one caller that all requests without a key are."""


@dataclass(frozen=True)
class Submission:
    """What became of a request: the job, and whether this call made it."""

    job: Job
    created: bool


class JobStore:
    """Jobs as the gateway sees them. One per process; close it at the end.

    Args:
        client: a client that returns bytes (`connection.connect_async`).
        max_queued: waiting jobs per queue beyond which `submit` refuses.
        resolve_ttl: seconds for which the result of a floating revision stands.
        job_ttl: seconds for which a finished job is remembered.
        max_finished: how many of each end (done, failed, cancelled) are, the latest.
        max_attempts: deliveries after which a job fails as `worker_lost`.

    Every method raises `StoreUnavailable` within seconds while Redis is away or full.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        *,
        max_queued: int = 10_000,
        resolve_ttl: float = 3_600.0,
        job_ttl: float = 7 * 86_400.0,
        max_finished: int = keys.MAX_FINISHED,
        max_attempts: int = 3,
    ) -> None:
        self._client = client
        self._max_queued = max_queued
        self._resolve_us = int(resolve_ttl * 1e6)
        self._keep = keys.keep(job_ttl, max_finished)
        self._max_attempts = max_attempts
        self._scripts: dict[ScriptName, AsyncScript] = {}
        self._watcher = Watcher(client, self._read)
        # As after an outage: whoever starts now may be starting because of one.
        self._outage_at = time.monotonic()
        self._crowded = False

    async def _run(self, name: ScriptName, *arguments: str | bytes | int) -> Any:
        script = self._scripts.get(name)
        if script is None:
            script = self._scripts[name] = self._client.register_script(source(name))
        with translated():
            return await script(keys=ROUTE, args=list(arguments))

    async def submit(
        self,
        job_id: str,
        request_json: bytes,
        *,
        queue: keys.QueueName,
        high: bool = False,
        pinned: bool = False,
        owner_key: str | None = None,
        trace: str = "",
        cost: float = 0.0,
        private: bool = False,
    ) -> Submission:
        """Accept a job, unless the same one waits, runs or is done.

        A done job stands while its profile exists and, unless `pinned`, while it is younger than
        `resolve_ttl`. A failed or cancelled one is made again.

        Args:
            job_id: content address of the request.
            request_json: the request as the worker will parse it.
            queue: the kind of worker that shall run it.
            high: stand before all jobs of normal priority.
            pinned: the request names a commit, so its result never ages.
            owner_key: who asks; None is the one anonymous caller.
            trace: id of the HTTP request, for the worker's log.
            cost: how much work it is, in any unit that all jobs share; 0 is unknown.
            private: the request holds the caller's own texts.

        Raises:
            QueueFull: `max_queued` jobs wait already.
            StoreUnavailable: Redis is away or (nearly) out of memory; nothing was written.
        """
        flags = [str(int(high)), str(int(pinned)), owner_key or ANONYMOUS]
        room = 0 if self._crowded else self._max_queued
        limits: list[str | int] = [room, self._resolve_us, trace, f"{cost:.6g}"]
        limits.append(int(private))
        reply = await self._run("submit", job_id, request_json, queue, *flags, *limits)
        if reply[0] == b"full" and not room:
            raise StoreUnavailable(
                "the store is nearly out of memory: what waits there goes first", retry_after=30.0
            )
        if reply[0] == b"full":
            mean, workers = float(reply[1] or 5), max(1, int(reply[2]))
            raise QueueFull(
                f"{self._max_queued} jobs wait already",
                retry_after=min(60.0, max(1.0, mean / workers)),
            )
        return Submission(job_from_view(job_id, reply[1]), reply[0] == b"created")

    async def _read(self, job_id: str) -> Job | None:
        reply = await self._run("view", job_id, "")
        return job_from_view(job_id, reply) if reply else None

    async def get(self, job_id: str, owner_key: str | None = None) -> Job:
        """The job now. With `owner_key`, only if that caller asked for it.

        Raises:
            JobNotFound: there is none, or it is not theirs.
        """
        reply = await self._run("view", job_id, owner_key or "")
        if not reply:
            raise _not_found(job_id)
        return job_from_view(job_id, reply)

    async def cancel(self, job_id: str, owner_key: str | None = None) -> Job:
        """Withdraw one caller's interest; the job ends when no caller is left.

        A queued job ends at once, a running one at its next check, a finished one not at all.

        Raises:
            JobNotFound: there is none, or this caller never asked for it.
        """
        reply = await self._run("cancel", job_id, owner_key or ANONYMOUS, self._keep)
        if not reply:
            raise _not_found(job_id)
        return job_from_view(job_id, reply)

    async def wait(self, job_id: str, timeout: float) -> Job:
        """The job at its end, or as it stands after `timeout` seconds.

        Raises:
            JobNotFound: there is none.
        """
        job = await self._watcher.wait(job_id, timeout)
        if job is None:
            raise _not_found(job_id)
        return job

    async def events(self, job_id: str) -> AsyncIterator[Job]:
        """The job now and at every change, to the end of it.

        Raises:
            JobNotFound: there is none.
        """
        last: Job | None = None
        async with contextlib.aclosing(self._watcher.follow(job_id, POSITION_SECONDS)) as looks:
            async for job in looks:
                # The estimate moves with every look; that alone is no event.
                news = job.model_copy(update={"eta_seconds": None})
                if news == last:
                    continue
                last = news
                yield job
                if job.state in TERMINAL:
                    return
        if last is None:
            raise _not_found(job_id)

    async def profile_of(self, job_id: str) -> str | None:
        """Id of the profile in which the job ended."""
        with translated():
            value = await self._client.hget(keys.job(job_id), "profile")
        return None if value is None else cast(bytes, value).decode()

    async def sweep(self, lease: float) -> int:
        """Requeue, or fail, jobs whose workers went away, and log each; returns how many.

        Workers do the same before they claim, but none may be left to do it. Call it every few
        seconds. It does nothing within one lease of an outage, of the server's start or of this
        object's: then every lease looks expired, though the workers are still at work.

        It also notes whether the server's memory is nearly used up; then `submit` refuses new jobs,
        so that the results of those that wait find room.
        """
        try:
            with translated():
                info = await self._client.info("server", "memory")
            self._crowded = crowded(info)
            if info["uptime_in_seconds"] <= lease or time.monotonic() - self._outage_at <= lease:
                return 0
            return sweeps.expired(await self._run("expire", self._max_attempts, self._keep))
        except StoreUnavailable:
            self._outage_at = time.monotonic()
            raise

    async def close(self) -> None:
        """End the subscription. The client stays open: it is the caller's."""
        await self._watcher.close()


def _not_found(job_id: str) -> JobNotFound:
    return JobNotFound(f"no job {job_id}, or its record has expired")
