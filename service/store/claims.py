"""The worker's side of the queue: claim a job, keep its lease, report its end.

Every call but `claim` carries the lease's token, and does nothing when another worker holds the
lease by now. Calls raise redis-py's errors; `connection.is_outage` tells outages from mistakes.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import redis

from lacuna.contract.jobs import Failure, JobKind
from lacuna.contract.models import WorkerModels
from service.store import keys, kinds
from service.store.connection import BLOCK_SECONDS, ROUTE, lua_arguments, lua_source
from service.store.upkeep import texts_left

log = logging.getLogger(__name__)

Beat = Literal["ok", "cancel", "lost"]
Settled = Literal["ok", "lost", "again"]


@dataclass(frozen=True)
class Claim:
    """A job that this worker holds until its lease ends."""

    job_id: str
    token: str
    request: bytes
    attempt: int
    trace: str
    kind: JobKind = "profile"
    identity: str = ""
    """Content address of the request, as the gateway that queued it computed it."""


@dataclass(frozen=True)
class ProfileOutcome:
    """What the job of a profile leaves behind, each part as JSON bytes.

    Attributes:
        profile_id: content address of the resolved request.
        body: a `ProfileBody`, byte-equal for equal ids.
        envelope: a `ProfileEnvelope`.
        summary: a `ProfileSummary`.
    """

    profile_id: str
    body: bytes
    envelope: bytes
    summary: bytes

    @property
    def model(self) -> str:
        """Id of the model, from the summary."""
        return str(json.loads(self.summary)["model"])


@dataclass(frozen=True)
class ExperimentOutcome:
    """What an experiment leaves behind, for its caller alone, as long as its job is remembered.

    Attributes:
        result: an `ExperimentResult` as JSON.
        rows: its rows as CSV, compressed (`service.store.profiles.packed`).
    """

    result: bytes
    rows: bytes


Outcome = ProfileOutcome | ExperimentOutcome


class ClaimStore:
    """The queue as a worker sees it.

    Args:
        client: a client that returns bytes (`connection.connect`).
        name: this worker's name, unique among all.
        queues: what it serves, in order of preference.
        lease: seconds for which a claim holds without a beat.
        max_attempts: deliveries after which a job fails as `worker_lost`.
        job_ttl: seconds for which a finished job is remembered.
        max_finished: how many jobs of each end (done, failed, cancelled) are remembered.
        knows: what it can run (`kinds.needs`); None is all that this version can.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        name: str,
        queues: Sequence[keys.QueueName],
        lease: float = 45.0,
        max_attempts: int = 3,
        job_ttl: float = 7 * 86_400.0,
        max_finished: int = keys.MAX_FINISHED,
        knows: Sequence[str] | None = None,
    ) -> None:
        self.client = client
        self.name = name
        self.queues = tuple(queues)
        self.knows = kinds.known() if knows is None else tuple(knows)
        self.lease = lease
        self._script = client.register_script(lua_source("queue"))
        self._upkeep = client.register_script(lua_source("upkeep"))
        self._unanswered: str | None = None
        self._lease_us = int(lease * 1e6)
        self._max_attempts = max_attempts
        self._retention = retention(job_ttl, max_finished)

    def _run(self, operation: str, *payloads: bytes, **named: Any) -> Any:
        return self._script(keys=ROUTE, args=lua_arguments(operation, named, payloads))

    def wait(self, seconds: float = BLOCK_SECONDS) -> bool:
        """Block until a job may be waiting, at most `seconds`; whether to call `claim`."""
        names = [keys.wake(queue, needs) for queue in self.queues for needs in self.knows]
        return self.client.blpop(names, timeout=seconds) is not None

    def claim(self) -> Claim | None:
        """Take the next job, if one waits. One job, never more; the attempt counts from here.

        After a call that raised, the next one uses the same token and so gets the job that the
        first may have taken: its answer may have been lost, and under a new token that job would
        wait for its lease to expire.
        """
        token = self._unanswered = self._unanswered or f"{self.name}/{secrets.token_hex(8)}"
        reply: Any = None
        for queue in self.queues:
            reply = self._run(
                "claim",
                queue=queue,
                knows=self.knows,
                token=token,
                worker=self.name,
                lease=self._lease_us,
            )
            if reply:
                break
        self._unanswered = None
        if not reply:
            return None
        record, request = cast("list[bytes]", reply)
        job = json.loads(record)
        return Claim(
            job["id"], token, request, job["attempt"], job["trace"], job["kind"], job["identity"]
        )

    def beat(self, claim: Claim, progress: float, message: str) -> Beat:
        """Renew the lease, report progress, and learn whether the job was lost or cancelled."""
        reply = self._run(
            "beat",
            id=claim.job_id,
            token=claim.token,
            lease=self._lease_us,
            progress=f"{progress:.4f}",
            message=_utf8(message, 200),
        )
        return cast(Beat, reply.decode())

    def _finish(self, claim: Claim, outcome: str, *payloads: bytes, **named: Any) -> Settled:
        named |= {"id": claim.job_id, "token": claim.token, "outcome": outcome, **self._retention}
        return cast(Settled, self._run("finish", *payloads, **named).decode())

    def finish(self, claim: Claim, outcome: Outcome, *, late: bool = False) -> Settled:
        """Store the result (a profile unless its id is taken) and end the job, in one step.

        Args:
            claim: the lease under which the result was made.
            outcome: the result.
            late: the result waited on disk while Redis was away. The job ends also when it waits
                again, but not when another worker holds it. A profile is stored in any case,
                because it is content-addressed.
        """
        if isinstance(outcome, ExperimentOutcome):
            return self._finish(claim, "done", outcome.result, outcome.rows, late=late)
        parts = (outcome.body, outcome.envelope, outcome.summary)
        profile, model = outcome.profile_id, outcome.model
        return self._finish(claim, "done", *parts, profile=profile, model=model, late=late)

    def fail(self, claim: Claim, failure: Failure) -> Settled:
        """End the job with a reason."""
        fields = failure.model_dump(exclude_none=True)
        fields["detail"] = _utf8(failure.detail, 2_000)
        if failure.field is not None:
            fields["field"] = _utf8(failure.field, 200)
        return self._finish(claim, "failed", failure=fields)

    def cancelled(self, claim: Claim) -> Settled:
        """End the job as cancelled; "again" when a new caller has asked for it since."""
        return self._finish(claim, "cancelled")

    def release(self, claim: Claim, *, declined: bool = False) -> Settled:
        """Give the job back; the attempt does not count.

        Args:
            claim: the lease.
            declined: this worker cannot read the job, so a newer one must. It stands aside and is
                offered again at the next `mend`. Else it can be claimed at once.
        """
        reply = self._run(
            "release", id=claim.job_id, token=claim.token, declined=declined, **self._retention
        )
        return cast(Settled, reply.decode())

    def expire(self) -> int:
        """Requeue (or fail) the jobs whose leases ran out, and log each; returns how many.

        Call it only while `upkeep.Steadiness` lets leases be judged. Otherwise an outage makes
        every running job run twice.
        """
        self._upkeep(keys=ROUTE, args=lua_arguments("settle", {"lease": self._lease_us}))
        reply = self._run("expire", max_attempts=self._max_attempts, **self._retention)
        return log_expired(reply)

    def forget_history(self) -> bool:
        """Have the server rewrite its append-only file if that still holds callers' own texts.

        The store counts the requests with such texts that have ended, whichever process ended
        them. A managed server may not allow a rewrite, and only one runs at a time; then a later
        call tries again.

        Returns:
            Whether a rewrite was started.
        """
        try:
            counts = self.client.hmget(keys.STATS, [keys.TEXTS_DROPPED, keys.TEXTS_FORGOTTEN])
            dropped = texts_left(counts, self.client.info("persistence"))
            if dropped is None:
                return False
            self.client.bgrewriteaof()
            self.client.hset(keys.STATS, keys.TEXTS_FORGOTTEN, dropped)
        except redis.ResponseError:
            return False
        return True

    def facts(self) -> Mapping[str, Any]:
        """What `upkeep.Steadiness` needs to know of the server."""
        return dict(self.client.info("server"))

    def mend(self) -> int:
        """Requeue jobs that are in no lane and under no lease, and log each; returns how many.

        Those that a worker declined wait again too, without a word. One process at a time does
        this; it reads every job once.
        """
        if not self.client.set(keys.HOUSEKEEPER, self.name, nx=True, px=keys.HOUSEKEEPER_MS):
            return 0
        mended, cursor = 0, 0
        while True:
            cursor, found = self.client.scan(cursor, match=f"{keys.JOB}*", count=500)
            ids = [key.decode().removeprefix(keys.JOB) for key in cast("list[bytes]", found)]
            for job_id in self._run("mend", ids=ids):
                mended += 1
                fields = {"job_id": job_id.decode()}
                log.error("a job stood in no queue: it was put back", extra=fields)
            if cursor == 0:
                return mended

    def announce(self, facts: WorkerModels, ttl: float) -> None:
        """Tell the gateways that this worker lives and what it offers, for `ttl` seconds."""
        known = facts.model_copy(update={"knows": list(self.knows)})
        self._announce(known.model_dump_json().encode(), int(ttl * 1e3))

    def farewell(self) -> None:
        """Tell the gateways that this worker is gone."""
        self._announce(b"", 0)

    def _announce(self, facts: bytes, ttl_ms: int) -> None:
        named = {"queues": self.queues, "knows": self.knows}
        self._run("announce", facts, name=self.name, ttl=ttl_ms, **named)


