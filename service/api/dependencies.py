"""What routes ask for, as annotated types. All asynchronous: a synchronous one costs a thread."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict, TypeVar

import redis.asyncio
from fastapi import Depends, Header, Path, Query, Request

from service.api.export import Caching, Key, Memory, Representation, represent
from service.api.metrics import Metrics
from service.contract.errors import QueueFull
from service.contract.jobs import Job
from service.contract.views import MAX_BINS
from service.render import profile_png, profile_svg
from service.settings import Settings
from service.usecases import views
from service.usecases.profiles import Profiles
from service.usecases.token_counts import TokenCounts

T = TypeVar("T")
_WAIT = re.compile(r"""wait\s*=\s*"?(\d{1,6})"?""", re.IGNORECASE)
_DRAWN_POSITIONS = 1_024
"""More points than pixels would only make the file larger."""
_THEORY_BACKLOG = 64
ID = r"[0-9a-f]{32}"


@dataclass
class Services:
    """What the gateway works with; built once per process."""

    settings: Settings
    client: redis.asyncio.Redis
    profiles: Profiles
    tokens: TokenCounts
    memory: Memory
    metrics: Metrics
    pool: Executor
    _computing: int = 0
    _making: dict[Key, asyncio.Future[Representation]] = field(default_factory=dict)

    @property
    def caching(self) -> Caching:
        """Profiles may be shared by caches only while everybody may read them."""
        return Caching(private=bool(self.settings.api_keys))

    async def compute(self, call: Callable[..., T], *arguments: Any) -> T:
        """Run a computation in the pool.

        Raises:
            QueueFull: too many wait for the pool already.
        """
        if self._computing >= _THEORY_BACKLOG:
            raise QueueFull("too many computations at once", retry_after=1.0)
        self._computing += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.pool, call, *arguments)
        finally:
            self._computing -= 1

    async def representation(
        self, profile_id: str, form: str = "json", bins: int | None = None
    ) -> Representation:
        """One format of a profile, from memory or made now.

        Raises:
            ProfileNotFound: there is none.
        """
        key: Key = (profile_id, form, bins)
        kept = self.memory.get(key)
        if kept is not None:
            return kept
        # A thousand waits end in the same moment and want the same bytes: make them once.
        making = self._making.get(key)
        if making is None:
            making = self._making[key] = asyncio.ensure_future(self._make(key))
            making.add_done_callback(lambda done: self._making.pop(key, None))
        # One caller who goes away does not take the bytes from the others.
        return await asyncio.shield(making)

    async def _make(self, key: Key) -> Representation:
        profile_id, form, bins = key
        document = await self.profiles.load(profile_id)
        kept = await self.compute(_represent, document, form, bins, self.caching)
        self.memory.put(key, kept)
        return kept


def _represent(document: bytes, form: str, bins: int | None, caching: Caching) -> Representation:
    if form == "json" and bins is None:
        return represent(document, form, caching)
    profile = views.parse(document)
    if form == "csv":
        return represent(views.csv(profile, bins), form, caching)
    if form != "json" and bins is None and len(profile.measured.influence) > _DRAWN_POSITIONS:
        bins = _DRAWN_POSITIONS
    if bins is not None:
        profile = views.binned(profile, bins)
    if form == "json":
        return represent(profile.model_dump_json().encode(), form, caching)
    picture = profile_svg(profile) if form == "svg" else profile_png(profile)
    return represent(picture, form, caching)


class State(TypedDict):
    """What the lifespan hands to every request."""

    services: Services


async def _services(request: Request) -> Services:
    found = request.state.services
    assert isinstance(found, Services)
    return found


async def _owner(request: Request) -> str | None:
    owner = request.scope.get("lacuna.owner")
    return str(owner) if owner else None


async def _request_id(request: Request) -> str:
    return str(request.scope["lacuna.request_id"])


async def _wait(
    request: Request,
    prefer: Annotated[
        str | None,
        Header(description="`wait=SECONDS`: answer when the job ends, at latest then (RFC 7240)."),
    ] = None,
) -> float:
    found = _WAIT.search(prefer) if prefer else None
    if found is None:
        return 0.0
    return min(float(found[1]), (await _services(request)).settings.max_wait_seconds)


async def _job(job_id: JobId, services: ServicesHere, owner: Owner) -> Job:
    return await services.profiles.jobs.get(job_id, owner)


ServicesHere = Annotated[Services, Depends(_services)]
Owner = Annotated[str | None, Depends(_owner)]
RequestId = Annotated[str, Depends(_request_id)]
Wait = Annotated[float, Depends(_wait)]
JobId = Annotated[str, Path(pattern=f"^{ID}$", description="Id of a job.")]
OwnJob = Annotated[Job, Depends(_job)]
ProfileId = Annotated[str, Path(pattern=f"^{ID}$", description="Id of a profile.")]
Bins = Annotated[
    int | None,
    Query(ge=1, le=MAX_BINS, description="Resample every curve to so many bins, mass for mass."),
]
