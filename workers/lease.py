"""The lease of the running job: who keeps it, and how the job learns that it must stop.

`Keeper` is a thread that beats once a second: it renews the lease, sends progress, and receives a
cancellation. torch, numpy and safetensors release the interpreter lock in long calls, so the thread
beats while the job computes. It freezes together with its process, so a worker that is stopped
cannot keep a job that it does not work on. `JobContext` is what the job sees.
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
STOP_LIMIT_SECONDS = 5.0
"""How long a job may run after the grace period before its process is ended."""
CANCEL_LIMIT_SECONDS = 300.0
"""How long a cancelled or lost job may run without a check before its process is ended."""


class Interruption(Exception):
    """Raised by `JobContext.check` when the job must stop. Handlers let it through."""


class JobCancelled(Interruption):
    """A client cancelled the job."""


class LeaseLost(Interruption):
    """Another worker has the job, or it has ended."""


class GiveBack(Interruption):
    """This worker is stopping; another will run the job."""


class StopReason(Enum):
    """Why a job must stop, with the exception that says so."""

    CANCELLED = JobCancelled
    LOST = LeaseLost
    GIVE_BACK = GiveBack


class Shutdown:
    """The request to stop: set by a signal, read by the loop and the keeper.

    Args:
        grace: seconds that a running job may still take.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        # A plain flag. The signal handler runs in the main thread, between any two steps of it: had
        # that thread just taken an Event's lock, setting the Event here would wait forever.
        self._requested = False
        self._deadline = float("inf")

    def request(self) -> None:
        """Stop when the grace period ends; a second request ends it now."""
        self._deadline = time.monotonic() + (0.0 if self._requested else self._grace)
        self._requested = True

    @property
    def requested(self) -> bool:
        """Whether a signal asked the process to stop."""
        return self._requested

    @property
    def left(self) -> float:
        """Seconds of grace left; infinite before a request."""
        return self._deadline - time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep, and wake early when a stop is requested."""
        end = time.monotonic() + seconds
        while not self._requested and (left := end - time.monotonic()) > 0:
            time.sleep(min(0.05, left))


class JobContext:
    """What a handler sees of the queue: it reports progress, and asks whether it must stop."""

    def __init__(self, claim: Claim, shutdown: Shutdown) -> None:
        self.claim = claim
        self._shutdown = shutdown
        self._progress, self._message = 0.0, ""
        self._started = time.monotonic()
        self._stop_reason: StopReason | None = None
        self._stop_at = 0.0

    def progress(self, fraction: float, message: str = "") -> None:
        """Report how far the job is, in [0, 1]. The keeper sends it once a second."""
        self._progress, self._message = min(1.0, max(0.0, fraction)), message

    def check(self) -> None:
        """Go on or stop; call it several times a second.

        Raises:
            JobCancelled, LeaseLost, GiveBack: stop now; the loop knows what to do.
        """
        if (reason := self.stop_reason) is not None:
            raise reason.value("the job must stop")

    @property
    def reported(self) -> tuple[float, str]:
        """The last progress and message."""
        return self._progress, self._message

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the job must stop; None while it may go on."""
        if self._stop_reason is None and self._shutdown.requested and not self._fits():
            self.stop(StopReason.GIVE_BACK)
        return self._stop_reason

    @property
    def overdue(self) -> float:
        """Seconds since the job should have stopped; 0 while it may go on."""
        return 0.0 if self.stop_reason is None else time.monotonic() - self._stop_at

    def stop(self, reason: StopReason) -> None:
        """Tell the job to stop. The first reason counts."""
        if self._stop_reason is None:
            self._stop_at = time.monotonic()
            self._stop_reason = reason

    def _fits(self) -> bool:
        """Whether the rest of the job fits into the grace period, judged by its progress."""
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
        shutdown: the request to stop.
        announce: tells the gateways that this worker is alive; called every few seconds.
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
        # Two threads: an announcement lists the models on a disk, and a disk may hang.
        tasks = {"lease keeper": (self._keep, interval), "announcer": (announce, ANNOUNCE_SECONDS)}
        self._threads = [
            threading.Thread(target=self._repeat, args=task, name=name, daemon=True)
            for name, task in tasks.items()
        ]

    def start(self) -> None:
        """Start both threads."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End both threads; one that hangs is abandoned."""
        self._ended.set()
        for thread in self._threads:
            thread.join(timeout=15)

    def hold(self, claim: Claim) -> JobContext:
        """Keep this job's lease until `drop`."""
        context = JobContext(claim, self._shutdown)
        with self._lock:
            self._current = context
        return context

    def drop(self) -> None:
        """Keep no lease. When this returns no beat is running."""
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
                # This thread must not end: without it the lease expires.
                if is_outage(error):
                    self._on_outage()
                else:
                    log.exception("the lease keeper met an error")
            if self._ended.wait(pause):
                return

    def _beat(self, context: JobContext) -> None:
        try:
            # Beats continue after a stop reason: the job is ours until the loop settles it.
            answer = self._store.beat(context.claim, *context.reported)
            if answer == "lost":
                context.stop(StopReason.LOST)
            elif answer == "cancel":
                context.stop(StopReason.CANCELLED)
        finally:
            self._end_if_stuck(context)

    def _end_if_stuck(self, context: JobContext) -> None:
        reason = context.stop_reason
        stopping = reason is StopReason.GIVE_BACK
        grace = STOP_LIMIT_SECONDS if stopping else CANCEL_LIMIT_SECONDS
        if reason is None or context.overdue <= grace:
            return
        log.critical("the job does not stop; ending the process", extra={"reason": reason.name})
        try:
            if stopping:
                self._store.release(context.claim)
            elif reason is StopReason.CANCELLED:
                self._store.cancelled(context.claim)
        except (redis.RedisError, OSError):
            log.exception("could not settle the job; its lease will expire")
        logging.shutdown()
        os._exit(EXIT_STUCK)
