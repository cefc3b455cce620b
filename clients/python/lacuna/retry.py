"""One request with retries, without input or output.

A flow yields `Send` (and is resumed with the response, or with the transport's exception) or
`Sleep`; the clients drive it.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

import httpx

from lacuna.errors import JobFailed, Refused, ServiceAway
from lacuna.types import Json

T = TypeVar("T")
RETRIED = frozenset({429, 502, 503, 504})
_TRANSIENT = frozenset({"worker_lost", "cancelled", "internal_error", "model_unreachable"})
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 8.0


@dataclass(frozen=True)
class Send:
    """Make this request."""

    method: str
    path: str
    body: Json | None = None
    query: Mapping[str, str | int | float] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sleep:
    """Wait so many seconds."""

    seconds: float


Step = Send | Sleep
Flow = Generator[Step, httpx.Response | None, T]


@dataclass(frozen=True)
class Patience:
    """How often and how long to retry.

    Every request of this API may be repeated: measurements are named by their content.

    Args:
        retries: after the first attempt.
        longest_wait: a `Retry-After` beyond this many seconds is not waited for.
    """

    retries: int = 4
    longest_wait: float = 60.0

    def send(self, step: Send) -> Flow[httpx.Response]:
        """The response below 400.

        Raises:
            Refused, JobFailed, ServiceAway.
        """
        for attempt in range(self.retries + 1):
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**attempt) * (0.5 + random.random() / 2)
            try:
                response = yield step
            except httpx.TransportError as error:
                if attempt == self.retries:
                    raise ServiceAway(f"no answer: {error or type(error).__name__}") from error
                yield Sleep(pause)
                continue
            assert response is not None
            if response.status_code < 400:
                return response
            problem = _problem(response)
            if "job" in problem:
                raise JobFailed(
                    str(problem.get("code")),
                    str(problem.get("detail")),
                    retryable=problem.get("code") in _TRANSIENT,
                )
            if response.status_code not in RETRIED:
                if response.status_code >= 500:
                    raise ServiceAway(str(Refused(response.status_code, problem)))
                raise Refused(response.status_code, problem)
            asked = retry_after(response.headers.get("Retry-After"))
            pause = pause if asked is None else asked
            if attempt == self.retries or pause > self.longest_wait:
                raise ServiceAway(str(Refused(response.status_code, problem)))
            yield Sleep(pause)
        raise AssertionError("unreachable")


def retry_after(value: str | None) -> float | None:
    """Seconds that a `Retry-After` header asks for: a number or an HTTP date (RFC 9110)."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())


def _problem(response: httpx.Response) -> Json:
    try:
        problem = response.json()
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}
