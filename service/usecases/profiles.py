"""Ask for a profile: refuse what may not be, join or queue what may, and find what is there."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import redis.asyncio

from service.contract.errors import ModelNotAllowed, ProfileNotFound
from service.contract.jobs import Job
from service.contract.models import WorkerModels
from service.contract.profile_requests import ProfileRequest
from service.store.jobs import JobStore, Submission
from service.store.keys import QueueName
from service.store.profiles import ProfileStore, StoredProfile
from service.store.registry import served, workers
from service.usecases import budget, foreseen, views

_COMMIT = re.compile(r"[0-9a-f]{40}")
_ROSTER_SECONDS = 2.0


@dataclass(frozen=True)
class Policy:
    """What the operator admits.

    Args:
        allowed_models: fnmatch patterns, one of which a model id must match.
        max_cost: bound on `budget.cost` of what goes to the CPU queue.
        max_cost_gpu: of what goes to the GPU queue.
    """

    allowed_models: tuple[str, ...]
    max_cost: float
    max_cost_gpu: float


@dataclass
class Profiles:
    """The use case, over the stores. One per gateway process."""

    jobs: JobStore
    store: ProfileStore
    client: redis.asyncio.Redis
    policy: Policy
    clock: Callable[[], float] = time.monotonic
    _roster: tuple[float, list[WorkerModels]] = (-1e9, [])
    _served: frozenset[QueueName] = frozenset()
    _calling: asyncio.Future[list[WorkerModels]] | None = None

    async def submit(self, request: ProfileRequest, owner: str | None, trace: str) -> Submission:
        """Accept a request: any number of equal ones are one job.

        Args:
            request: validated.
            owner: digest of the caller's key; None without keys.
            trace: id of the HTTP request.

        Raises:
            ModelNotAllowed: no pattern of the allow-list matches.
            TooLong: see `foreseen.check`.
            TooLarge: it costs more than its queue allows.
            QueueFull: too many wait already.
            StoreUnavailable: Redis is away.
        """
        self._check_model(request)
        foreseen.check(request)
        queue = await self._queue()
        limit = self.policy.max_cost_gpu if queue == "gpu" else self.policy.max_cost
        budget.check(request, limit, queue)
        return await self.jobs.submit(
            request.job_id,
            request.model_dump_json(exclude_defaults=True).encode(),
            queue=queue,
            cost=budget.cost(request),
            high=request.priority == "high",
            pinned=is_pinned(request),
            owner_key=owner,
            trace=trace,
            private=request.confidential,
        )

    async def wait(self, job: Job, seconds: float) -> Job:
        """The job at its end, or as it stands after so long."""
        return await self.jobs.wait(job.id, seconds) if seconds > 0 else job

    async def find(self, profile_id: str) -> StoredProfile:
        """A stored profile; notes its use.

        Raises:
            ProfileNotFound: there is none.
        """
        stored = await self.store.get(profile_id)
        if stored is None:
            raise ProfileNotFound(f"no profile {profile_id}, or it was evicted")
        await self.store.touch(profile_id)
        return stored

    async def load(self, profile_id: str) -> bytes:
        """The JSON document of a profile: body and envelope as one object.

        Raises:
            ProfileNotFound: there is none.
        """
        stored = await self.find(profile_id)
        return views.joined(stored.body, stored.envelope)

    async def roster(self, *, fresh: bool = False) -> list[WorkerModels]:
        """The live workers, asked for at most every two seconds unless `fresh`."""
        since, known = self._roster
        if not fresh and self.clock() - since <= _ROSTER_SECONDS:
            return known
        # One call at a time, and its failure is everybody's: behind a lock, callers of a store that
        # hangs would each wait out the timeouts of all before them.
        if self._calling is None or self._calling.done():
            self._calling = asyncio.ensure_future(self._call_roll())
        return await asyncio.shield(self._calling)

    async def _call_roll(self) -> list[WorkerModels]:
        known = await workers(self.client)
        self._served = await served(self.client)
        self._roster = (self.clock(), known)
        return known

    def _check_model(self, request: ProfileRequest) -> None:
        if not any(fnmatchcase(request.model, pattern) for pattern in self.policy.allowed_models):
            raise ModelNotAllowed(
                "this service does not admit the model; GET /v1/models lists what it can load",
                field="model",
            )

    async def _queue(self) -> QueueName:
        """The GPU queue while a GPU worker lives or may be starting anew, else the CPU queue."""
        lives = any(worker.queue == "gpu" for worker in await self.roster())
        return "gpu" if lives or "gpu" in self._served else "cpu"


def is_pinned(request: ProfileRequest) -> bool:
    """Whether the request means the same for ever: a commit, a demo file or a preset, and documents
    that cannot change as the operator's folders may.
    """
    if request.documents.source == "corpus" or request.model.startswith("local:"):
        return False
    if request.model.startswith(("demo:", "preset:")):
        return True
    return request.revision is not None and bool(_COMMIT.fullmatch(request.revision))
