"""Ask for a profile: refuse what cannot be measured, join or queue the rest, find what is there.

`Profiles` is the use case over the stores. Before anything is queued, `refuse_unmeasurable` says
what a worker would say after a wait, as far as the gateway can tell, and `refuse_too_costly`
compares the estimated cost with the operator's limit.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import redis.asyncio

from lacuna import views
from lacuna.architectures.table import DEMO, find, find_preset, measurable, presets
from lacuna.contract.endpoints import EndpointEstimate
from lacuna.contract.errors import (
    DocumentsUnusable,
    InvalidRequest,
    ModelNotAllowed,
    ModelNotFound,
    TooLarge,
    TooLong,
)
from lacuna.contract.jobs import JobKind
from lacuna.contract.models import ModelCatalogue, WorkerModels
from lacuna.contract.profile_requests import COSTLY_PREDICTION, ProfileRequest, cost
from lacuna.contract.profiles import ProfilePage
from service.answers import endpoints
from service.endpoints.table import Endpoints
from service.store import kinds, shipped
from service.store.keys import QueueName
from service.store.monitoring import Served, live_workers, served_queues
from service.store.profiles import ProfileStore, StoredProfile, profile_not_found
from service.store.queue import JobRecord, JobStore, Submission

ASSUMED_LAYERS, ASSUMED_HEADS, ASSUMED_WIDTH = 24, 16, 1_536
"""Size of a model that the gateway does not know, for it cannot ask the hub: some 700 million
parameters."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_WORKERS_SECONDS = 2.0
"""How long a list of the live workers is used."""


@dataclass(frozen=True)
class Policy:
    """What the operator admits.

    Args:
        allowed_models: fnmatch patterns; a model id must match one of them.
        max_cost: bound on `estimated_cost` of what goes to the CPU queue.
        max_cost_gpu: the same for the GPU queue.
    """

    allowed_models: tuple[str, ...]
    max_cost: float
    max_cost_gpu: float

    def admit(self, model: str) -> None:
        """Refuse a model that the allow-list does not have.

        Raises:
            ModelNotAllowed: no pattern matches.
        """
        if not any(fnmatchcase(model, pattern) for pattern in self.allowed_models):
            raise ModelNotAllowed(
                "this service does not admit the model; GET /v1/models lists what it can load",
                field="model",
            )


