"""Ask for an experiment, and read what it found. Its texts and its result are its caller's alone.

`Experiments` is the use case over the stores. What a worker would refuse after a wait is refused
before anything is queued, as far as the gateway can tell.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from lacuna.architectures.table import find
from lacuna.contract.base import digest, rounded
from lacuna.contract.errors import ExperimentNotFound, JobNotFound, TooLarge
from lacuna.contract.experiment_requests import (
    ExperimentEstimate,
    ExperimentRequest,
    estimate,
    experiment_cost,
)
from lacuna.experiments.doubts import doubts
from lacuna.experiments.orders import check
from lacuna.placement.profile_curve import of_profile
from service.answers.profiles import (
    ASSUMED_LAYERS,
    ASSUMED_WIDTH,
    Profiles,
    is_pinned,
    refuse_unmeasurable,
)
from service.endpoints.costs import of_experiment, refuse_beyond
from service.store.claims import ExperimentOutcome
from service.store.keys import QueueName
from service.store.profiles import profile_not_found, read_experiment
from service.store.queue import ANONYMOUS, JobRecord, Submission

CPU_SPEED = 1.7e10
"""Multiply-adds a second of one core, by which minutes are estimated."""
Compute = Callable[..., Awaitable[Any]]
"""Runs a call in a thread: `Pool.run`."""


@dataclass(frozen=True)
class Experiments:
    """The use case, over the stores. One per gateway process.

    Every method raises `StoreUnavailable` while Redis is away.

    Args:
        profiles: jobs, workers and the operator's policy.
        compute: runs what takes longer than a few milliseconds.
    """

    profiles: Profiles
    compute: Compute

    async def estimate(self, request: ExperimentRequest) -> ExperimentEstimate:
        """What a request takes at most; refuses what `submit` refuses, but runs nothing.

        Raises:
            As `submit`, without QueueFull.
        """
        queue = await self._checked(request)
        warnings = await self.compute(doubts, request)
        found = await self._estimate(request, queue)
        return found.model_copy(update={"warnings": warnings})

    async def _estimate(self, request: ExperimentRequest, queue: QueueName) -> ExperimentEstimate:
        if queue == "endpoints":
            endpoint = self.profiles.endpoints.find(request.model)
            cost = await self.compute(of_experiment, request, endpoint)
            plain = await self.compute(estimate, request)
            update = cost.model_dump(include=set(ExperimentEstimate.model_fields))
            return ExperimentEstimate.model_validate(plain.model_dump() | update)
        model = find(request.model)
        found: ExperimentEstimate = await self.compute(
            estimate, request, model and model.layers, model and model.width
        )
        if queue != "cpu" or found.multiply_adds is None:
            return found
        minutes = rounded(found.multiply_adds / CPU_SPEED / 60)
        return found.model_copy(update={"minutes": minutes})

    async def submit(self, request: ExperimentRequest, owner: str | None, trace: str) -> Submission:
        """Accept a request. Equal requests of one caller are one job.

        Args:
            request: validated.
            owner: digest of the caller's key; None without keys.
            trace: id of the HTTP request.

        Raises:
            ModelNotAllowed: no pattern of the allow-list matches.
            ModelNotFound, EndpointUnknown: nothing has the model's name.
            InvalidRequest: the template, the orders or the scores cannot be used.
            ProfileNotFound: no profile has `profile_id`.
            TooLarge: it costs more than its queue, or its own budget, allows.
            BudgetSpent: an endpoint costs more than its own budget allows.
            QueueFull: too many wait already.
        """
        queue = await self._checked(request)
        identity, document = await self.compute(_prepared, request)
        return await self.profiles.jobs.submit(
            digest({"experiment": identity, "owner": owner or ANONYMOUS}),
            document,
            queue=queue,
            kind="experiment",
            identity=identity,
            high=request.priority == "high",
            pinned=_is_pinned(request),
            owner_key=owner,
            trace=trace,
            private=request.confidential,
        )

    async def read(
        self, job_id: str, owner: str | None
    ) -> tuple[JobRecord, ExperimentOutcome | None]:
        """The job of an experiment, and its result once it is done.

        Raises:
            ExperimentNotFound: there is none, it is another caller's, or its result was dropped.
        """
        missing = f"no experiment {job_id} of yours, or its result has expired"
        try:
            job = await self.profiles.job(job_id, owner)
        except JobNotFound:
            raise ExperimentNotFound(missing) from None
        if job.kind != "experiment":
            raise ExperimentNotFound(missing)
        if job.state != "done":
            return job, None
        found = await read_experiment(self.profiles.client, job_id)
        if found is None:
            raise ExperimentNotFound(missing)
        return job, found

    async def forget(self, job_id: str, owner: str | None) -> JobRecord:
        """Drop an experiment of this caller with its result; one that runs is withdrawn first, and
        stays until it has stopped.

        Raises:
            ExperimentNotFound: there is none, or it is another caller's.
        """
        job, _ = await self.read(job_id, owner)
        if job.finished_at is None:
            job = await self.profiles.cancel(job_id, owner)
        await self.profiles.jobs.drop(job_id, owner)
        return job

    async def _checked(self, request: ExperimentRequest) -> QueueName:
        """The queue, once everything is checked that can be checked here."""
        self.profiles.policy.admit(request.model)
        if request.endpoint is not None:
            endpoint = self.profiles.endpoints.find(request.model)
            await self.compute(check, request)
            cost = await self.compute(of_experiment, request, endpoint)
            refuse_beyond(cost, request.budget, "ask fewer questions in fewer orders")
            await self._check_curve(request)
            return "endpoints"
        refuse_unmeasurable(request.loading())
        await self.compute(check, request)
        await self._check_curve(request)
        queue = await self.profiles.queue("experiment")
        policy = self.profiles.policy
        limit = policy.max_cost_gpu if queue == "gpu" else policy.max_cost
        await self.compute(refuse_too_costly, request, limit, queue)
        return queue

    async def _check_curve(self, request: ExperimentRequest) -> None:
        if request.profile_id is None:
            return
        stored = await self.profiles.get(request.profile_id)
        if stored is None:
            raise profile_not_found(request.profile_id)
        await self.compute(of_profile, stored.body, request.source)


def refuse_too_costly(request: ExperimentRequest, limit: float, queue: str = "cpu") -> None:
    """Refuse a request that costs more than `limit`.

    Args:
        request: validated.
        limit: the most multiply-adds that it may cost.
        queue: where it would run; part of the sentence.

    Raises:
        TooLarge: naming what would fit.
    """
    model = find(request.model)
    layers, width = (model.layers, model.width) if model else (ASSUMED_LAYERS, ASSUMED_WIDTH)
    asked = experiment_cost(request, layers, width)
    if asked <= limit:
        return
    fitting = int(len(request.questions) * limit / asked)
    what = f"about {fitting:,} of the questions fit" if fitting else "not even one question fits"
    raise TooLarge(
        f"`questions`: {len(request.questions):,} questions in {len(request.arms)} orders cost "
        f"about {asked:.2g} multiply-adds, the limit of the {queue} queue is {limit:.2g}; {what}, "
        "or compare fewer orders",
        field="questions",
    )


def _is_pinned(request: ExperimentRequest) -> bool:
    """Whether its model name always means the same model."""
    return request.endpoint is None and is_pinned(request.loading())


def _prepared(request: ExperimentRequest) -> tuple[str, bytes]:
    """Content address and JSON of a request; with many texts both take a while."""
    return request.job_id, request.model_dump_json(exclude_defaults=True).encode()
