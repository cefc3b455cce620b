"""Every call of the API as a generator, without input or output: `Client` and `AsyncClient` drive
the same ones.

A flow yields `Send` and is resumed with the response, or with httpx's exception; or it yields
`Sleep`. What it returns is the answer.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import httpx
from pydantic import ValidationError

from lacuna.client.answers import Comparison, ExperimentResult, PlacementResponse, Profile
from lacuna.client.errors import (
    JobFailed,
    Refused,
    ServiceAway,
    UnexpectedAnswer,
    WaitedTooLong,
    is_retryable,
)
from lacuna.contract.base import Wire
from lacuna.contract.calibrations import Calibration
from lacuna.contract.endpoints import EndpointEstimate
from lacuna.contract.experiment_requests import ExperimentEstimate
from lacuna.contract.jobs import Job
from lacuna.contract.models import ModelCatalogue
from lacuna.contract.profiles import ProfilePage, ProfileSummary
from lacuna.contract.rollouts import RolloutResponse

Json = dict[str, Any]
Answer = TypeVar("Answer", bound=Wire)
T = TypeVar("T")

RETRIED = frozenset({429, 502, 503, 504})
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 8.0
_OUTAGE_SECONDS = 60.0
"""How long a service may be away during a wait for a job: it may be restarting."""
_HELD_SECONDS, _HELD_WITH_PROGRESS = 10.0, 1.0
"""How long the service is asked to hold an answer; shorter when the caller watches progress."""
_BETWEEN_POLLS = 0.2
_PAGE = 100
_EXPERIMENTS = "/v1/experiments"
_end: ContextVar[float] = ContextVar("lacuna_end", default=math.inf)
"""When the caller stops waiting, on the monotonic clock."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """A call inside makes no retry that begins after these seconds: it raises why the last failed.

    Whoever gives up on the call from outside would only know that it took too long.
    """
    token = _end.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _end.reset(token)


@dataclass(frozen=True)
class Send:
    """Make this request.

    Args:
        body: sent as JSON; None sends no body.
        held: seconds for which the service may hold the answer back (`Prefer: wait`).
    """

    method: str
    path: str
    body: Json | None = None
    query: Mapping[str, str | int] = field(default_factory=dict)
    held: int = 0


@dataclass(frozen=True)
class Sleep:
    """Wait this many seconds."""

    seconds: float


Flow = Generator[Send | Sleep, httpx.Response | None, T]


@dataclass(frozen=True)
class Retries:
    """How often and how long to retry.

    Every request of this API may be repeated: measurements are named by their content.

    Args:
        count: attempts after the first.
        longest_wait: a `Retry-After` beyond this many seconds raises at once.
    """

    count: int = 4
    longest_wait: float = 60.0

    def send(self, step: Send, outage: float = 0.0) -> Flow[httpx.Response]:
        """The response, if its status is 2xx.

        Args:
            outage: seconds for which retries go on even beyond `count`.

        Raises:
            Refused: the service says no.
            JobFailed: the service waited for a job, and it failed.
            ServiceAway: no answer, or 429, 502, 503 or 504 after all retries; any other 5xx.
        """
        attempt, began = 0, time.monotonic()
        while True:
            try:
                response = yield step
            except httpx.RequestError as error:
                failure = ServiceAway(_no_answer(error))
                failure.__cause__ = error
                asked = None
            else:
                assert response is not None
                if response.is_success:
                    return response
                failure = _unavailable(response)
                asked = retry_after(response.headers.get("Retry-After"))
            backoff = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(attempt, 10))
            pause = backoff * (0.5 + random.random() / 2) if asked is None else asked
            hopeless = failure.status is not None and failure.status not in RETRIED
            now = time.monotonic()
            late = now - began + pause > outage
            unheard = now + pause > _end.get()
            if hopeless or unheard or pause > self.longest_wait or (attempt >= self.count and late):
                raise failure
            yield Sleep(pause)
            attempt += 1


def _no_answer(error: httpx.RequestError) -> str:
    reason = str(error) or type(error).__name__
    try:
        url = error.request.url
    except RuntimeError:  # of a transport that does not say
        return f"the service does not answer: {reason}"
    return f"the service at {url.scheme}://{url.netloc.decode()} does not answer: {reason}"


def _unavailable(response: httpx.Response) -> ServiceAway:
    """What to raise when retries do not help; raises at once what no retry can help.

    Raises:
        Refused, JobFailed: see `Retries.send`.
    """
    status, problem = response.status_code, _problem(response)
    refusal = Refused.of_problem(status, problem, response.reason_phrase)
    if "job" in problem:
        raise JobFailed(refusal.code, refusal.detail, retryable=is_retryable(refusal.code))
    if status not in RETRIED and status < 500:
        raise refusal
    return ServiceAway(str(refusal), status=status)


def _problem(response: httpx.Response) -> Json:
    try:
        problem = response.json()
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}


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


def submit(retries: Retries, request: Json) -> Flow[Job | Profile]:
    """POST /v1/profiles: the job, or the profile where it is known already."""
    response = yield from retries.send(Send("POST", "/v1/profiles", request))
    if response.status_code == httpx.codes.ACCEPTED:
        return _read(Job, response)
    return _read(Profile, response)


def wait_for(
    retries: Retries, job: Job, timeout: float, on_progress: Callable[[Job], None] | None
) -> Flow[Job]:
    """The job at its end.

    Raises:
        WaitedTooLong: it is not over after `timeout` seconds.
        JobFailed: it ended without a result.
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
        held = min(left, _HELD_SECONDS if on_progress is None else _HELD_WITH_PROGRESS)
        step = Send("GET", f"/v1/jobs/{job.id}", held=max(1, round(held)))
        response = yield from retries.send(step, outage=min(left, _OUTAGE_SECONDS))
        job = _read(Job, response)
        if not job.finished and time.monotonic() - asked < _BETWEEN_POLLS:
            yield Sleep(_BETWEEN_POLLS)
    if job.state != "done":
        raise JobFailed.of_job(job)
    return job


