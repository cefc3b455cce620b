"""The worker's life: claim a job, keep its lease, run it, report. One job at a time; no torch here.

What happens when things go wrong:

    this process dies           the lease expires, the job runs elsewhere; after 3 times it fails
    this process freezes        the same; when it wakes, its lease is lost and it cannot write
    Redis goes away             the job runs on; its result is written to disk and sent later
    the job raises              the job fails with a reason (`faults.classify`)
    the device breaks           the process ends with `faults.EXIT_DEVICE`; the job runs elsewhere
    SIGTERM                     the job ends within the grace period or is given back
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

import redis

from lacuna.contract.jobs import Failure
from lacuna.contract.models import WorkerModels
from lacuna.contract.profile_requests import ProfileRequest
from service import logs
from service.store.claims import Claim, ClaimStore, Outcome
from service.store.connection import is_outage
from workers.faults import Fatal, classify, clean_up
from workers.lease import (
    ANNOUNCE_SECONDS,
    Cancelled,
    GiveBack,
    Interruption,
    JobContext,
    Keeper,
    LeaseLost,
    Shutdown,
)
from workers.results import PendingResults, Results

__all__ = ["Cancelled", "Facts", "GiveBack", "Handler", "Interruption", "JobContext", "LeaseLost",
           "Outcome", "Worker"]  # fmt: skip

log = logging.getLogger(__name__)

MEND_SECONDS = 600.0
FORGET_SECONDS = 60.0
"""At most this often the store's file is written anew, to be rid of callers' own texts."""


@dataclass(frozen=True)
class Facts:
    """What a handler offers: its device, the models in its memory, the local ones it can load."""

    device: str
    warm: Sequence[str] = ()
    local: Sequence[str] = ()


class Handler(Protocol):
    """Runs one job."""

    def __call__(self, request: ProfileRequest, context: JobContext) -> Outcome:
        """Measure; call `context.check()` several times a second and let its exceptions through."""

    def describe(self) -> Facts:
        """What is on offer now; called from another thread, so it must not compute."""


class Worker:
    """Runs jobs until it is told to stop.

    Args:
        store: the queue.
        handler: runs one job.
        pending: where results wait while Redis is away.
        grace: seconds that a running job may take after SIGTERM.
    """

    def __init__(
        self, store: ClaimStore, handler: Handler, pending: PendingResults, *, grace: float = 20.0
    ) -> None:
        self._store, self._handler = store, handler
        self._shutdown = Shutdown(grace)
        self._keeper = Keeper(store, self._shutdown, self._announce, self._note_outage)
        self._results = Results(store, pending, self._shutdown, self._note_outage)
        self._facts = handler.describe()
        # Whoever starts now may be starting because of an outage, and cannot know of it.
        self._outage_at = time.monotonic()
        self._expire_at = 0.0
        self._forget_at = 0.0
        # The first look comes soon: this start may be the one after an accident.
        self._mend_at = time.monotonic() + store.lease

    def run(self) -> int:
        """Work until a signal or a broken device ends it; returns the exit status.

        Call it from the main thread: SIGTERM, SIGINT and, unless it is ignored, SIGHUP are handled
        while it runs.
        """
        handled = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            handled.append(signal.SIGHUP)
        before = {number: signal.signal(number, self._on_signal) for number in handled}
        self._keeper.start()
        log.info("worker starts", extra={"worker": self._store.name})
        try:
            while not self._shutdown.requested:
                if (fatal := self._once()) is not None:
                    log.critical("worker ends: the device is broken", extra={"why": fatal.reason})
                    return fatal.exit_code
            return 0
        finally:
            self._keeper.close()
            self._say_goodbye()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._shutdown.request()

    def _note_outage(self) -> None:
        self._outage_at = time.monotonic()

    def _once(self) -> Fatal | None:
        """One turn: housekeeping, then a job or a short wait for one."""
        try:
            self._results.send_kept()
            self._housekeep()
            claim = self._store.claim()
            if claim is None:
                self._store.wait()
                return None
        except redis.RedisError as error:
            if not is_outage(error):
                raise
            self._note_outage()
            log.warning("the store is away", extra={"why": str(error)[:200]})
            self._shutdown.sleep(1.0)
            return None
        with logs.context(job=claim.job_id, request=claim.trace):
            return self._run_job(claim)

    def _housekeep(self) -> None:
        now = time.monotonic()
        if now >= self._expire_at:
            self._expire_at = now + min(2.0, self._store.lease / 6)
            # After an outage every lease looks expired, though every worker may still be at work.
            calm = now - self._outage_at > self._store.lease
            if calm and self._store.uptime() > self._store.lease:
                self._store.expire()
        if now >= self._forget_at and self._store.forget_history():
            self._forget_at = now + FORGET_SECONDS
        if now >= self._mend_at:
            self._mend_at = now + MEND_SECONDS
            self._store.mend()

    def _run_job(self, claim: Claim) -> Fatal | None:
        log.info("job starts", extra={"attempt": claim.attempt})
        context, request, started = self._keeper.hold(claim), None, time.monotonic()
        whole = False
        try:
            request = ProfileRequest.model_validate_json(claim.request)
            outcome = self._handler(request, context)
            whole = True
            settled = self._results.record(claim, outcome)
        except LeaseLost:
            settled = "lost"
        except Cancelled:
            settled = self._results.report(lambda: self._store.cancelled(claim))
        except GiveBack:
            settled = self._results.report(lambda: self._store.release(claim))
        except Exception as error:
            verdict = classify(error, request)
            if isinstance(verdict, Fatal):
                return verdict
            self._log_failure(error, verdict)
            settled = self._results.report(lambda: self._store.fail(claim, verdict))
        finally:
            self._keeper.drop()
        if not whole:
            clean_up()  # here, where no traceback holds the job's tensors any more
        seconds = round(time.monotonic() - started, 3)
        log.info("job ends", extra={"settled": settled, "seconds": seconds})
        return None

    def _log_failure(self, error: Exception, failure: Failure) -> None:
        # The traceback is for faults of our own; the caller's faults need none.
        trace = error if failure.code == "internal_error" else None
        log.warning("job fails", exc_info=trace, extra={"code": failure.code})

    def _announce(self) -> None:
        try:
            self._facts = self._handler.describe()
        except Exception:
            log.exception("the handler could not describe itself; the last description stands")
        facts = self._facts
        document = WorkerModels(
            worker=self._store.name,
            device=facts.device,
            queue=self._store.queues[0],
            warm=list(facts.warm),
            local=list(facts.local),
        )
        self._store.announce(document, 4 * ANNOUNCE_SECONDS)

    def _say_goodbye(self) -> None:
        try:
            self._store.forget_history()
            self._store.farewell()
        except (redis.RedisError, OSError):
            log.info("could not say goodbye; the registration expires by itself")
