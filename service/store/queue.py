"""The gateway's side of the queue: submit a job once, read it, wait for it, withdraw it.

Every atomic step is an operation of `queue.lua`; a worker's steps are in `claims`.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import redis
import redis.asyncio
from pydantic import ValidationError

from lacuna.contract.base import Wire
from lacuna.contract.errors import JobNotFound, QueueFull, StoreUnavailable
from lacuna.contract.jobs import TERMINAL, Failure, JobKind, JobState
from service.store import claims, keys, kinds
from service.store.connection import (
    ROUTE,
    lua_arguments,
    lua_source,
    outages_translated,
)
from service.store.fitness import nearly_full, refused_async
from service.store.upkeep import FORGET_AT_ONCE, Steadiness, texts_left
from service.store.watch import Watcher

log = logging.getLogger(__name__)

POSITION_SECONDS = 3.0
"""How often callers who follow a waiting job learn its position."""
ANONYMOUS = "anonymous"
"""The one caller that all requests without a key count as."""
_NEARLY_FULL = "the store is nearly out of memory and takes no new jobs until waiting ones end"
_TEXTS = [keys.TEXTS_DROPPED, keys.TEXTS_FORGOTTEN]
_MIN_PROGRESS = 0.05
"""A job's own pace is used once it has made this much progress."""


@dataclass(frozen=True)
class JobRecord:
    """One job as its caller sees it. Times are ISO 8601 in UTC."""

    id: str
    kind: JobKind
    state: JobState
    attempt: int
    """Deliveries to a worker so far."""
    progress: float
    """Share done, in [0, 1]."""
    message: str
    position: int | None
    """Jobs ahead in the queue; None unless queued."""
    eta_seconds: float | None
    """Seconds until the end; None when nothing tells."""
    failure: Failure | None
    profile_id: str | None
    """The profile, once done; None of other kinds."""
    created_at: str
    started_at: str | None
    finished_at: str | None


@dataclass(frozen=True)
class Submission:
    """What became of a request: the job, and whether this call created it."""

    job: JobRecord
    created: bool


