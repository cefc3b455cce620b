"""How a job's end reaches the store: now, or from disk when the store is back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import redis

from service.store.claims import Claim, ClaimStore, Outcome, Settled
from service.store.connection import is_outage
from workers.lease import Shutdown
from workers.pending import PendingResult, PendingResults

log = logging.getLogger(__name__)

RECORD_SECONDS = 300.0
"""How long a worker stands by a result that cannot be recorded; then it waits on disk alone."""
RETRY_SECONDS = 0.5


class Results:
    """Reports the ends of this worker's jobs.

    Args:
        store: the queue.
        pending: where results wait while Redis is away.
        shutdown: the wish to stop, which ends all patience.
        on_outage: called whenever Redis does not answer.
    """

    def __init__(
        self,
        store: ClaimStore,
        pending: PendingResults,
        shutdown: Shutdown,
        on_outage: Callable[[], None],
    ) -> None:
        self._store, self._pending = store, pending
        self._shutdown, self._note_outage = shutdown, on_outage

    def report(self, call: Callable[[], Settled]) -> Settled | None:
        """Report an end; if the store stays away, the lease expires and the job runs again."""
        end = time.monotonic() + RECORD_SECONDS
        while True:
            try:
                return call()
            except (redis.RedisError, OSError) as error:
                if not is_outage(error):
                    raise
                self._note_outage()
                if time.monotonic() > end or self._shutdown.left <= 0:
                    return None
                time.sleep(RETRY_SECONDS)

    def record(self, claim: Claim, outcome: Outcome) -> Settled | None:
        """Record a result. When the store is away it goes to disk first, then it is tried again."""
        kept: PendingResult | None = None

        def attempt() -> Settled:
            nonlocal kept
            try:
                # Once on disk, it may have waited long: then it counts as late.
                settled = self._store.finish(claim, outcome, late=kept is not None)
            except (redis.RedisError, OSError) as error:
                if kept is None and is_outage(error):
                    kept = self._keep(claim, outcome)
                raise
            if kept is not None:
                self._pending.drop(kept)
            return settled

        return self.report(attempt)

    def _keep(self, claim: Claim, outcome: Outcome) -> PendingResult | None:
        try:
            kept = self._pending.keep(claim, outcome)
        except OSError:
            log.exception("the result cannot be written to disk; it waits in memory alone")
            return None
        log.warning("the result waits on disk for the store")
        return kept

    def send_kept(self) -> None:
        """Send what was kept, by this process or another.

        Raises:
            redis.RedisError: the store is away.
        """
        for result in self._pending:
            try:
                settled = self._store.finish(result.claim, result.outcome, late=True)
            except redis.exceptions.OutOfMemoryError:
                continue  # it frees nothing: jobs whose ends do must not wait for it
            except redis.RedisError as error:
                if is_outage(error):
                    raise
                self._pending.set_aside(result.path)
                continue
            self._pending.drop(result)
            log.info("a kept result was sent", extra={"settled": settled})