@dataclass
class Profiles:
    """The use case, over the stores. One per gateway process.

    Every method raises `StoreUnavailable` while Redis is away.
    """

    jobs: JobStore
    store: ProfileStore
    client: redis.asyncio.Redis
    policy: Policy
    endpoints: Endpoints = field(default_factory=lambda: Endpoints({}))
    clock: Callable[[], float] = time.monotonic
    _workers: tuple[float, list[WorkerModels]] = (-1e9, [])
    _served: Served = frozenset()
    _asking: asyncio.Future[list[WorkerModels]] | None = None

    async def submit(self, request: ProfileRequest, owner: str | None, trace: str) -> Submission:
        """Accept a request. Equal requests are one job.

        Args:
            request: validated.
            owner: digest of the caller's key; None without keys.
            trace: id of the HTTP request.

        Raises:
            ModelNotAllowed: no pattern of the allow-list matches.
            ModelNotFound, TooLong, DocumentsUnusable, InvalidRequest: see `refuse_unmeasurable`.
            TooLarge: it costs more than its queue allows.
            EndpointUnknown, BudgetSpent: see `endpoints.refuse`.
            QueueFull: too many wait already.
        """
        self.policy.admit(request.model)
        queue: QueueName = "endpoints"
        if request.of_endpoint:
            endpoints.refuse(request, self.endpoints)
        else:
            refuse_unmeasurable(request)
            queue = await self.queue("profile")
            limit = self.policy.max_cost_gpu if queue == "gpu" else self.policy.max_cost
            refuse_too_costly(request, limit, queue)
        return await self.jobs.submit(
            request.job_id,
            request.model_dump_json(exclude_defaults=True).encode(),
            queue=queue,
            high=request.priority == "high",
            pinned=is_pinned(request),
            owner_key=owner,
            trace=trace,
            private=request.confidential,
        )

    def estimate(self, request: ProfileRequest) -> EndpointEstimate:
        """What measuring an endpoint would take; nothing is asked of it.

        Raises:
            ModelNotAllowed, EndpointUnknown, TooLong: as `submit`.
        """
        self.policy.admit(request.model)
        return endpoints.estimated(request, self.endpoints)

    async def job(self, job_id: str, owner: str | None) -> JobRecord:
        """One job as its owner sees it.

        Raises:
            JobNotFound: there is none, or it is another owner's.
        """
        return await self.jobs.get(job_id, owner)

    async def wait(self, job: JobRecord, seconds: float) -> JobRecord:
        """The job at its end, or as it is after this many seconds."""
        return await self.jobs.wait(job.id, seconds) if seconds > 0 else job

    async def cancel(self, job_id: str, owner: str | None) -> JobRecord:
        """Withdraw one owner's interest in a job. It stops when no owner is left.

        Raises:
            JobNotFound: there is none, or it is another owner's.
        """
        return await self.jobs.cancel(job_id, owner)

    def events(self, job_id: str) -> AsyncIterator[JobRecord]:
        """The job now, at every change, and at its end."""
        return self.jobs.events(job_id)

    async def get(self, profile_id: str) -> StoredProfile | None:
        """A stored profile or the shipped one, or None."""
        return await self.store.get(profile_id) or shipped.find(profile_id)

    async def load(self, profile_id: str) -> bytes:
        """The JSON document of a profile, body and envelope as one object; notes its use.

        Raises:
            ProfileNotFound: there is none.
        """
        stored = await self.get(profile_id)
        if stored is None:
            raise profile_not_found(profile_id)
        await self.store.touch(profile_id)
        return views.joined(stored.body, stored.envelope)

    async def summaries(
        self, model: str | None = None, limit: int = 20, cursor: str | None = None
    ) -> ProfilePage:
        """A page of summaries, newest first."""
        return await self.store.list(model, limit, cursor)

    async def pin(self, profile_id: str, pinned: bool) -> None:
        """Keep a profile from eviction, or no longer.

        Raises:
            ProfileNotFound: there is none.
        """
        await self.store.pin(profile_id, pinned)

    async def delete(self, profile_id: str) -> None:
        """Forget a profile.

        Raises:
            ProfileNotFound: there is none.
        """
        await self.store.delete(profile_id)

    async def catalogue(self) -> ModelCatalogue:
        """What can be measured here."""
        return ModelCatalogue(
            demo=list(DEMO),
            presets=[f"preset:{name}" for name in presets()],
            architectures=list(measurable()),
            workers=await self.live_workers(),
            endpoints=await endpoints.listing(self.endpoints, self.client),
        )

    async def live_workers(self, *, fresh: bool = False) -> list[WorkerModels]:
        """The live workers. Asks the store at most every two seconds, unless `fresh`."""
        since, known = self._workers
        if not fresh and self.clock() - since <= _WORKERS_SECONDS:
            return known
        # One call at a time, and all callers get its result or its error. With a lock instead, each
        # caller of a store that hangs would wait out the timeouts of all callers before it.
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._ask_workers())
        return await asyncio.shield(self._asking)

    async def _ask_workers(self) -> list[WorkerModels]:
        known = await live_workers(self.client)
        self._served = await served_queues(self.client)
        self._workers = (self.clock(), known)
        return known

    async def queue(self, kind: JobKind) -> QueueName:
        """The GPU queue while a GPU worker for this kind lives or may be restarting, else the CPU
        queue."""
        needed = kinds.needs(kind)
        workers = await self.live_workers()
        lives = any(worker.queue == "gpu" and needed in worker.knows for worker in workers)
        return "gpu" if lives or ("gpu", kind) in self._served else "cpu"


def is_pinned(request: ProfileRequest) -> bool:
    """Whether the request always means the same: a commit, a demo file or a preset, and documents
    that cannot change as the operator's folders may.
    """
    if request.documents.source == "corpus" or request.model.startswith("local:"):
        return False
    if request.model.startswith(("demo:", "preset:")):
        return True
    return request.revision is not None and bool(_COMMIT.fullmatch(request.revision))


