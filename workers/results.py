"""How the end of a job reaches the store: at once, or from a folder on disk after an outage.

`Results` reports ends and retries. `PendingResults` is the folder.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import redis

from service.store.claims import (
    Claim,
    ClaimStore,
    ExperimentOutcome,
    Outcome,
    ProfileOutcome,
    Settled,
)
from service.store.connection import is_outage
from workers.lease import Shutdown

log = logging.getLogger(__name__)


RECORD_SECONDS = 300.0
"""How long a worker retries to record a result; after that the result waits on disk only."""
RETRY_SECONDS = 0.5


class Results:
    """Reports the ends of this worker's jobs.

    Args:
        store: the queue.
        pending: where results wait while Redis is away.
        shutdown: the request to stop, which ends all retries.
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
        """Report an end. If the store stays away, the lease expires and the job runs again."""
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
        """Record a result. While the store is away, write it to disk first, then retry."""
        kept: PendingResult | None = None

        def attempt() -> Settled:
            nonlocal kept
            try:
                # A result that was on disk may have waited long, so it counts as late.
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
        """Send the results on disk, those of other processes too.

        Raises:
            redis.RedisError: the store is away.
        """
        for result in self._pending:
            try:
                settled = self._store.finish(result.claim, result.outcome, late=True)
            except redis.exceptions.OutOfMemoryError:
                continue  # a result frees no memory; claiming jobs must go on, for their ends do
            except redis.RedisError as error:
                if is_outage(error):
                    raise
                self._pending.set_aside(result.path)
                continue
            self._pending.drop(result)
            log.info("a kept result was sent", extra={"settled": settled})


@dataclass(frozen=True)
class PendingResult:
    """A result, the lease under which it was made, and the file that holds both."""

    claim: Claim
    outcome: Outcome
    path: Path


class PendingResults:
    """A folder of results that wait for the store.

    Any worker may send any of them. Recording is fenced and idempotent, so two may send the same.

    Args:
        folder: created on first use, readable by this user only.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # In memory only: another process may have the permissions that this one lacks.
        self._skipped: set[Path] = set()

    def keep(self, claim: Claim, outcome: Outcome) -> PendingResult:
        """Write a result so that it survives this process and a power cut."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._folder / f"{claim.job_id}-{claim.token.rpartition('/')[2]}.json"
        document = {
            "claim": {"job_id": claim.job_id, "token": claim.token, "attempt": claim.attempt},
            "outcome": _to_json(outcome),
        }
        partial = path.with_suffix(".partial")
        with open(partial, "w", encoding="utf-8", opener=_private) as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        return PendingResult(claim, outcome, path)

    def drop(self, result: PendingResult) -> None:
        """Remove a result that the store has."""
        try:
            result.path.unlink(missing_ok=True)
        except OSError:
            log.exception("a result that was sent cannot be removed", extra=_at(result.path))
            self._skipped.add(result.path)

    def set_aside(self, path: Path) -> None:
        """Never yield a file again that cannot be read or sent. Call it in an exception handler."""
        log.exception("a kept result is set aside", extra=_at(path))
        self._skipped.add(path)
        with contextlib.suppress(OSError):
            path.replace(path.with_suffix(".unreadable"))

    def __iter__(self) -> Iterator[PendingResult]:
        for path in self._paths():
            if path in self._skipped:
                continue
            try:
                result = _read(path)
            except FileNotFoundError:
                continue  # another worker sent it
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                self.set_aside(path)
            else:
                yield result

    def _paths(self) -> list[Path]:
        try:
            return sorted(self._folder.glob("*.json"))
        except OSError:
            if self._folder not in self._skipped:
                log.exception("kept results cannot be looked for", extra=_at(self._folder))
                self._skipped.add(self._folder)
            return []


def _at(path: Path) -> dict[str, str]:
    return {"path": str(path)}


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, mode=0o600)


def _read(path: Path) -> PendingResult:
    document = json.loads(path.read_text(encoding="utf-8"))
    claim = document["claim"]
    return PendingResult(
        Claim(str(claim["job_id"]), str(claim["token"]), b"", int(claim["attempt"]), ""),
        _from_json(document["outcome"]),
        path,
    )


def _to_json(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, ExperimentOutcome):
        rows = base64.b64encode(outcome.rows).decode()
        return {"result": outcome.result.decode(), "rows": rows}
    return {
        key: value.decode() if isinstance(value, bytes) else value
        for key, value in asdict(outcome).items()
    }


def _from_json(kept: dict[str, Any]) -> Outcome:
    if "result" in kept:
        rows = base64.b64decode(kept["rows"], validate=True)
        return ExperimentOutcome(result=kept["result"].encode(), rows=rows)
    parts = {name: kept[name].encode() for name in ("body", "envelope", "summary")}
    found = ProfileOutcome(profile_id=str(kept["profile_id"]), **parts)
    _ = found.model  # `finish` reads it: a summary without one must fail here
    return found
