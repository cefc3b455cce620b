"""The worker's side of the queue: claim, keep the lease, report the end.

Every call but `claim` carries the lease's token, and does nothing when the lease has gone to
another worker meanwhile. Calls raise redis-py's errors; `connection.is_outage` tells outages from
mistakes.

What sweeps of the queue did, job by job: who swept is the only one who can tell.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import redis
from redis.commands.core import Script

from lacuna.contract.jobs import Failure
from lacuna.contract.models import WorkerModels
from service.store import keys
from service.store.connection import BLOCK_SECONDS, ROUTE, ScriptName, source

Beat = Literal["ok", "cancel", "lost"]
Settled = Literal["ok", "lost", "again"]


def _text(text: str, longest: int) -> bytes:
    """Bounded UTF-8; a lone surrogate (from a file's name, say) must not keep a job from ending."""
    return text[:longest].encode(errors="replace")


@dataclass(frozen=True)
class Claim:
    """A job that this worker holds, until its lease ends."""

    job_id: str
    token: str
    request: bytes
    attempt: int
    trace: str


@dataclass(frozen=True)
class Outcome:
    """What a finished job leaves behind, each part as JSON bytes.

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
        """Whose profile it is, by its summary."""
        return str(json.loads(self.summary)["model"])


class ClaimStore:
    """The queue as a worker sees it.

    Args:
        client: a client that returns bytes (`connection.connect`).
        name: this worker's name, unique among all.
        queues: what it serves, in order of preference.
        lease: seconds for which a claim holds without a beat.
        max_attempts: deliveries after which a job fails as `worker_lost`.
        job_ttl: seconds for which a finished job is remembered.
        max_finished: how many of each end (done, failed, cancelled) are, the latest.
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
    ) -> None:
        self.client = client
        self.name = name
        self.queues = tuple(queues)
        self._asked: str | None = None
        self.lease = lease
        self._scripts: dict[ScriptName, Script] = {}
        self._lease_us = int(lease * 1e6)
        self._max_attempts = max_attempts
        self._keep = keys.keep(job_ttl, max_finished)

    def _run(self, name: ScriptName, *arguments: str | bytes | int) -> Any:
        script = self._scripts.get(name)
        if script is None:
            script = self._scripts[name] = self.client.register_script(source(name))
        return script(keys=ROUTE, args=list(arguments))

    def wait(self, seconds: float = BLOCK_SECONDS) -> bool:
        """Block until a job may wait, at most `seconds`; whether there is reason to `claim`."""
        names = [keys.wake(queue) for queue in self.queues]
        return self.client.blpop(names, timeout=seconds) is not None

    def claim(self) -> Claim | None:
        """Take the next job, if one waits. One job, never more; the attempt counts from here.

        A call after one that raised gets the job that the other may have taken: its answer may have
        been lost, and under a new token the job would wait for its lease to run out.
        """
        token = self._asked = self._asked or f"{self.name}/{secrets.token_hex(8)}"
        reply: Any = None
        for queue in self.queues:
            reply = self._run("claim", queue, token, self.name, self._lease_us)
            if reply:
                break
        self._asked = None
        if not reply:
            return None
        job_id, request, attempt, trace = cast(list[bytes], reply)
        return Claim(job_id.decode(), token, request, int(attempt), trace.decode())

    def beat(self, claim: Claim, progress: float, message: str) -> Beat:
        """Renew the lease, report progress, and learn whether the job was lost or cancelled."""
        arguments: list[int | str | bytes] = [
            self._lease_us,
            f"{progress:.4f}",
            _text(message, 200),
        ]
        return cast(Beat, self._run("beat", claim.job_id, claim.token, *arguments).decode())

    def _finish(self, claim: Claim, late: bool, *outcome: str | bytes) -> Settled:
        head: list[str | int] = [claim.job_id, claim.token, self._keep, int(late)]
        return cast(Settled, self._run("finish", *head, *outcome).decode())

    def finish(self, claim: Claim, outcome: Outcome, *, late: bool = False) -> Settled:
        """Write the profile (unless one stands under its id) and end the job, in one step.

        Args:
            claim: the lease under which the result was made.
            outcome: the result.
            late: the result was kept on disk while Redis was away. The profile is kept in any
                case, for it is content-addressed; the job ends also when it waits again, but not
                when another worker holds it.
        """
        parts = (outcome.profile_id, outcome.body, outcome.envelope, outcome.summary)
        return self._finish(claim, late, "done", *parts, outcome.model)

    def fail(self, claim: Claim, failure: Failure) -> Settled:
        """End the job with a reason."""
        said = (_text(failure.detail, 2_000), "1" if failure.retryable else "0")
        return self._finish(
            claim, False, "failed", failure.code, *said, _text(failure.field or "", 200)
        )

    def cancelled(self, claim: Claim) -> Settled:
        """End the job as cancelled; "again" when a new caller wants it after all."""
        return self._finish(claim, False, "cancelled")

    def release(self, claim: Claim) -> Settled:
        """Give the job back: claimable at once, and not an attempt."""
        return cast(Settled, self._run("release", claim.job_id, claim.token, self._keep).decode())

    def expire(self) -> int:
        """Requeue (or fail) the jobs whose leases ran out, and log each; returns how many.

        Call it only when this process saw no outage for one lease and the server is up for one
        lease (`uptime`): otherwise an outage makes every running job run twice.
        """
        return log_expired(self._run("expire", self._max_attempts, self._keep))

    def forget_history(self) -> bool:
        """Have the append-only file written anew if it still holds callers' own texts.

        However their jobs ended, and whoever ended them: the store counts. A managed server may not
        allow this, and while a rewrite runs already none is begun; a later call tries again.

        Returns:
            Whether a rewrite was begun.
        """
        counts = self.client.hmget(keys.STATS, [keys.TEXTS_DROPPED, keys.TEXTS_FORGOTTEN])
        dropped, forgotten = (int(number or 0) for number in cast("list[bytes | None]", counts))
        if dropped == forgotten:
            return False
        try:
            self.client.bgrewriteaof()
            self.client.hset(keys.STATS, keys.TEXTS_FORGOTTEN, dropped)
        except redis.ResponseError:
            return False
        return True

    def uptime(self) -> int:
        """Seconds since the server started."""
        return int(self.client.info("server")["uptime_in_seconds"])

    def mend(self) -> int:
        """Requeue jobs that are in no queue and under no lease, and log each; returns how many.

        One process at a time does this; it reads every job once.
        """
        if not self.client.set(keys.HOUSEKEEPER, self.name, nx=True, ex=60):
            return 0
        mended, cursor = 0, 0
        while True:
            cursor, found = self.client.scan(cursor, match=f"{keys.JOB}*", count=500)
            ids = [key.decode().removeprefix(keys.JOB) for key in cast("list[bytes]", found)]
            mended += log_mended(self._run("mend", *ids))
            if cursor == 0:
                return mended

    def announce(self, facts: WorkerModels, ttl: float) -> None:
        """Tell the gateways that this worker lives and what it offers, good for `ttl` seconds."""
        document = facts.model_dump_json().encode()
        self._run("worker_beat", self.name, int(ttl * 1e3), document, *self.queues)

    def farewell(self) -> None:
        """Tell the gateways that this worker is gone."""
        self._run("worker_beat", self.name, 0, "", *self.queues)


log = logging.getLogger(__name__)

_FATE: Final = {
    "failed": (logging.ERROR, "a job failed: every worker that took it was lost"),
    "queued": (logging.WARNING, "a worker was lost: its job waits again"),
    "cancelled": (logging.INFO, "a worker was lost: its job had been withdrawn"),
}


def log_expired(reply: Sequence[Sequence[bytes]]) -> int:
    """Log every job whose lease had run out, under its own id and that of its request.

    Args:
        reply: the answer of expire.lua.

    Returns:
        How many there were.
    """
    for row in reply:
        fate, job_id, request_id, worker, attempts = (part.decode() for part in row)
        level, message = _FATE[fate]
        fields = {"job_id": job_id, "request_id": request_id, "worker": worker}
        log.log(level, message, extra={**fields, "attempts": int(attempts)})
    return len(reply)


def log_mended(reply: Sequence[bytes]) -> int:
    """Log every job that stood in no queue and was put back.

    Args:
        reply: the answer of mend.lua.

    Returns:
        How many there were.
    """
    for job_id in reply:
        log.error("a job stood in no queue: it was put back", extra={"job_id": job_id.decode()})
    return len(reply)
