"""Every call of the API as a generator of steps (`lacuna.client.flows`), for both clients alike.

One request with retries, without input or output.

A flow yields `Send` (and is resumed with the response, or with the transport's exception) or
`Sleep`; the clients drive it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import httpx

from lacuna.client.errors import JobFailed, LacunaError, Refused, ServiceAway, WaitedTooLong
from lacuna.client.types import (
    Chunk,
    Comparison,
    Job,
    Json,
    Placement,
    Profile,
    ProfileSummary,
    Rollout,
)

_POLL_SECONDS = 10.0
_BETWEEN_POLLS = 0.2


def submit(patience: Patience, request: Json) -> Flow[Job]:
    """Ask for a profile; a known one is a job that is done."""
    response = yield from patience.send(Send("POST", "/v1/profiles", request))
    answer = response.json()
    if response.status_code == httpx.codes.ACCEPTED:
        return Job.from_json(answer)
    return Job("", "done", 1.0, "known", None, None, answer["id"], None, answer)


def wait_for(
    patience: Patience, job: Job, timeout: float, on_progress: Callable[[Job], None] | None
) -> Flow[Job]:
    """The job at its end.

    Raises:
        WaitedTooLong: it is not over after `timeout` seconds.
        JobFailed: it ended without a profile.
    """
    end = time.monotonic() + timeout
    while True:
        if on_progress is not None:
            on_progress(job)
        if job.finished:
            break
        left = end - time.monotonic()
        if left <= 0:
            raise WaitedTooLong(job)
        asked = time.monotonic()
        # The service holds the answer until the job ends, or for so long; shorter when the caller
        # wants to see progress.
        held = min(left, 1.0 if on_progress is not None else _POLL_SECONDS)
        step = Send("GET", f"/v1/jobs/{job.id}", headers={"Prefer": f"wait={max(1, round(held))}"})
        response = yield from patience.send(step)
        job = Job.from_json(response.json())
        if not job.finished and time.monotonic() - asked < _BETWEEN_POLLS:
            yield Sleep(_BETWEEN_POLLS)
    if job.profile_id is None:
        failure = job.failure or {"code": job.state, "detail": job.message, "retryable": True}
        raise JobFailed(failure["code"], failure["detail"], retryable=failure["retryable"])
    return job


def profile(
    patience: Patience, request: Json, timeout: float, on_progress: Callable[[Job], None] | None
) -> Flow[Profile]:
    """Ask, wait, read."""
    job = yield from submit(patience, request)
    job = yield from wait_for(patience, job, timeout, on_progress)
    if "measured" in job.raw:
        return Profile.from_json(job.raw)
    assert job.profile_id is not None
    return (yield from read(patience, job.profile_id))


def read(patience: Patience, profile_id: str) -> Flow[Profile]:
    """One profile."""
    return Profile.from_json((yield from _get(patience, f"/v1/profiles/{profile_id}")))


def listing(patience: Patience, model: str | None, limit: int) -> Flow[list[ProfileSummary]]:
    """Summaries, newest first, over as many pages as `limit` needs."""
    found: list[ProfileSummary] = []
    query: dict[str, str | int | float] = {} if model is None else {"model": model}
    while len(found) < limit:
        query["limit"] = min(limit - len(found), 100)
        page = yield from _get(patience, "/v1/profiles", query)
        found += [ProfileSummary.from_json(item) for item in page["items"]]
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
    return found


def job(patience: Patience, job_id: str, *, cancel: bool = False) -> Flow[Job]:
    """Read or cancel a job."""
    step = Send("DELETE" if cancel else "GET", f"/v1/jobs/{job_id}")
    response = yield from patience.send(step)
    return Job.from_json(response.json())


def place(patience: Patience, request: Json) -> Flow[Placement]:
    """Order chunks."""
    response = yield from patience.send(Send("POST", "/v1/placements", request))
    return Placement.from_json(response.json())


def rollout(patience: Patience, request: Json) -> Flow[Rollout]:
    """Theory alone."""
    response = yield from patience.send(Send("POST", "/v1/rollouts", request))
    return Rollout.from_json(response.json())


def compare(patience: Patience, a: str, b: str, source: str) -> Flow[Comparison]:
    """Two profiles."""
    query = {"a": a, "b": b, "source": source}
    return Comparison.from_json((yield from _get(patience, "/v1/comparisons", query)))


def models(patience: Patience) -> Flow[Json]:
    """What the workers offer."""
    return (yield from _get(patience, "/v1/models"))


def placement_request(chunks: Iterable[Chunk | Mapping[str, Any]], options: Json) -> Json:
    """The body of POST /v1/placements; nothing of the caller's is changed.

    Raises:
        LacunaError: no curve is named, or a chunk is neither a Chunk nor a mapping.
    """
    listed = [_chunk(at, one) for at, one in enumerate(chunks)]
    given = {name: value for name, value in options.items() if value is not None}
    if not {"profile_id", "model", "density", "architecture"} & given.keys():
        raise LacunaError("give profile_id, model, density or architecture")
    return {**given, "chunks": listed}


def _chunk(at: int, given: object) -> Json:
    if isinstance(given, Chunk):
        return given.to_json()
    if isinstance(given, Mapping):
        return dict(given)
    raise LacunaError(
        f"chunks[{at}] is of type {type(given).__name__}: give a Chunk, or a mapping with id, "
        "tokens (or text) and relevance"
    )


def _get(
    patience: Patience, path: str, query: Mapping[str, str | int | float] | None = None
) -> Flow[Json]:
    response = yield from patience.send(Send("GET", path, query=query or {}))
    answer: Json = response.json()
    return answer


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