def profile(
    retries: Retries, request: Json, timeout: float, on_progress: Callable[[Job], None] | None
) -> Flow[Profile]:
    """Ask, wait, read."""
    found = yield from submit(retries, request)
    if isinstance(found, Profile):
        return found
    done = yield from wait_for(retries, found, timeout, on_progress)
    return (yield from read_profile(retries, done.profile_id or ""))


def read_profile(retries: Retries, profile_id: str) -> Flow[Profile]:
    """GET /v1/profiles/{id}."""
    return (yield from _get(Profile, retries, f"/v1/profiles/{profile_id}"))


def export(retries: Retries, profile_id: str, form: str, curve: str | None) -> Flow[bytes]:
    """GET /v1/profiles/{id}.{form}."""
    query: dict[str, str | int] = {} if curve is None else {"curve": curve}
    address = f"/v1/profiles/{profile_id}.{form}"
    response = yield from retries.send(Send("GET", address, query=query))
    return response.content


def estimate(retries: Retries, request: Json) -> Flow[EndpointEstimate]:
    """POST /v1/profiles with `dry_run`."""
    body = {**request, "dry_run": True}
    return _read(EndpointEstimate, (yield from retries.send(Send("POST", "/v1/profiles", body))))


def submit_experiment(retries: Retries, request: Json) -> Flow[Job | ExperimentResult]:
    """POST /v1/experiments: the job, or the result where it is known already."""
    response = yield from retries.send(Send("POST", _EXPERIMENTS, request))
    if response.status_code == httpx.codes.ACCEPTED:
        return _read(Job, response)
    return _read(ExperimentResult, response)


