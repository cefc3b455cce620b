"""What sweeps of the queue did, job by job: who swept is the only one who can tell."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

log = logging.getLogger(__name__)

_FATE: Final = {
    "failed": (logging.ERROR, "a job failed: every worker that took it was lost"),
    "queued": (logging.WARNING, "a worker was lost: its job waits again"),
    "cancelled": (logging.INFO, "a worker was lost: its job had been withdrawn"),
}


def expired(reply: Sequence[Sequence[bytes]]) -> int:
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


def mended(reply: Sequence[bytes]) -> int:
    """Log every job that stood in no queue and was put back.

    Args:
        reply: the answer of mend.lua.

    Returns:
        How many there were.
    """
    for job_id in reply:
        log.error("a job stood in no queue: it was put back", extra={"job_id": job_id.decode()})
    return len(reply)