def _utf8(text: str, longest: int) -> str:
    """A bounded text of valid UTF-8: a lone surrogate must not keep a job from ending."""
    return text[:longest].encode(errors="replace").decode()


def retention(job_ttl: float, max_finished: int) -> dict[str, int]:
    """How long, and how many, finished jobs are remembered: arguments of `queue.lua`.

    Args:
        job_ttl: seconds after its end.
        max_finished: jobs of each end (done, failed, cancelled).
    """
    return {"job_ttl": max(1, int(job_ttl * 1e3)), "max_finished": max_finished}


_EXPIRED: Final = {
    "failed": (logging.ERROR, "a job failed: every worker that took it was lost"),
    "queued": (logging.WARNING, "a worker was lost: its job waits again"),
    "cancelled": (logging.INFO, "a worker was lost: its job had been withdrawn"),
}


def log_expired(reply: Sequence[bytes]) -> int:
    """Log every job whose lease ran out, under its own id and that of its request.

    Args:
        reply: the answer of `expire` in `queue.lua`.

    Returns:
        How many there were.
    """
    for row in map(json.loads, reply):
        level, message = _EXPIRED[row["outcome"]]
        fields = {"job_id": row["id"], "request_id": row["trace"], "worker": row["worker"]}
        log.log(level, message, extra={**fields, "attempts": row["attempts"]})
    return len(reply)
