"""What a caller of a service runs into. `LacunaError` is the base of the errors of local work too.

    LacunaError                          code                    retryable
    ├── Refused                          of the problem          as its code says
    ├── JobFailed                        of the failure          as the failure says
    ├── ServiceAway                      service_away            yes
    ├── WaitedTooLong                    waited_too_long         yes
    └── UnexpectedAnswer                 unexpected_answer       no

Codes of problems and failures are those of `lacuna.contract.errors`; the last three never cross
the wire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from lacuna.contract.errors import BY_CODE, LacunaError

if TYPE_CHECKING:
    from lacuna.contract.jobs import Failure, Job

__all__ = [
    "FieldError",
    "JobFailed",
    "LacunaError",
    "Refused",
    "ServiceAway",
    "UnexpectedAnswer",
    "WaitedTooLong",
]


class FieldError(NamedTuple):
    """What is wrong with one field of a request.

    Args:
        field: dotted path, as `chunks.0.relevance`.
        message: one sentence.
    """

    field: str
    message: str


class Refused(LacunaError):
    """The request cannot be served as it is, whether the service or this library noticed.

    Args:
        detail: one sentence.
        code: stable name of the reason.
        field: dotted path of the field at fault, if there is one.
        errors: every field at fault.
        status: HTTP status; None where no service was asked.
        request_id: finds the request in the service's logs.
    """

    def __init__(
        self,
        detail: str,
        *,
        code: str = "invalid_request",
        field: str | None = None,
        errors: Sequence[FieldError] = (),
        status: int | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(detail, field=field or (errors[0].field if errors else None))
        self.code = code
        self.retryable = is_retryable(code)
        self.errors = tuple(errors)
        self.status = status
        self.request_id = request_id

    def __str__(self) -> str:
        """Code, detail, and the fields that the detail does not name."""
        # The detail begins with the first field at fault; only the others are added.
        fields = "; ".join(
            f"{field}: {message}"
            for field, message in self.errors
            if not self.detail.startswith((f"{field}: {message}", message))
        )
        return f"{self.code}: {self.detail}" + (f" ({fields})" if fields else "")

    @classmethod
    def of_problem(cls, status: int, problem: Mapping[str, Any], reason: str = "") -> Self:
        """From a problem document (RFC 9457), or whatever else came with the status.

        Args:
            status: of HTTP.
            problem: the document; empty where the answer was none, of a proxy for example.
            reason: what HTTP calls the status.
        """
        listed = problem.get("errors")
        errors = [
            FieldError(str(one.get("field")), str(one.get("message")))
            for one in (listed if isinstance(listed, list) else [])
            if isinstance(one, dict)
        ]
        identifier = problem.get("request_id")
        return cls(
            str(problem.get("detail") or problem.get("title") or reason or f"HTTP {status}"),
            code=str(problem.get("code") or status),
            errors=errors,
            status=status,
            request_id=None if identifier is None else str(identifier),
        )

    @classmethod
    def of_error(cls, error: LacunaError) -> Self:
        """From what local computation raised: the service would have refused the same."""
        errors = [] if error.field is None else [FieldError(error.field, error.detail)]
        return cls(error.detail, code=error.code, errors=errors)


class JobFailed(LacunaError):
    """An accepted job ended without a result, or was cancelled.

    Args:
        code: of `lacuna.contract.errors`.
        detail: one sentence.
        retryable: whether asking again may help.
        field: dotted path of the request's field at fault, if there is one.
    """

    def __init__(
        self, code: str, detail: str, *, retryable: bool, field: str | None = None
    ) -> None:
        super().__init__(detail, field=field)
        self.code, self.retryable = code, retryable

    def __str__(self) -> str:
        """Code and detail."""
        return f"{self.code}: {self.detail}"

    @classmethod
    def of_job(cls, job: Job) -> Self:
        """From a job that ended without a result."""
        found: Failure | None = job.failure
        if found is not None:
            return cls(found.code, found.detail, retryable=found.retryable, field=found.field)
        detail = "the job was cancelled" if job.state == "cancelled" else job.message
        return cls(job.state, detail, retryable=True)


class ServiceAway(LacunaError):
    """The service cannot be reached, or cannot take requests now; retries did not help.

    Args:
        detail: one sentence.
        status: HTTP status of the last answer; None where there was none.
    """

    code = "service_away"
    retryable = True

    def __init__(self, detail: str, *, status: int | None = None) -> None:
        super().__init__(detail)
        self.status = status


class WaitedTooLong(LacunaError):
    """The time allowed for waiting is over. The job goes on; `job` is its last known state."""

    code = "waited_too_long"
    retryable = True

    def __init__(self, job: Job) -> None:
        super().__init__(f"job {job.id} is still {job.state} at {job.progress:.0%}")
        self.job = job


class UnexpectedAnswer(LacunaError):
    """What answers is not a Lacuna service, or one whose answers this version cannot read."""

    code = "unexpected_answer"


def is_retryable(code: str) -> bool:
    """Whether a request that failed with this code may succeed later without any change."""
    known = BY_CODE.get(code)
    return known is not None and known.retryable
