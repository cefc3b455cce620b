"""What routes work with: open waits, the services of this process, and the dependencies.

`Services` is built once by `app`; the annotated types at the end are what routes ask for. All of
them are asynchronous, because a synchronous dependency costs a thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import re
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypedDict, TypeVar

import redis.asyncio
from fastapi import Depends, Header, Path, Query, Request, Response
from starlette.requests import ClientDisconnect

from lacuna.contract.base import DIGEST_PATTERN
from lacuna.contract.errors import RateLimited, StoreUnavailable
from lacuna.contract.jobs import Job
from lacuna.contract.placements import PlacementRequest, PlacementResponse
from lacuna.contract.profiles import MAX_BINS
from service import logs
from service.answers import placements
from service.answers.drift import Drifts
from service.answers.experiments import Experiments
from service.answers.profiles import Profiles
from service.answers.token_counts import TokenCounts
from service.gateway.metrics import NEWEST, Metrics, model_metrics
from service.gateway.pools import Pool
from service.gateway.representations import Representations
from service.settings import ApiKey, Settings
from service.store.connection import cancel_tasks
from service.store.monitoring import store_metrics
from service.store.queue import JobRecord, Submission

T = TypeVar("T")

MAX_OPEN_WAITS: Final = 1_024
"""Open waits and event streams of one caller in one process: a quarter of its connections."""


class OpenWaits:
    """Counts and bounds the open waits of each caller.

    Args:
        most: of one caller.
    """

    def __init__(self, most: int = MAX_OPEN_WAITS) -> None:
        self._most = most
        self._open: Counter[str | None] = Counter()

    @contextmanager
    def one_more(self, owner: str | None) -> Iterator[None]:
        """Count one wait while the context lasts; `owner` is None for the anonymous caller.

        Raises:
            RateLimited: the caller has too many already.
        """
        if self._open[owner] >= self._most:
            raise RateLimited(f"more than {self._most} of your waits are open", retry_after=5.0)
        self._open[owner] += 1
        try:
            yield
        finally:
            self._open[owner] -= 1
            if not self._open[owner]:
                del self._open[owner]


async def while_connected(request: Request, call: Coroutine[Any, Any, T]) -> T:
    """What `call` returns, unless the client leaves first: then it is cancelled.

    Args:
        request: its body must have been read.
        call: what the client waits for.

    Raises:
        ClientDisconnect: nobody is left to answer.
    """
    waiting = asyncio.create_task(call)
    leaving = asyncio.create_task(_left(request))
    try:
        await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise ClientDisconnect
        return waiting.result()
    finally:
        await cancel_tasks((waiting, leaving))


async def _left(request: Request) -> None:
    """Return when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


@dataclass
class Services:
    """What the gateway works with; built once per process by `app`.

    Attributes:
        curves: what placements keep of profiles.
        counter: of the texts of placements.
        drifts: which models moved, for the metrics.
        rollout_pool: for rollouts, which take up to seconds.
        placement_pool: for large placements, for calibrations and for what experiments need.
        parsing_pool: for long request bodies.
        pools: all pools, to be closed at the end.
    """

    settings: Settings
    client: redis.asyncio.Redis
    profiles: Profiles
    curves: placements.Curves
    counter: TokenCounts
    experiments: Experiments
    drifts: Drifts
    representations: Representations
    metrics: Metrics
    rollout_pool: Pool
    placement_pool: Pool
    parsing_pool: Pool
    pools: list[Pool]
    waits: OpenWaits = field(default_factory=OpenWaits)

    async def wait(
        self, request: Request, owner: str | None, job: JobRecord, seconds: float
    ) -> JobRecord:
        """The job at its end, or as it stands after `seconds`.

        Raises:
            RateLimited: the caller has too many open waits already.
            ClientDisconnect: the caller has left.
        """
        if seconds <= 0:
            return job
        with self.waits.one_more(owner):
            return await while_connected(request, self.profiles.wait(job, seconds))

    async def submitted(
        self, request: Request, owner: str | None, submission: Submission, seconds: float
    ) -> JobRecord:
        """Count a submission; its job at its end, or as it stands after `seconds`.

        Raises:
            RateLimited, ClientDisconnect: as `wait`.
        """
        logs.job_id.set(submission.job.id)
        job = await self.wait(request, owner, submission.job, seconds)
        outcome = "created" if submission.created else "joined"
        known = not submission.created and submission.job.state == "done"
        self.metrics.submission("cached" if known else outcome)
        return job

    async def place(self, request: PlacementRequest) -> PlacementResponse:
        """Order chunks. Raises as `placements.answer`."""
        return await placements.answer(
            request, self.profiles, self.counter, self.placement_pool.run, self.curves
        )

    async def metrics_text(self) -> bytes:
        """Everything for Prometheus; without the store's part while Redis is away."""
        try:
            store = await store_metrics(self.client)
            newest = (await self.profiles.summaries(limit=NEWEST)).items
            drifts = await self.drifts.among(newest)
        except StoreUnavailable:
            store, newest, drifts = None, [], []
        return self.metrics.text(store) + model_metrics(newest, drifts)


