"""Results that could not be recorded yet, on disk until the store takes them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from service.store.claims import Claim, Outcome

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PendingResult:
    """A result with the lease under which it was made, and the file that holds it."""

    claim: Claim
    outcome: Outcome
    path: Path


class PendingResults:
    """A folder of results that wait for the store.

    Any worker may send any of them: recording is fenced and idempotent, so it does no harm when
    two do.

    Args:
        folder: created on the first use, readable by this user alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, claim: Claim, outcome: Outcome) -> PendingResult:
        """Write a result so that it survives this process and this machine's power."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._folder / f"{claim.job_id}-{claim.token.rpartition('/')[2]}.json"
        document = {
            "claim": {"job_id": claim.job_id, "token": claim.token, "attempt": claim.attempt},
            "outcome": {
                key: value.decode() if isinstance(value, bytes) else value
                for key, value in asdict(outcome).items()
            },
        }
        partial = path.with_suffix(".partial")
        with open(partial, "w", encoding="utf-8", opener=_private) as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        return PendingResult(claim, outcome, path)

    def drop(self, result: PendingResult) -> None:
        """The store has it."""
        result.path.unlink(missing_ok=True)

    def __iter__(self) -> Iterator[PendingResult]:
        for path in sorted(self._folder.glob("*.json")):
            try:
                yield _read(path)
            except FileNotFoundError:
                continue  # another worker was faster
            except (ValueError, KeyError, TypeError):
                log.exception("a kept result cannot be read", extra={"path": str(path)})
                path.replace(path.with_suffix(".unreadable"))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, mode=0o600)


def _read(path: Path) -> PendingResult:
    document = json.loads(path.read_text(encoding="utf-8"))
    claim, outcome = document["claim"], document["outcome"]
    parts = {name: outcome[name].encode() for name in ("body", "envelope", "summary")}
    return PendingResult(
        Claim(claim["job_id"], claim["token"], b"", int(claim["attempt"]), ""),
        Outcome(profile_id=outcome["profile_id"], **parts),
        path,
    )
