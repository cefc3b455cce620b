"""What the scripts return, as wire models."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast

from service.contract.errors import BY_CODE
from service.contract.jobs import Failure, Job, JobState

_FIELDS: Final = (
    "state", "attempts", "progress", "message", "queue", "high", "created", "started", "finished",
    "code", "detail", "retryable", "profile", "cancel", "ahead", "mean_run", "workers", "now",
)  # fmt: skip
Reply = Sequence[bytes | None]


def iso(microseconds: float) -> str:
    """ISO 8601 in UTC, to the millisecond."""
    moment = datetime.fromtimestamp(microseconds / 1e6, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _time(value: str | None) -> str | None:
    return iso(float(value)) if value else None


def _eta(fields: dict[str, str | None]) -> float | None:
    """Seconds until the end, from the mean run time of the queue; None while nothing is known."""
    progress, mean = float(fields["progress"] or 0), fields["mean_run"]
    if fields["state"] == "running":
        elapsed = (float(fields["now"] or 0) - float(fields["started"] or 0)) / 1e6
        if progress > 0:
            return round(max(0.0, elapsed / progress - elapsed), 1)
        return None if mean is None else round(max(0.0, float(mean) - elapsed), 1)
    if fields["state"] != "queued" or mean is None or fields["ahead"] is None:
        return None
    workers = max(1, int(fields["workers"] or 0))
    return round(float(mean) * (int(fields["ahead"]) / workers + 1), 1)


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
    return Failure(code=code, detail=fields["detail"] or "", retryable=retryable)


def job_from_view(job_id: str, reply: Reply) -> Job:
    """The job as its owner sees it, from the answer of `view` in common.lua."""
    values = [None if value is None else value.decode() for value in reply]
    fields = dict(zip(_FIELDS, values, strict=True))
    state = cast(JobState, fields["state"])
    message = fields["message"] or ""
    if state == "running" and fields["cancel"]:
        message = "stopping"
    return Job(
        id=job_id,
        state=state,
        attempt=int(fields["attempts"] or 0),
        progress=min(1.0, max(0.0, float(fields["progress"] or 0))),
        message=message,
        position=None if fields["ahead"] is None else int(fields["ahead"]),
        eta_seconds=_eta(fields),
        failure=_failure(fields),
        profile=f"/v1/profiles/{fields['profile']}" if fields["profile"] else None,
        created_at=iso(float(fields["created"] or 0)),
        started_at=_time(fields["started"]),
        finished_at=_time(fields["finished"]),
    )


def text_map(reply: dict[Any, Any]) -> dict[str, str]:
    """A hash as text."""
    return {key.decode(): value.decode() for key, value in reply.items()}