address_prefix: contextvars.ContextVar[str] = contextvars.ContextVar("address_prefix", default="")
"""What a proxy in front has before every path, as the caller sees it; set by `edge`."""


def job_address(job_id: str) -> str:
    """Where a job is read."""
    return f"{address_prefix.get()}/v1/jobs/{job_id}"


def profile_address(profile_id: str) -> str:
    """Where a profile is read."""
    return f"{address_prefix.get()}/v1/profiles/{profile_id}"


def experiment_address(job_id: str) -> str:
    """Where the result of an experiment is read."""
    return f"{address_prefix.get()}/v1/experiments/{job_id}"


def job_answer(record: JobRecord) -> Job:
    """A job as the API answers it: with its result's address in place of the id."""
    fields = dict(vars(record))
    profile_id = fields.pop("profile_id")
    done = record.kind == "experiment" and record.state == "done"
    return Job(
        **fields,
        profile=None if profile_id is None else profile_address(profile_id),
        experiment=experiment_address(record.id) if done else None,
    )


RETRY_SECONDS = 2
"""When to ask again for a job whose end nobody can estimate."""


def accepted(record: JobRecord, headers: dict[str, str]) -> Response:
    """202 with a job, where to read it and when to ask again."""
    pause = min(max(record.eta_seconds or RETRY_SECONDS, 1), 30)
    headers |= {"Location": job_address(record.id), "Retry-After": str(round(pause))}
    return Response(job_answer(record).model_dump_json(), 202, headers, "application/json")


class State(TypedDict):
    """What the lifespan hands to every request."""

    services: Services


async def _services(request: Request) -> Services:
    found = request.state.services
    assert isinstance(found, Services)
    return found


async def _owner(request: Request) -> str | None:
    key: ApiKey | None = request.scope.get("lacuna.key")
    return None if key is None else key.digest


async def _request_id(request: Request) -> str:
    return str(request.scope["lacuna.request_id"])


# A quoted string without end runs to the end, a lone backslash included. Every character has only
# one way to match, so there is nothing to backtrack to and the time stays linear.
_PREFERENCE = re.compile(r"""(?:[^,"]|"(?:[^"\\]|\\.)*(?:"|\\?\Z))+""", re.DOTALL)
_WAIT = re.compile(r"""\s*wait\s*=\s*(?:(\d{1,18})|"(\d{1,18})")\s*""", re.IGNORECASE | re.ASCII)


def _preferred_wait(prefer: str) -> float:
    """Seconds of the first `wait` among the preferences (RFC 7240); 0 without one.

    A parameter of another preference, as in `handling=lenient; wait=2`, does not count.
    """
    for preference in _PREFERENCE.findall(prefer):
        found = _WAIT.fullmatch(preference.partition(";")[0])
        if found is not None:
            return float(found[1] or found[2])
    return 0.0


async def _wait(
    request: Request,
    prefer: Annotated[
        str | None,
        Header(description="`wait=SECONDS`: answer when the job ends, at latest then (RFC 7240)."),
    ] = None,
) -> float:
    # `prefer` is what the OpenAPI document shows; a field that is sent twice is one list.
    asked = _preferred_wait(",".join(request.headers.getlist("prefer"))) if prefer else 0.0
    return min(asked, (await _services(request)).settings.max_wait_seconds)


async def _job_id(
    job_id: Annotated[str, Path(pattern=DIGEST_PATTERN, description="Id of a job.")],
) -> str:
    logs.job_id.set(job_id)
    return job_id


async def _open_wait(services: ServicesHere, owner: Owner) -> AsyncIterator[None]:
    with services.waits.one_more(owner):
        yield


async def _job(job_id: JobId, services: ServicesHere, owner: Owner) -> JobRecord:
    return await services.profiles.job(job_id, owner)


ServicesHere = Annotated[Services, Depends(_services)]
Owner = Annotated[str | None, Depends(_owner)]
RequestId = Annotated[str, Depends(_request_id)]
Wait = Annotated[float, Depends(_wait)]
JobId = Annotated[str, Depends(_job_id)]
OpenWait = Annotated[None, Depends(_open_wait)]
OwnJob = Annotated[JobRecord, Depends(_job)]
ProfileId = Annotated[str, Path(pattern=DIGEST_PATTERN, description="Id of a profile.")]
Bins = Annotated[
    int | None,
    Query(ge=1, le=MAX_BINS, description="Resample every curve to so many bins, mass for mass."),
]
