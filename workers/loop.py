"""The life of a worker: claim a job, keep its lease, run it, report. One job at a time; no torch.

Start at `Worker.run`. What happens when something goes wrong:

    this process dies       the lease expires and another worker runs the job; the third time it
                            fails
    this process freezes    the same; when it wakes its lease is lost, so it cannot write
    Redis goes away         the job continues; its result is written to disk and sent later
    the job raises          the job fails with a reason (`faults.classify`)
    the job is unreadable   it is given back, aside: a newer worker may read it
    the device breaks       the process ends with `faults.EXIT_DEVICE`; another runs the job
    SIGTERM                 the job ends within the grace period, or it is given back
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Final, Protocol

import redis
from pydantic import ValidationError

from lacuna.contract.experiment_requests import ExperimentRequest
from lacuna.contract.jobs import Failure, JobKind
from lacuna.contract.models import WorkerModels
from lacuna.contract.profile_requests import ProfileRequest
from service import logs
from service.store.claims import Claim, ClaimStore, Outcome
from service.store.connection import is_lasting, is_outage, refusal
from service.store.upkeep import FORGET_SECONDS, Steadiness
from workers.faults import Fatal, classify, clean_up
from workers.lease import (
    ANNOUNCE_SECONDS,
    GiveBack,
    JobCancelled,
    JobContext,
    Keeper,
    LeaseLost,
    Shutdown,
)
from workers.results import PendingResults, Results

log = logging.getLogger(__name__)

JobRequest = ProfileRequest | ExperimentRequest
_REQUESTS: Final[Mapping[JobKind, type[JobRequest]]] = {
    "profile": ProfileRequest,
    "experiment": ExperimentRequest,
}

MEND_SECONDS = 600.0
"""How often the worker repairs what crashed processes left in the queue."""


@dataclass(frozen=True)
class Capabilities:
    """What a handler can run.

    Attributes:
        device: "cpu", "cuda" or "cuda:N".
        warm: ids of the models in its memory.
        local: names of the local models that it can load.
        kinds: of jobs that it runs.
    """

    device: str
    warm: Sequence[str] = ()
    local: Sequence[str] = ()
    kinds: Sequence[JobKind] = ("profile",)


class Handler(Protocol):
    """Runs one job."""

    def __call__(self, request: JobRequest, context: JobContext) -> Outcome:
        """Measure; call `context.check()` several times a second and let its exceptions through."""

    def describe(self) -> Capabilities:
        """What it can run now. It is called from another thread, so it must not compute."""


class Worker:
    """Runs jobs until a signal stops it.

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
        self._capabilities = handler.describe()
        self._steadiness = Steadiness(store.lease)
        self._expire_at = 0.0
        self._forget_at = 0.0
        # The first repair comes soon: this may be the first start after a crash.
        self._mend_at = time.monotonic() + store.lease

    def run(self) -> int:
        """Work until a signal or a broken device ends it; return the exit status.

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
        self._steadiness.unsettle()

    def _once(self) -> Fatal | None:
        """Send kept results, clean up, then run a job or wait briefly for one."""
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
            why = refusal(error) if is_lasting(error) else str(error)[:200]
            log.warning("the store is away", extra={"why": why})
            self._shutdown.sleep(1.0)
            return None
        with logs.context(job=claim.job_id, request=claim.trace):
            return self._run_job(claim)

    def _housekeep(self) -> None:
        now = time.monotonic()
        if now >= self._expire_at:
            self._expire_at = now + min(2.0, self._store.lease / 6)
            if self._steadiness.steady(self._store.facts()):
                self._store.expire()
        if now >= self._forget_at and self._store.forget_history():
            self._forget_at = now + FORGET_SECONDS
        if now >= self._mend_at:
            self._mend_at = now + MEND_SECONDS
            self._store.mend()

    def _run_job(self, claim: Claim) -> Fatal | None:
        request = understood(claim)
        if request is None:
            log.warning("the job is given back: another version made it")
            self._results.report(lambda: self._store.release(claim, declined=True))
            return None
        log.info("job starts", extra={"attempt": claim.attempt, "kind": claim.kind})
        context, started = self._keeper.hold(claim), time.monotonic()
        completed = False
        try:
            outcome = self._handler(request, context)
            completed = True
            settled = self._results.record(claim, outcome)
        except LeaseLost:
            settled = "lost"
        except JobCancelled:
            settled = self._results.report(lambda: self._store.cancelled(claim))
        except GiveBack:
            settled = self._results.report(lambda: self._store.release(claim))
        except Exception as error:
            failure = classify(error, request)
            if isinstance(failure, Fatal):
                return failure
            self._log_failure(error, failure)
            settled = self._results.report(lambda: self._store.fail(claim, failure))
        finally:
            self._keeper.drop()
        if not completed:
            clean_up()  # only here, where the traceback that held the job's tensors is gone
        seconds = round(time.monotonic() - started, 3)
        log.info("job ends", extra={"settled": settled, "seconds": seconds})
        return None

    def _log_failure(self, error: Exception, failure: Failure) -> None:
        # A traceback helps with our own faults; a caller's mistake needs none.
        trace = error if failure.code == "internal_error" else None
        log.warning("job fails", exc_info=trace, extra={"code": failure.code})

    def _announce(self) -> None:
        try:
            self._capabilities = self._handler.describe()
        except Exception:
            log.exception("the handler could not describe itself; its last description is sent")
        document = WorkerModels(
            worker=self._store.name,
            device=self._capabilities.device,
            queue=self._store.queues[0],
            warm=list(self._capabilities.warm),
            local=list(self._capabilities.local),
        )
        self._store.announce(document, 4 * ANNOUNCE_SECONDS)

    def _say_goodbye(self) -> None:
        try:
            self._store.forget_history()
            self._store.farewell()
        except (redis.RedisError, OSError):
            log.info("could not say goodbye; the registration expires by itself")


def understood(claim: Claim) -> JobRequest | None:
    """The request of a job; None when this version reads it otherwise than the one that queued it.

    It does when a field or a value is unknown here, and when the request has another name here:
    then the same words mean other numbers.
    """
    try:
        request = _REQUESTS[claim.kind].model_validate_json(claim.request)
    except (KeyError, ValidationError):
        return None
    return request if request.job_id == claim.identity else None
