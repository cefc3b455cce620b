"""What the scripts return, as wire models."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, cast

from pydantic import ValidationError

from service.contract.base import Wire
from service.contract.errors import BY_CODE
from service.contract.jobs import Failure, Job, JobState

log = logging.getLogger(__name__)

_FIELDS: Final = (
    "state", "attempts", "progress", "message", "queue", "high", "created", "started", "finished",
    "code", "detail", "retryable", "field", "profile", "cancel", "cost",
    "ahead", "expected", "running", "before", "workers", "now",
)  # fmt: skip
_LOADING: Final = 0.05
"""Progress up to which a job's pace says nothing: its model is being loaded."""
Reply = Sequence[bytes | None]


def iso(microseconds: float) -> str:
    """ISO 8601 in UTC, to the millisecond."""
    moment = datetime.fromtimestamp(microseconds / 1e6, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _time(value: str | None) -> str | None:
    return iso(float(value)) if value else None


def _seconds(text: str | None) -> float | None:
    return None if text is None or text == "?" else float(text)


def _remaining(elapsed: float, progress: float, expected: float | None) -> float | None:
    """Seconds that a running job still takes: at first by past jobs, more and more by its own pace.

    None while neither tells: it loads its model, or has outrun everything that was known.
    """
    by_history = None if expected is None or expected <= elapsed else expected - elapsed
    if progress <= _LOADING:
        return by_history
    by_pace = elapsed * (1 - progress) / progress
    return by_pace if by_history is None else progress * by_pace + (1 - progress) * by_history


def _start(fields: dict[str, str | None]) -> float | None:
    """Seconds until a worker is free for a waiting job, each job ahead going to the first to be."""
    ahead = int(fields["ahead"] or 0)
    rows = [row.split() for row in (fields["running"] or "").split(";") if row]
    busy = [_remaining(float(row[0]), float(row[1]), _seconds(row[2])) for row in rows]
    before = [_seconds(text) for text in (fields["before"] or "").split(";") if text]
    free = [seconds for seconds in busy if seconds is not None]
    known = [seconds for seconds in before if seconds is not None]
    if len(free) < len(busy) or len(known) < len(before):
        return None
    workers = max(1, int(fields["workers"] or 0), len(free))
    free += [0.0] * (workers - len(free))
    heapq.heapify(free)
    for seconds in known:
        heapq.heapreplace(free, free[0] + seconds)
    rest = max(0, ahead - len(known))
    return free[0] + (rest * sum(known) / len(known) / workers if rest and known else 0.0)


def _eta(fields: dict[str, str | None]) -> float | None:
    """Seconds until the end; None unless past jobs of about its size, or its own pace, tell."""
    expected = _seconds(fields["expected"])
    found: float | None = None
    if fields["state"] == "running":
        elapsed = (float(fields["now"] or 0) - float(fields["started"] or 0)) / 1e6
        found = _remaining(elapsed, min(1.0, float(fields["progress"] or 0)), expected)
    elif fields["state"] == "queued" and fields["ahead"] is not None and expected is not None:
        start = _start(fields)
        found = None if start is None else start + expected
    return None if found is None else round(found, 1)


def _failure(fields: dict[str, str | None]) -> Failure | None:
    if fields["state"] == "cancelled":
        return Failure(code="cancelled", detail="the caller withdrew the job", retryable=True)
    if fields["state"] != "failed":
        return None
    code = fields["code"] or "internal_error"
    error = BY_CODE.get(code)
    retryable = (
        fields["retryable"] == "1" if fields["retryable"] else bool(error and error.retryable)
    )
    return Failure(
        code=code,
        detail=fields["detail"] or "",
        retryable=retryable,
        field=fields["field"] or None,
    )


def _message(fields: dict[str, str | None]) -> str:
    if fields["state"] == "running" and fields["cancel"]:
        return "stopping"
    if fields["state"] == "queued" and fields["workers"] == "0":
        return f"waits for a {(fields['queue'] or '').upper()} worker: none lives"
    return fields["message"] or ""


def job_from_view(job_id: str, reply: Reply) -> Job:
    """The job as its owner sees it, from the answer of `view` in common.lua."""
    values = [None if value is None else value.decode() for value in reply]
    fields = dict(zip(_FIELDS, values, strict=True))
    state = cast(JobState, fields["state"])
    return Job(
        id=job_id,
        state=state,
        attempt=int(fields["attempts"] or 0),
        progress=min(1.0, max(0.0, float(fields["progress"] or 0))),
        message=_message(fields),
        position=None if fields["ahead"] is None else int(fields["ahead"]),
        eta_seconds=_eta(fields),
        failure=_failure(fields),
        profile=f"/v1/profiles/{fields['profile']}" if fields["profile"] else None,
        created_at=iso(float(fields["created"] or 0)),
        started_at=_time(fields["started"]),
        finished_at=_time(fields["finished"]),
    )


Stored = TypeVar("Stored", bound=Wire)


def readable(model: type[Stored], documents: Iterable[bytes | None]) -> list[Stored]:
    """Those of the stored documents that can be read: one that cannot must not hide the others."""
    found = []
    for document in documents:
        if document is None:
            continue
        try:
            found.append(model.of_stored(document))
        except ValidationError as error:
            # Where, not what: the values may be anybody's.
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            fields = {"kind": model.__name__, "field": where, "why": first["type"]}
            log.warning("a stored record cannot be read", extra=fields)
    return found


def text_map(reply: dict[Any, Any]) -> dict[str, str]:
    """A hash as text."""
    return {key.decode(): value.decode() for key, value in reply.items()}