def refuse_unmeasurable(request: ProfileRequest) -> None:
    """Refuse what is known to fail, in the worker's own words.

    Args:
        request: validated.

    Raises:
        ModelNotFound: no preset or demo has this name, or a model without revisions has one.
        TooLong: more tokens than the model takes.
        DocumentsUnusable: texts, or facts to retrieve, for a model without a tokenizer.
        InvalidRequest: a continuation for such a model.
    """
    _check_name(request)
    _check_length(request)
    _check_tokenizer(request)


def _check_name(request: ProfileRequest) -> None:
    kind, colon, name = request.model.partition(":")
    if not colon:
        return
    if request.revision is not None:
        raise ModelNotFound(
            f"`revision`: {request.model} has no revisions; leave it out", field="revision"
        )
    names = {"preset": list(presets()), "demo": [demo.partition(":")[2] for demo in DEMO]}.get(kind)
    found = request.model in DEMO or find_preset(request.model) is not None
    if names is not None and not found:
        raise ModelNotFound(
            f"`model`: no {kind} is named {name}; there is {', '.join(names)}", field="model"
        )


def _check_length(request: ProfileRequest) -> None:
    model = find(request.model)
    # Another revision may have another configuration.
    limit = model.max_length if model is not None and request.revision is None else None
    if limit is not None and request.sequence_length > limit:
        raise TooLong(
            f"`sequence_length`: {request.sequence_length} tokens are more than the {limit} that "
            f"{request.model} can take",
            field="sequence_length",
        )


def _check_tokenizer(request: ProfileRequest) -> None:
    """A preset is a configuration and nothing else; with a revision the hub is asked instead."""
    preset = find_preset(request.model)
    if preset is None or request.weights != "random" or request.revision is not None:
        return
    why = f"the random weights of the preset {preset.name} come without a tokenizer"
    if request.documents.source in {"inline", "corpus"}:
        raise DocumentsUnusable(
            f"`documents.source`: {why}, so it can read random_tokens only",
            field="documents.source",
        )
    if request.recall is not None:
        raise DocumentsUnusable(f"`recall`: {why} to write a question with", field="recall")
    if request.target is not None:
        raise InvalidRequest(f"`target`: {why} to read it with", field="target")


def refuse_too_costly(request: ProfileRequest, limit: float, queue: str = "cpu") -> None:
    """Refuse a request that costs more than `limit`.

    Args:
        request: validated.
        limit: the most it may cost.
        queue: where it would run; part of the sentence.

    Raises:
        TooLarge: naming the field to lower, and what would fit.
    """
    asked = estimated_cost(request)
    if asked <= limit:
        return
    count, length = request.documents.limit, request.sequence_length
    documents = _largest(count, lambda k: estimated_cost(_with(request, k, length)) <= limit)
    tokens = _largest(length, lambda n: estimated_cost(_with(request, count, n)) <= limit)
    one = _largest(length, lambda n: estimated_cost(_with(request, 1, n)) <= limit)
    field = "documents.count" if documents else "sequence_length"
    fitting = [
        f"{documents} documents of {length} tokens" if documents else "",
        f"{count} documents of {tokens} tokens" if tokens else "",
        f"one document of {one} tokens" if one and not documents else "",
    ]
    what = " or ".join(filter(None, fitting)) or "nothing that can be asked of this model"
    if estimated_cost(request.model_copy(update={"predictions": []})) <= limit:
        what += f", or all of it without the prediction {COSTLY_PREDICTION}"
    if request.recall is not None:
        without = estimated_cost(request.model_copy(update={"recall": None}))
        if without <= limit:
            field, what = "recall", f"{what}, or all of it without recall"
    raise TooLarge(
        f"`{field}`: {count} documents of {length} tokens cost about {asked:.2g} multiply-adds, "
        f"the limit of the {queue} queue is {limit:.2g}; within it are {what}",
        field=field,
    )


def estimated_cost(request: ProfileRequest) -> float:
    """Multiply-adds, for the model's size as the gateway knows it; see `profile_requests.cost`."""
    model = find(request.model)
    if model is None:
        return cost(request, ASSUMED_LAYERS, ASSUMED_HEADS, ASSUMED_WIDTH)
    return cost(request, model.layers, model.heads, model.width)


def _with(request: ProfileRequest, count: int, length: int) -> ProfileRequest:
    documents = request.documents.model_copy(update={"count": count})
    return request.model_copy(update={"documents": documents, "sequence_length": length})


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `most` that fits, 0 when not even 1 does."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
