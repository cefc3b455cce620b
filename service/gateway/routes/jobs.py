"""/v1/jobs: read a job, follow it, withdraw it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from lacuna.contract.errors import JobNotFound, StoreUnavailable
from lacuna.contract.jobs import TERMINAL, Job
from service.gateway.access import needs
from service.gateway.dependencies import (
    JobId,
    OpenWait,
    Owner,
    OwnJob,
    ServicesHere,
    Wait,
    job_answer,
)
from service.gateway.problems import problem_responses

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.get("/{job_id}", summary="Read a job", responses=problem_responses(401, 404, 422, 429, 503))
async def read(
    request: Request,
    job: OwnJob,
    services: ServicesHere,
    owner: Owner,
    wait: Wait,
    response: Response,
) -> Job:
    """State, position, progress and, at the end, the profile or the failure."""
    response.headers["Cache-Control"] = "no-store"
    if not wait:
        return job_answer(job)
    response.headers["Preference-Applied"] = f"wait={wait:.0f}"
    return job_answer(await services.wait(request, owner, job, wait))


@router.delete(
    "/{job_id}",
    summary="Withdraw a job",
    openapi_extra=needs("measure"),
    responses={
        202: {"model": Job, "description": "It stops at its next check."},
        **problem_responses(401, 403, 404, 422, 429, 503),
    },
)
async def cancel(job_id: JobId, services: ServicesHere, owner: Owner, response: Response) -> Job:
    """Withdraw your interest; the job stops when no caller is left. A finished job stays."""
    job = await services.profiles.cancel(job_id, owner)
    response.status_code = 200 if job.state in TERMINAL else 202
    return job_answer(job)


@router.get(
    "/{job_id}/events",
    summary="Follow a job",
    response_class=EventSourceResponse,
    responses=problem_responses(401, 404, 422, 429, 503),
)
async def events(
    job: OwnJob, services: ServicesHere, _wait: OpenWait
) -> AsyncIterator[ServerSentEvent]:
    """Server-sent events: the job now, at every change, and at its end."""
    number = 0
    # After the first byte the status cannot change: the stream ends, and an EventSource connects
    # again by itself.
    with contextlib.suppress(StoreUnavailable, JobNotFound):
        async for seen in services.profiles.events(job.id):
            yield ServerSentEvent(event=seen.state, id=str(number), data=job_answer(seen))
            number += 1
