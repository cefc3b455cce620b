"""What the scripts return, as wire models.

The gateway's side of the queue: submit once, look, wait, withdraw.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, cast

import redis.asyncio
from pydantic import ValidationError
from redis.commands.core import AsyncScript

from lacuna.contract.base import Wire
from lacuna.contract.errors import BY_CODE, JobNotFound, QueueFull, StoreUnavailable
from lacuna.contract.jobs import TERMINAL, Failure, Job, JobState
from service.store import claims, keys
from service.store.connection import ROUTE, ScriptName, crowded, source, translated
from service.store.watch import Watcher

log = logging.getLogger(__name__)

_FIELDS: Final = (
    "state", "attempts", "progress", "message", "queue", "high", "created", "started", "finished",
    "code", "detail", "retryable", "field", "profile", "cancel", "cost",
    "ahead", "expected", "running", "before", "workers", "now",
)  # fmt: skip
_LOADING: Final = 0.05
"""Progress up to which a job's pace says nothing: its model is being loaded."""
Reply = Sequence[bytes | None]


def iso(microseconds: float) -> str:
    """ISO 8601 in UTC, to the millisecond."""
    moment = datetime.fromtimestamp(microseconds / 1e6, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _time(value: str | None) -> str | None:
    return iso(float(value)) if value else None


def _seconds(text: str | None) -> float | None:
    return None if text is None or text == "?" else float(text)


def _remaining(elapsed: float, progress: float, expected: float | None) -> float | None:
    """Seconds that a running job still takes: at first by past jobs, more and more by its own pace.

    None while neither tells: it loads its model, or has outrun everything that was known.
    """
    by_history = None if expected is None or expected <= elapsed else expected - elapsed
    if progress <= _LOADING:
        return by_history
    by_pace = elapsed * (1 - progress) / progress
    return by_pace if by_history is None else progress * by_pace + (1 - progress) * by_history


def _start(fields: dict[str, str | None]) -> float | None:
    """Seconds until a worker is free for a waiting job, each job ahead going to the first to be."""
    ahead = int(fields["ahead"] or 0)
    rows = [row.split() for row in (fields["running"] or "").split(";") if row]
    busy = [_remaining(float(row[0]), float(row[1]), _seconds(row[2])) for row in rows]
    before = [_seconds(text) for text in (fields["before"] or "").split(";") if text]
    free = [seconds for seconds in busy if seconds is not None]
    known = [seconds for seconds in before if seconds is not None]
    if len(free) < len(busy) or len(known) < len(before):
        return None
    workers = max(1, int(fields["workers"] or 0), len(free))
    free += [0.0] * (workers - len(free))
    heapq.heapify(free)
    for seconds in known:
        heapq.heapreplace(free, free[0] + seconds)
    rest = max(0, ahead - len(known))
    return free[0] + (rest * sum(known) / len(known) / workers if rest and known else 0.0)


def _eta(fields: dict[str, str | None]) -> float | None:
    """Seconds until the end; None unless past jobs of about its size, or its own pace, tell."""
    expected = _seconds(fields["expected"])
    found: float | None = None
    if fields["state"] == "running":
        elapsed = (float(fields["now"] or 0) - float(fields["started"] or 0)) / 1e6
        found = _remaining(elapsed, min(1.0, float(fields["progress"] or 0)), expected)
    elif fields["state"] == "queued" and fields["ahead"] is not None and expected is not None:
        start = _start(fields)
        found = None if start is None else start + expected
    return None if found is None else round(found, 1)


def _failure(fields: dict[str, str | None]) -> Failure | None:
    if fields["state"] == "cancelled":
        return Failure(code="cancelled", detail="the caller withdrew the job", retryable=True)
    if fields["state"] != "failed":
        return None
    code = fields["code"] or "internal_error"
    error = BY_CODE.get(code)
    retryable = (
        fields["retryable"] == "1" if fields["retryable"] else bool(error and error.retryable)
    )
    return Failure(
        code=code,
        detail=fields["detail"] or "",
        retryable=retryable,
        field=fields["field"] or None,
    )


def _message(fields: dict[str, str | None]) -> str:
    if fields["state"] == "running" and fields["cancel"]:
        return "stopping"
    if fields["state"] == "queued" and fields["workers"] == "0":
        return f"waits for a {(fields['queue'] or '').upper()} worker: none lives"
    return fields["message"] or ""


def job_from_view(job_id: str, reply: Reply) -> Job:
    """The job as its owner sees it, from the answer of `view` in common.lua."""
    values = [None if value is None else value.decode() for value in reply]
    fields = dict(zip(_FIELDS, values, strict=True))
    state = cast(JobState, fields["state"])
    return Job(
        id=job_id,
        state=state,
        attempt=int(fields["attempts"] or 0),
        progress=min(1.0, max(0.0, float(fields["progress"] or 0))),
        message=_message(fields),
        position=None if fields["ahead"] is None else int(fields["ahead"]),
        eta_seconds=_eta(fields),
        failure=_failure(fields),
        profile=f"/v1/profiles/{fields['profile']}" if fields["profile"] else None,
        created_at=iso(float(fields["created"] or 0)),
        started_at=_time(fields["started"]),
        finished_at=_time(fields["finished"]),
    )


Stored = TypeVar("Stored", bound=Wire)


def readable(model: type[Stored], documents: Iterable[bytes | None]) -> list[Stored]:
    """Those of the stored documents that can be read: one that cannot must not hide the others."""
    found = []
    for document in documents:
        if document is None:
            continue
        try:
            found.append(model.of_stored(document))
        except ValidationError as error:
            # Where, not what: the values may be anybody's.
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            fields = {"kind": model.__name__, "field": where, "why": first["type"]}
            log.warning("a stored record cannot be read", extra=fields)
    return found


def text_map(reply: dict[Any, Any]) -> dict[str, str]:
    """A hash as text."""
    return {key.decode(): value.decode() for key, value in reply.items()}


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
            return claims.log_expired(await self._run("expire", self._max_attempts, self._keep))
        except StoreUnavailable:
            self._outage_at = time.monotonic()
            raise

    async def close(self) -> None:
        """End the subscription. The client stays open: it is the caller's."""
        await self._watcher.close()


def _not_found(job_id: str) -> JobNotFound:
    return JobNotFound(f"no job {job_id}, or its record has expired")
