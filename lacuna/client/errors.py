"""What can go wrong.

LacunaError
├── Refused          the service answered with a problem document (4xx)
├── JobFailed        an accepted measurement ended without a profile
├── ServiceAway      no answer, or 429/5xx, after all retries
└── WaitedTooLong    the job still runs; the exception carries it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lacuna.client.types import Job


class LacunaError(Exception):
    """Base of all errors of this package."""


class Refused(LacunaError):
    """The service refused the request; `code` is stable, `detail` is for people."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        self.status = status
        self.code = str(problem.get("code", "unknown"))
        self.detail = str(problem.get("detail") or problem.get("title") or f"HTTP {status}")
        self.errors: list[dict[str, Any]] = list(problem.get("errors") or [])
        self.request_id: str | None = problem.get("request_id")
        # The detail begins with the first field at fault; only the others are added.
        pairs = [(str(one.get("field")), str(one.get("message"))) for one in self.errors]
        fields = "; ".join(
            f"{field}: {message}"
            for field, message in pairs
            if not self.detail.startswith((f"{field}: {message}", message))
        )
        super().__init__(f"{self.code}: {self.detail}" + (f" ({fields})" if fields else ""))


class JobFailed(LacunaError):
    """A measurement failed or was cancelled; `retryable` says whether asking again may help."""

    def __init__(self, code: str, detail: str, *, retryable: bool) -> None:
        self.code, self.detail, self.retryable = code, detail, retryable
        super().__init__(f"{code}: {detail}")


class ServiceAway(LacunaError):
    """The service cannot be reached or cannot take requests now."""


class WaitedTooLong(LacunaError):
    """The time allowed for waiting is over; the job goes on."""

    def __init__(self, job: Job) -> None:
        self.job = job
        super().__init__(f"job {job.id} is still {job.state} at {job.progress:.0%}")
