"""Keeping a job's lease from outside the thread that computes.

The keeper is a thread: torch, numpy and safetensors release the interpreter lock in long calls, and
a thread freezes together with its process, so a stopped worker cannot keep a job that it does not
work on. It beats once a second: the lease is renewed, progress goes out, a cancel comes in.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from enum import Enum

import redis

from service.store.claims import Claim, ClaimStore
from service.store.connection import is_outage
from workers.faults import EXIT_STUCK

log = logging.getLogger(__name__)

BEAT_SECONDS = 1.0
ANNOUNCE_SECONDS = 5.0
STOP_PATIENCE_SECONDS = 5.0
"""After the grace period: how long a job may take to notice it."""
CANCEL_PATIENCE_SECONDS = 300.0
"""How long a cancelled or lost job may compute on without a check before its process is ended."""


class Interruption(Exception):
    """Raised by `JobContext.check` when the job must not go on. Let it through."""


class Cancelled(Interruption):
    """Nobody wants the job any more."""


class LeaseLost(Interruption):
    """Another worker has the job, or it has ended."""


class GiveBack(Interruption):
    """This worker is stopping; another will run the job."""


class Verdict(Enum):
    """Whether a job may go on, and why not."""

    GO_ON = None
    CANCELLED = Cancelled
    LOST = LeaseLost
    GIVE_BACK = GiveBack


class Shutdown:
    """The wish to stop: set by a signal, read by loop and keeper.

    Args:
        grace: seconds that a running job may still take.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        # A plain flag: the signal handler may interrupt whoever holds an Event's lock.
        self._requested = False
        self._deadline = float("inf")

    def request(self) -> None:
        """Stop soon; asked a second time, at once."""
        self._deadline = time.monotonic() + (0.0 if self._requested else self._grace)
        self._requested = True

    @property
    def requested(self) -> bool:
        """Whether the process shall stop."""
        return self._requested

    @property
    def left(self) -> float:
        """Seconds of grace left; infinite while no stop is asked for."""
        return self._deadline - time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep, but not past a wish to stop."""
        end = time.monotonic() + seconds
        while not self._requested and (left := end - time.monotonic()) > 0:
            time.sleep(min(0.05, left))


class JobContext:
    """What a handler sees of the queue: it reports progress, and asks whether to go on."""

    def __init__(self, claim: Claim, shutdown: Shutdown) -> None:
        self.claim = claim
        self._shutdown = shutdown
        self._progress, self._message = 0.0, ""
        self._started = time.monotonic()
        self._verdict = Verdict.GO_ON
        self._verdict_at = 0.0

    def progress(self, fraction: float, message: str = "") -> None:
        """Report how far the job is, in [0, 1]. Cheap: it is sent once a second at most."""
        self._progress, self._message = min(1.0, max(0.0, fraction)), message

    def check(self) -> None:
        """Call between batches.

        Raises:
            Cancelled, LeaseLost, GiveBack: stop now; the loop knows what to do.
        """
        if self.verdict is not Verdict.GO_ON:
            raise self.verdict.value("the job must stop")

    @property
    def reported(self) -> tuple[float, str]:
        """The last progress and message."""
        return self._progress, self._message

    @property
    def verdict(self) -> Verdict:
        """Whether the job may go on."""
        if self._verdict is Verdict.GO_ON and self._shutdown.requested and not self._fits():
            self.decide(Verdict.GIVE_BACK)
        return self._verdict

    @property
    def overdue(self) -> float:
        """Seconds since the job should have stopped; 0 while it may go on."""
        return 0.0 if self.verdict is Verdict.GO_ON else time.monotonic() - self._verdict_at

    def decide(self, verdict: Verdict) -> None:
        """The job must stop. The first reason stands."""
        if self._verdict is Verdict.GO_ON:
            self._verdict_at = time.monotonic()
            self._verdict = verdict

    def _fits(self) -> bool:
        """Whether the rest of the job fits into the grace period, as far as one can tell."""
        if self._shutdown.left <= 0:
            return False
        if self._progress < 0.05:
            return True
        elapsed = time.monotonic() - self._started
        return elapsed * (1 - self._progress) / self._progress <= self._shutdown.left


class Keeper:
    """The threads that hold the current job's lease and announce this worker.

    Args:
        store: the queue.
        shutdown: the wish to stop.
        announce: tells the gateways that this worker lives; called every few seconds.
        on_outage: called whenever Redis does not answer.
    """

    def __init__(
        self,
        store: ClaimStore,
        shutdown: Shutdown,
        announce: Callable[[], None],
        on_outage: Callable[[], None],
    ) -> None:
        self._store, self._shutdown = store, shutdown
        self._on_outage = on_outage
        interval = min(BEAT_SECONDS, store.lease / 6)
        self._current: JobContext | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        # Two, for what an announcement tells may be read from a disk that hangs.
        tasks = {"lease keeper": (self._keep, interval), "announcer": (announce, ANNOUNCE_SECONDS)}
        self._threads = [
            threading.Thread(target=self._repeat, args=task, name=name, daemon=True)
            for name, task in tasks.items()
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End both threads; one that hangs is left behind."""
        self._ended.set()
        for thread in self._threads:
            thread.join(timeout=15)

    def hold(self, claim: Claim) -> JobContext:
        """Keep this job's lease from now on."""
        context = JobContext(claim, self._shutdown)
        with self._lock:
            self._current = context
        return context

    def drop(self) -> None:
        """Keep no lease; no beat is under way when this returns."""
        with self._lock:
            self._current = None

    def _keep(self) -> None:
        with self._lock:
            if self._current is not None:
                self._beat(self._current)

    def _repeat(self, call: Callable[[], None], interval: float) -> None:
        while True:
            pause = interval
            try:
                call()
            except Exception as error:
                pause = min(interval, BEAT_SECONDS)
                # Whatever it is, the lease must be kept: this thread does not end.
                if is_outage(error):
                    self._on_outage()
                else:
                    log.exception("the lease keeper met an error")
            if self._ended.wait(pause):
                return

    def _beat(self, context: JobContext) -> None:
        try:
            # Beats go on after a verdict: the job is ours until the loop has settled it.
            answer = self._store.beat(context.claim, *context.reported)
            if answer == "lost":
                context.decide(Verdict.LOST)
            elif answer == "cancel":
                context.decide(Verdict.CANCELLED)
        finally:
            self._end_if_stuck(context)

    def _end_if_stuck(self, context: JobContext) -> None:
        verdict = context.verdict
        stopping = verdict is Verdict.GIVE_BACK
        patience = STOP_PATIENCE_SECONDS if stopping else CANCEL_PATIENCE_SECONDS
        if context.overdue <= patience:
            return
        log.critical("the job does not stop; ending the process", extra={"reason": verdict.name})
        try:
            if stopping:
                self._store.release(context.claim)
            elif verdict is Verdict.CANCELLED:
                self._store.cancelled(context.claim)
        except (redis.RedisError, OSError):
            log.exception("could not settle the job; its lease will expire")
        logging.shutdown()
        os._exit(EXIT_STUCK)
