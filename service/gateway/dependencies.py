"""What routes ask for, as annotated types. All asynchronous: a synchronous one costs a thread.

Pools of threads with a bounded backlog: one per kind of work, so that none waits for another.

Waits for a job that end with their caller, and no more of them than one caller may hold open.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Final, TypedDict, TypeVar

import redis.asyncio
from fastapi import Depends, Header, Path, Query, Request
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from lacuna import views
from lacuna.contract.base import DIGEST_PATTERN
from lacuna.contract.errors import QueueFull, RateLimited
from lacuna.contract.jobs import Job
from lacuna.contract.profiles import MAX_BINS
from lacuna.pictures import profile_png, profile_svg
from service import logs
from service.answers.placements import TokenCounts
from service.answers.profiles import Profiles
from service.gateway.metrics import Metrics
from service.gateway.representations import Caching, Key, Memory, Representation, represent, wait_of
from service.settings import Settings
from service.store.connection import cancel_tasks

T = TypeVar("T")
_BACKLOG = 64


class Pool:
    """Runs calls off the event loop.

    Args:
        name: of its threads.
        threads: how many calls run at once.
        backlog: how many may run or wait.
    """

    def __init__(self, name: str, threads: int, backlog: int = _BACKLOG) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._backlog = backlog
        self._held = 0

    async def run(self, call: Callable[..., T], *arguments: Any) -> T:
        """The result of `call`.

        Raises:
            QueueFull: too many wait for this pool already.
        """
        if self._held >= self._backlog:
            raise QueueFull("too many computations at once", retry_after=1.0)
        self._held += 1
        try:
            loop = asyncio.get_running_loop()
            # With the context, so that what is logged there carries the request's id.
            within = contextvars.copy_context().run
            return await loop.run_in_executor(self._executor, within, call, *arguments)
        finally:
            self._held -= 1

    def close(self) -> None:
        """Let go of what waits; what runs ends by itself."""
        self._executor.shutdown(wait=False, cancel_futures=True)


MOST: Final = 1_024
"""Open waits and event streams of one caller in one process: a quarter of its connections."""


class Waits:
    """Counts the open waits of each caller."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._open: Counter[str | None] = Counter()

    @contextmanager
    def place(self, owner: str | None) -> Iterator[None]:
        """Hold a place; `owner` is None for the one anonymous caller.

        Raises:
            RateLimited: the caller holds as many as one may.
        """
        if self._open[owner] >= self._most:
            raise RateLimited(f"more than {self._most} waits are open", retry_after=5.0)
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
    while (await request.receive())["type"] != "http.disconnect":
        pass


_DRAWN_POSITIONS = 1_024
"""More points than pixels would only make the file larger."""


@dataclass
class Services:
    """What the gateway works with; built once per process."""

    settings: Settings
    client: redis.asyncio.Redis
    profiles: Profiles
    tokens: TokenCounts
    memory: Memory
    metrics: Metrics
    theory: Pool
    placing: Pool
    reading: Pool
    bodies: Pool
    waits: Waits = field(default_factory=Waits)
    _making: dict[Key, asyncio.Future[Representation]] = field(default_factory=dict)

    @property
    def caching(self) -> Caching:
        """Profiles may be shared by caches only while everybody may read them."""
        return Caching(private=bool(self.settings.api_keys))

    async def wait(self, request: Request, owner: str | None, job: Job, seconds: float) -> Job:
        """The job at its end, or as it stands after so long.

        Raises:
            RateLimited: the caller waits for too many already.
            ClientDisconnect: the caller has left.
        """
        if seconds <= 0:
            return job
        with self.waits.place(owner):
            return await while_connected(request, self.profiles.wait(job, seconds))

    def close(self) -> None:
        """Let go of what waits for a thread."""
        for pool in (self.theory, self.placing, self.reading, self.bodies):
            pool.close()

    async def representation(
        self, profile_id: str, form: str = "json", bins: int | None = None
    ) -> Representation:
        """One format of a profile, or its rows ("series"), from memory or made now.

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
            making.add_done_callback(partial(self._made, key))
        # One caller who goes away does not take the bytes from the others.
        return await asyncio.shield(making)

    async def _make(self, key: Key) -> Representation:
        profile_id, form, bins = key
        document = await self.profiles.load(profile_id)
        return await self.reading.run(_represent, document, form, bins, self.caching)

    def _made(self, key: Key, done: asyncio.Future[Representation]) -> None:
        """Keep what was made, unless the profile was forgotten meanwhile."""
        made = not done.cancelled() and done.exception() is None
        if self._making.get(key) is done:
            del self._making[key]
            if made:
                self.memory.put(key, done.result())

    async def view(self, compute: Callable[[], BaseModel]) -> Representation:
        """What is computed from immutable profiles, in the pool for reading; held by nobody."""

        def made() -> Representation:
            return represent(compute().model_dump_json().encode(), "view", self.caching)

        return await self.reading.run(made)

    def forget(self, profile_id: str) -> None:
        """Drop every representation of a profile, made or in the making."""
        self.memory.forget(profile_id)
        for key in [key for key in self._making if key[0] == profile_id]:
            del self._making[key]


def _represent(document: bytes, form: str, bins: int | None, caching: Caching) -> Representation:
    if form == "json" and bins is None:
        return represent(document, form, caching)
    profile = views.parse(document)
    if form == "series":
        rows = json.dumps(views.rows(profile, bins), separators=(",", ":"))
        return represent(rows.encode(), form, caching)
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
    # `prefer` is what the OpenAPI document shows; a field that is sent twice is one list.
    asked = wait_of(",".join(request.headers.getlist("prefer"))) if prefer else 0.0
    return min(asked, (await _services(request)).settings.max_wait_seconds)


async def _job_id(
    job_id: Annotated[str, Path(pattern=DIGEST_PATTERN, description="Id of a job.")],
) -> str:
    logs.job_id.set(job_id)
    return job_id


async def _place(services: ServicesHere, owner: Owner) -> AsyncIterator[None]:
    with services.waits.place(owner):
        yield


async def _job(job_id: JobId, services: ServicesHere, owner: Owner) -> Job:
    return await services.profiles.job(job_id, owner)


ServicesHere = Annotated[Services, Depends(_services)]
Owner = Annotated[str | None, Depends(_owner)]
RequestId = Annotated[str, Depends(_request_id)]
Wait = Annotated[float, Depends(_wait)]
JobId = Annotated[str, Depends(_job_id)]
Place = Annotated[None, Depends(_place)]
OwnJob = Annotated[Job, Depends(_job)]
ProfileId = Annotated[str, Path(pattern=DIGEST_PATTERN, description="Id of a profile.")]
Bins = Annotated[
    int | None,
    Query(ge=1, le=MAX_BINS, description="Resample every curve to so many bins, mass for mass."),
]