def experiment(
    retries: Retries, request: Json, timeout: float, on_progress: Callable[[Job], None] | None
) -> Flow[ExperimentResult]:
    """Ask, wait, read."""
    found = yield from submit_experiment(retries, request)
    if isinstance(found, ExperimentResult):
        return found
    done = yield from wait_for(retries, found, timeout, on_progress)
    return (yield from read_experiment(retries, done.id))


def estimate_experiment(retries: Retries, request: Json) -> Flow[ExperimentEstimate]:
    """POST /v1/experiments with `dry_run`."""
    step = Send("POST", _EXPERIMENTS, {**request, "dry_run": True})
    return _read(ExperimentEstimate, (yield from retries.send(step)))


def read_experiment(retries: Retries, experiment_id: str) -> Flow[ExperimentResult]:
    """GET /v1/experiments/{id}."""
    return (yield from _get(ExperimentResult, retries, f"{_EXPERIMENTS}/{experiment_id}.json"))


def experiment_rows(retries: Retries, experiment_id: str) -> Flow[bytes]:
    """GET /v1/experiments/{id}.csv."""
    response = yield from retries.send(Send("GET", f"{_EXPERIMENTS}/{experiment_id}.csv"))
    return response.content


def forget_experiment(retries: Retries, experiment_id: str) -> Flow[None]:
    """DELETE /v1/experiments/{id}."""
    yield from retries.send(Send("DELETE", f"{_EXPERIMENTS}/{experiment_id}"))


def list_profiles(retries: Retries, model: str | None, limit: int) -> Flow[ProfilePage]:
    """GET /v1/profiles, as often as `limit` needs."""
    found: list[ProfileSummary] = []
    query: dict[str, str | int] = {} if model is None else {"model": model}
    while True:
        query["limit"] = max(1, min(limit - len(found), _PAGE))
        page = yield from _get(ProfilePage, retries, "/v1/profiles", query)
        found += page.items
        if page.next is None or len(found) >= limit:
            return ProfilePage(items=found, next=page.next)
        query["cursor"] = page.next


def read_job(retries: Retries, job_id: str) -> Flow[Job]:
    """GET /v1/jobs/{id}."""
    return (yield from _get(Job, retries, f"/v1/jobs/{job_id}"))


def cancel_job(retries: Retries, job_id: str) -> Flow[Job]:
    """DELETE /v1/jobs/{id}."""
    return _read(Job, (yield from retries.send(Send("DELETE", f"/v1/jobs/{job_id}"))))


def place_chunks(retries: Retries, request: Json) -> Flow[PlacementResponse]:
    """POST /v1/placements."""
    response = yield from retries.send(Send("POST", "/v1/placements", request))
    return _read(PlacementResponse, response)


def calibrate(retries: Retries, request: Json) -> Flow[Calibration]:
    """POST /v1/calibrations."""
    response = yield from retries.send(Send("POST", "/v1/calibrations", request))
    return _read(Calibration, response)


def rollout(retries: Retries, request: Json) -> Flow[RolloutResponse]:
    """POST /v1/rollouts."""
    response = yield from retries.send(Send("POST", "/v1/rollouts", request))
    return _read(RolloutResponse, response)


def compare(retries: Retries, query: Mapping[str, str | int]) -> Flow[Comparison]:
    """GET /v1/comparisons."""
    return (yield from _get(Comparison, retries, "/v1/comparisons", query))


def models(retries: Retries) -> Flow[ModelCatalogue]:
    """GET /v1/models."""
    return (yield from _get(ModelCatalogue, retries, "/v1/models"))


def _get(
    model: type[Answer], retries: Retries, path: str, query: Mapping[str, str | int] | None = None
) -> Flow[Answer]:
    return _read(model, (yield from retries.send(Send("GET", path, query=query or {}))))


def _read(model: type[Answer], response: httpx.Response) -> Answer:
    try:
        return model.of_answer(response.content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UnexpectedAnswer(
            f"{response.url} does not answer with a {model.__name__} that this version can read: "
            + (f"{where}: {first['msg']}" if where else first["msg"])
        ) from error