class JobStore:
    """Jobs as the gateway sees them. One per process; close it at the end.

    Args:
        client: a client that returns bytes (`connection.connect_async`).
        max_queued: waiting jobs per queue beyond which `submit` refuses.
        resolve_ttl: seconds for which the result of a floating revision stands.
        job_ttl: seconds for which a finished job is remembered.
        max_finished: how many jobs of each end (done, failed, cancelled) are remembered.
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
        self._script = client.register_script(lua_source("queue"))
        self._max_queued = max_queued
        self._resolve_us = int(resolve_ttl * 1e6)
        self._retention = claims.retention(job_ttl, max_finished)
        self._max_attempts = max_attempts
        self._watcher = Watcher(client, self._read)
        self._upkeep = client.register_script(lua_source("upkeep"))
        self._steadiness: Steadiness | None = None
        self._refusal: str | None = None
        self._nearly_full = False
        self._kept: dict[str, int] = {}

    async def _run(self, operation: str, *payloads: bytes, **named: Any) -> Any:
        with outages_translated():
            return await self._script(keys=ROUTE, args=lua_arguments(operation, named, payloads))

    async def submit(
        self,
        job_id: str,
        request_json: bytes,
        *,
        queue: keys.QueueName,
        kind: JobKind = "profile",
        identity: str | None = None,
        high: bool = False,
        pinned: bool = False,
        owner_key: str | None = None,
        trace: str = "",
        private: bool = False,
    ) -> Submission:
        """Accept a job, unless the same one waits, runs or is done.

        A done job stands while its result exists and, unless `pinned`, while it is younger than
        `resolve_ttl`. A failed or cancelled one is created again.

        Args:
            job_id: under which it is one job.
            request_json: the request as the worker will parse it.
            queue: the kind of machine that will run it.
            kind: what it makes.
            identity: content address of the request, where `job_id` is another one.
            high: stand before all jobs of normal priority.
            pinned: the request names a commit, so its result never ages.
            owner_key: who asks; None is the one anonymous caller.
            trace: id of the HTTP request, for the worker's log.
            private: the request holds the caller's own texts.

        Raises:
            QueueFull: `max_queued` jobs wait already.
            StoreUnavailable: Redis is away or (nearly) out of memory; nothing was written.
        """
        reply = await self._run(
            "submit",
            request_json,
            id=job_id,
            kind=kind,
            identity=identity or job_id,
            needs=kinds.needs(kind),
            queue=queue,
            high=high,
            pinned=pinned,
            owner=owner_key or ANONYMOUS,
            trace=trace,
            private=private,
            max_queued=0 if self._nearly_full else self._max_queued,
            resolve_ttl=self._resolve_us,
        )
        answer = json.loads(reply)
        if answer["outcome"] != "full":
            record = job_record(job_id, answer["job"])
            return Submission(record, answer["outcome"] == "created")
        if self._nearly_full:
            raise StoreUnavailable(_NEARLY_FULL, retry_after=30.0)
        wait = float(answer.get("mean_run", 5.0)) / max(1, answer["workers"])
        raise QueueFull(
            f"{self._max_queued} jobs wait already", retry_after=min(60.0, max(1.0, wait))
        )

    async def _read(self, job_id: str, owner: str | None = None) -> JobRecord | None:
        reply = await self._run("view", id=job_id, owner=owner)
        return job_record(job_id, json.loads(reply)) if reply else None

    async def get(self, job_id: str, owner_key: str | None = None) -> JobRecord:
        """The job now. With `owner_key`, only if that caller asked for it.

        Raises:
            JobNotFound: there is none, or it is not theirs.
        """
        return _found(job_id, await self._read(job_id, owner_key))

    async def cancel(self, job_id: str, owner_key: str | None = None) -> JobRecord:
        """Withdraw one caller's interest; the job ends when no caller is left.

        A queued job ends at once, a running one at its next check, a finished one not at all.

        Raises:
            JobNotFound: there is none, or this caller never asked for it.
        """
        owner = owner_key or ANONYMOUS
        reply = await self._run("cancel", id=job_id, owner=owner, **self._retention)
        return _found(job_id, job_record(job_id, json.loads(reply)) if reply else None)

    async def drop(self, job_id: str, owner_key: str | None = None) -> bool:
        """Drop an ended experiment of this caller with its result; whether there was one."""
        return bool(await self._run("drop", id=job_id, owner=owner_key or ANONYMOUS))

    async def wait(self, job_id: str, timeout: float) -> JobRecord:
        """The job at its end, or as it stands after `timeout` seconds.

        Raises:
            JobNotFound: there is none.
        """
        return _found(job_id, await self._watcher.wait(job_id, timeout))

    async def events(self, job_id: str) -> AsyncIterator[JobRecord]:
        """The job now and at every change, up to its end.

        Raises:
            JobNotFound: there is none.
        """
        last: JobRecord | None = None
        async with contextlib.aclosing(self._watcher.follow(job_id, POSITION_SECONDS)) as reads:
            async for job in reads:
                # The estimate moves with every read; that alone is not an event.
                news = replace(job, eta_seconds=None)
                if news == last:
                    continue
                last = news
                yield job
                if job.state in TERMINAL:
                    return
        _found(job_id, last)

    async def sweep(self, lease: float) -> int:
        """Requeue, or fail, jobs whose workers went away, and log each; returns how many.

        Workers do the same before they claim, but there may be none left to do it. Call it every
        few seconds. Leases are left alone while `upkeep.Steadiness` says so.

        It also notes whether the server takes writes (`refusal`), and whether its memory is nearly
        used up. Then `submit` refuses new jobs, so that the results of those that wait find room.

        Args:
            lease: seconds; of the workers.
        """
        steadiness = self._steadiness = self._steadiness or Steadiness(lease)
        try:
            with outages_translated():
                info = await self._client.info("server", "memory")
                refused = await refused_async(self._client)
                self._nearly_full = nearly_full(info)
                self._refusal = refused.why if refused else None
                if not steadiness.steady(info):
                    return 0
                arguments = lua_arguments("settle", {"lease": int(lease * 1e6)})
                await self._upkeep(keys=ROUTE, args=arguments)
            reply = await self._run("expire", max_attempts=self._max_attempts, **self._retention)
            return claims.log_expired(reply)
        except StoreUnavailable:
            steadiness.unsettle()
            raise

    @property
    def refusal(self) -> str | None:
        """Why the store takes no new jobs, in one sentence, as of the latest `sweep`; or None."""
        return self._refusal or (_NEARLY_FULL if self._nearly_full else None)

    async def forget(self) -> int:
        """Take away the next few records that are over, with their ids in all indexes; returns how
        many ids went. Call it again and again: it goes through all of them in turns."""
        gone = 0
        for state in TERMINAL:
            skip = self._kept.get(state, 0)
            named = {"state": state, "skip": skip, "limit": FORGET_AT_ONCE}
            with outages_translated():
                reply = await self._upkeep(keys=ROUTE, args=lua_arguments("forget", named))
            seen, kept = (int(number) for number in reply)
            self._kept[state] = skip + kept if seen == FORGET_AT_ONCE else 0
            gone += seen - kept
        return gone

    async def forget_history(self) -> bool:
        """As `claims.ClaimStore.forget_history`: there may be no worker to do it."""
        with outages_translated():
            counts = await self._client.hmget(keys.STATS, _TEXTS)
            dropped = texts_left(counts, await self._client.info("persistence"))
            if dropped is None:
                return False
            try:
                await self._client.bgrewriteaof()
            except redis.ResponseError:  # a managed server may not allow it
                return False
            await self._client.hset(keys.STATS, keys.TEXTS_FORGOTTEN, str(dropped))
        return True

    async def close(self) -> None:
        """End the subscription. The client stays open: it belongs to the caller."""
        await self._watcher.close()


def _found(job_id: str, record: JobRecord | None) -> JobRecord:
    if record is None:
        raise JobNotFound(f"no job {job_id}, or its record has expired")
    return record


def job_record(job_id: str, fields: Mapping[str, Any]) -> JobRecord:
    """The record of a job.

    Args:
        job_id: its id.
        fields: the answer of `view` in `queue.lua`.
    """
    return JobRecord(
        id=job_id,
        kind=fields["kind"],
        state=fields["state"],
        attempt=int(fields["attempts"]),
        progress=_progress(fields),
        message=_message(fields),
        position=fields.get("ahead"),
        eta_seconds=_eta(fields),
        failure=_failure(fields),
        profile_id=fields.get("profile"),
        created_at=iso(float(fields["created"])),
        started_at=iso(float(fields["started"])) if "started" in fields else None,
        finished_at=iso(float(fields["finished"])) if "finished" in fields else None,
    )


def iso(microseconds: float) -> str:
    """A time since 1970 as ISO 8601 in UTC, to the millisecond."""
    moment = datetime.fromtimestamp(microseconds / 1e6, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _progress(fields: Mapping[str, Any]) -> float:
    return min(1.0, max(0.0, float(fields["progress"])))


def _message(fields: Mapping[str, Any]) -> str:
    if fields["state"] == "running" and "cancel" in fields:
        return "stopping"
    if fields["state"] == "queued" and "declined" in fields:
        return "waits for a newer worker: those that tried could not read the request"
    if fields["state"] == "queued" and fields["workers"] == 0:
        return _waits_for(fields)
    return str(fields["message"])


def _waits_for(fields: Mapping[str, Any]) -> str:
    named = {"cpu": "a CPU", "gpu": "a GPU", "endpoints": "an endpoint"}
    worker = f"{named.get(fields['queue'], 'a')} worker"
    if not fields["others"]:
        return f"waits for {worker}: none is running"
    wanted = kinds.described(fields["needs"])
    verb = "of" if fields["kind"] == "profile" else "that knows"
    waits = f"waits for {worker} {verb} {wanted}: those that run are of another version"
    if fields["needs"] == kinds.needs(fields["kind"]):
        return waits
    return f"{waits}. If none will come, withdraw it and ask again"


def _failure(fields: Mapping[str, Any]) -> Failure | None:
    if fields["state"] == "cancelled":
        return Failure(code="cancelled", detail="the caller withdrew the job", retryable=True)
    if fields["state"] != "failed":
        return None
    return Failure(
        code=fields.get("code", "internal_error"),
        detail=fields.get("detail", ""),
        retryable=fields.get("retryable") == "1",
        field=fields.get("field") or None,
    )


def _eta(fields: Mapping[str, Any]) -> float | None:
    """Seconds until the job ends; None when nothing tells."""
    if fields["state"] == "running":
        left = _left_by_pace(fields)
    elif fields["state"] == "queued" and "ahead" in fields and "mean_run" in fields:
        left = _left_by_mean(fields)
    else:
        left = None
    return None if left is None else round(left, 1)


def _left_by_pace(fields: Mapping[str, Any]) -> float | None:
    """Of a running job, by its own pace: since its model was loaded, at first since its start."""
    progress, reported = _progress(fields), float(fields.get("reported", 0))
    if progress < _MIN_PROGRESS:
        return None
    since, before = float(fields.get("loaded", 0)), float(fields.get("loaded_progress", 1))
    if progress - before < _MIN_PROGRESS:
        since, before = float(fields["started"]), 0.0
    left = (reported - since) * (1 - progress) / (progress - before)
    return max(0.0, left - (float(fields["now"]) - reported)) / 1e6


def _left_by_mean(fields: Mapping[str, Any]) -> float:
    """Of a waiting job: jobs ahead and its own run, each as long as its kind took on average.

    A running job counts as half: on average, half of it is done.
    """
    mean, workers = float(fields["mean_run"]), max(1, fields["workers"])
    starts_at_once = fields["ahead"] + fields["running"] < workers
    before = float(fields["ahead_seconds"]) + mean * fields["running"] / 2
    return mean + (0.0 if starts_at_once else before / workers)


Stored = TypeVar("Stored", bound=Wire)


def readable(model: type[Stored], documents: Iterable[bytes | None]) -> list[Stored]:
    """Parse stored documents; one that cannot be read is logged and left out."""
    found = []
    for document in documents:
        if document is None:
            continue
        try:
            found.append(model.of_stored(document))
        except ValidationError as error:
            # Log the place and not the value, which may be anybody's.
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            fields = {"kind": model.__name__, "field": where, "why": first["type"]}
            log.warning("a stored record cannot be read", extra=fields)
    return found
