"""/v1/experiments: compare orders of chunks on the caller's own questions, read what was found."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from lacuna.contract.base import DIGEST_PATTERN, pattern
from lacuna.contract.experiment_requests import ExperimentEstimate, ExperimentRequest
from lacuna.contract.experiments import ExperimentResult
from lacuna.contract.jobs import TERMINAL, Job
from service.gateway.access import needs
from service.gateway.bodies import body_of, openapi_body
from service.gateway.dependencies import (
    Owner,
    RequestId,
    Services,
    ServicesHere,
    Wait,
    accepted,
    experiment_address,
    job_address,
    job_answer,
)
from service.gateway.problems import failure_problem, problem, problem_responses
from service.gateway.representations import Conditions, choose
from service.store.profiles import unpacked
from service.store.queue import JobRecord

router = APIRouter(prefix="/v1/experiments", tags=["experiments"])
_ADDRESS = pattern(
    r"^[0-9a-f]{32}(?:\.(?:json|csv))?$",
    "an id is 32 hex digits (0-9, a-f); .json or .csv may follow",
)
_FORMS = {"json": "application/json", "csv": "text/csv; charset=utf-8"}
_PRIVATE = {"Cache-Control": "private, no-store"}


@router.post(
    "",
    summary="Compare orders",
    response_model=ExperimentResult | ExperimentEstimate,
    openapi_extra=openapi_body(ExperimentRequest) | needs("measure"),
    responses={
        200: {
            "description": "The result: it was known, or ready within `Prefer: wait`. With "
            "`dry_run` the estimate."
        },
        202: {"model": Job, "description": "Queued or running; `Location` is the job."},
        **problem_responses(401, 403, 404, 408, 409, 413, 415, 422, 429, 503),
    },
)
async def ask(
    request: Request,
    body: Annotated[ExperimentRequest, Depends(body_of(ExperimentRequest))],
    services: ServicesHere,
    owner: Owner,
    request_id: RequestId,
    wait: Wait,
) -> Response:
    """Try several orders of the chunks on questions of your own, and say which one answers best, if
    it matters at all. Runs as a job. Equal requests of one caller are one job."""
    if body.dry_run:
        found = await services.experiments.estimate(body)
        return Response(found.model_dump_json(), 200, _PRIVATE, "application/json")
    submission = await services.experiments.submit(body, owner, request_id)
    job = await services.submitted(request, owner, submission, wait)
    return await _answer(request, services, job, owner, applied=wait)


async def _answer(
    request: Request, services: Services, job: JobRecord, owner: str | None, applied: float
) -> Response:
    """200 with the result, 202 with the job, or the problem that ended it."""
    headers = {"Preference-Applied": f"wait={applied:.0f}"} if applied else {}
    if job.failure is not None:
        members = {"job": job_address(job.id)}
        return failure_problem(request.scope, job.failure, members=members)
    if job.state != "done":
        return accepted(job, headers)
    _, found = await services.experiments.read(job.id, owner)
    assert found is not None  # it is done, else `read` raises
    headers |= {"Content-Location": experiment_address(job.id), **_PRIVATE}
    return Response(found.result, 200, headers, "application/json")


@router.get(
    "/{experiment_id}",
    summary="Read an experiment",
    response_model=ExperimentResult,
    responses={
        200: {
            "description": "The result as JSON, or every reading as a row of CSV.",
            "content": {"text/csv": {"schema": {"type": "string"}}},
        },
        202: {"model": Job, "description": "Queued or running."},
        **problem_responses(401, 403, 404, 406, 409, 422, 429, 503),
    },
)
async def read(
    request: Request,
    services: ServicesHere,
    owner: Owner,
    experiment_id: Annotated[
        str, Path(pattern=_ADDRESS, description="Id, with .json or .csv if you like.")
    ],
) -> Response:
    """What an experiment found, for the key that asked for it. It is kept as long as its job is
    remembered (`LACUNA_JOB_TTL`). The CSV has one row for each question and order."""
    identifier, _, suffix = experiment_id.partition(".")
    form = suffix or choose(Conditions.of(request.scope).accept)
    if form not in _FORMS:
        return problem(request.scope, "not_acceptable", "an experiment is JSON or CSV")
    job, found = await services.experiments.read(identifier, owner)
    if found is None:
        return await _answer(request, services, job, owner, applied=0.0)
    if form == "json":
        return Response(found.result, 200, _PRIVATE, _FORMS["json"])
    rows = await services.experiments.compute(unpacked, found.rows)
    name = f'attachment; filename="experiment-{identifier}.csv"'
    return Response(rows, 200, {**_PRIVATE, "Content-Disposition": name}, _FORMS["csv"])


@router.delete(
    "/{experiment_id}",
    summary="Forget an experiment",
    status_code=204,
    openapi_extra=needs("measure"),
    responses={
        202: {"model": Job, "description": "It runs, and stops at its next check."},
        **problem_responses(401, 403, 404, 422, 429, 503),
    },
)
async def forget(
    services: ServicesHere,
    owner: Owner,
    experiment_id: Annotated[str, Path(pattern=DIGEST_PATTERN, description="Id.")],
) -> Response:
    """Drop what an experiment found, with its job. One that runs is withdrawn."""
    job = await services.experiments.forget(experiment_id, owner)
    if job.state in TERMINAL:
        return Response(status_code=204)
    return Response(job_answer(job).model_dump_json(), 202, media_type="application/json")
