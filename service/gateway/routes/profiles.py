"""/v1/profiles and /v1/comparisons: ask for profiles, list, read, compare, pin, delete."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from lacuna import comparisons as pairwise
from lacuna import views
from lacuna.contract.base import DIGEST_PATTERN, ModelId, pattern
from lacuna.contract.comparisons import ComparedCurve, Comparison
from lacuna.contract.endpoints import EndpointEstimate
from lacuna.contract.errors import RouteNotFound
from lacuna.contract.jobs import Job
from lacuna.contract.profile_requests import ProfileRequest
from lacuna.contract.profiles import (
    DeadZoneView,
    Profile,
    ProfilePage,
    SeriesRow,
    Source,
)
from service.gateway.access import needs
from service.gateway.bodies import body_of, openapi_body
from service.gateway.dependencies import (
    Bins,
    Owner,
    ProfileId,
    RequestId,
    Services,
    ServicesHere,
    Wait,
    accepted,
    job_address,
    profile_address,
)
from service.gateway.problems import failure_problem, problem, problem_responses
from service.gateway.representations import (
    ETAG,
    FORMATS,
    REVALIDATED,
    Conditions,
    Curve,
    RepresentationResponse,
    choose,
)
from service.store.queue import JobRecord

router = APIRouter(prefix="/v1/profiles", tags=["profiles"])
MAX_LIST = 100
_ADDRESS = pattern(
    r"^[0-9a-f]{32}(?:\..*)?$",
    "an id is 32 hex digits (0-9, a-f); .json, .csv, .svg or .png may follow",
)
_CURSOR = pattern(r"^[A-Za-z0-9_\-]+$", "a cursor is the `next` of the page before")


@router.post(
    "",
    summary="Ask for a profile",
    response_model=Profile | EndpointEstimate,
    openapi_extra=openapi_body(ProfileRequest) | needs("measure"),
    responses={
        200: {
            "description": "The profile: it was known, or ready within `Prefer: wait`. With "
            "`dry_run` what measuring the endpoint would take."
        },
        202: {"model": Job, "description": "Queued or running; `Location` is the job."},
        **problem_responses(401, 403, 404, 408, 409, 413, 415, 422, 429, 503),
    },
)
async def ask(
    request: Request,
    body: Annotated[ProfileRequest, Depends(body_of(ProfileRequest))],
    services: ServicesHere,
    owner: Owner,
    request_id: RequestId,
    wait: Wait,
) -> Response:
    """Measure where `model` listens. Equal requests are one job, and then one profile."""
    if body.dry_run:
        estimate = services.profiles.estimate(body)
        return Response(estimate.model_dump_json(), 200, media_type="application/json")
    submission = await services.profiles.submit(body, owner, request_id)
    job = await services.submitted(request, owner, submission, wait)
    return await _answer(request, services, job, applied=wait)


async def _answer(request: Request, services: Services, job: JobRecord, applied: float) -> Response:
    """200 with the profile, 202 with the job, or the problem that ended it."""
    headers = {"Preference-Applied": f"wait={applied:.0f}"} if applied else {}
    address = job_address(job.id)
    if job.failure is not None:
        return failure_problem(request.scope, job.failure, members={"job": address})
    if job.profile_id is not None:
        kept = await services.representations.get(job.profile_id)
        headers["Content-Location"] = profile_address(job.profile_id)
        extra = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        return RepresentationResponse(kept, extra, conditional=False)
    return accepted(job, headers)


@router.get("", summary="List profiles", responses=problem_responses(401, 422, 429, 503))
async def listing(
    services: ServicesHere,
    model: Annotated[ModelId | None, Query(description="Only of this model.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIST)] = 20,
    cursor: Annotated[str | None, Query(max_length=120, pattern=_CURSOR)] = None,
) -> ProfilePage:
    """Summaries, newest first; `next` is the cursor of the following page."""
    return await services.profiles.summaries(model, limit, cursor)


@router.get(
    "/{profile_id}",
    summary="Read a profile",
    response_model=Profile,
    responses={
        200: {
            "description": "The profile, in the format that `Accept` or the suffix names.",
            "content": {
                media.partition(";")[0]: {"schema": {"type": "string"}}
                for name, media in FORMATS.items()
                if name != "json"
            },
            "headers": ETAG,
        },
        304: REVALIDATED[304],
        **problem_responses(401, 404, 406, 422, 429, 503),
    },
)
async def read(
    request: Request,
    services: ServicesHere,
    profile_id: Annotated[
        str, Path(pattern=_ADDRESS, description="Id, with .json, .csv, .svg or .png if you like.")
    ],
    bins: Bins = None,
    curve: Annotated[
        Curve | None,
        Query(
            description="What CSV, SVG and PNG show. `recall`: its curves by depth, if it has any. "
            "Default: `influence`, and `recall` where none was measured."
        ),
    ] = None,
) -> Response:
    """A profile as JSON, CSV, SVG or PNG. It never changes, so you may keep it."""
    identifier, dot, suffix = profile_id.partition(".")
    if dot and suffix not in FORMATS:
        raise RouteNotFound("there is nothing at this address")
    form = suffix or choose(Conditions.of(request.scope).accept)
    if form is None:
        offered = ", ".join(media.partition(";")[0] for media in FORMATS.values())
        headers = {"Vary": "Accept"}
        return problem(
            request.scope, "not_acceptable", f"this address offers {offered}", headers=headers
        )
    made = await services.representations.get(identifier, form, bins, curve)
    return RepresentationResponse(made)


@router.get(
    "/{profile_id}/dead-zone",
    response_model=DeadZoneView,
    responses={**REVALIDATED, **problem_responses(401, 404, 422, 429, 503)},
)
async def dead_zone(
    services: ServicesHere,
    profile_id: ProfileId,
    threshold: Annotated[float, Query(gt=0, le=1_000, allow_inf_nan=False)] = 0.75,
    source: Source = "measured",
) -> Response:
    """The dead zone for another threshold, or of a prediction."""
    document = await services.profiles.load(profile_id)
    return RepresentationResponse(
        await services.representations.computed(
            lambda: views.dead_zone(views.parse(document), threshold, source)
        )
    )


@router.get(
    "/{profile_id}/series",
    response_model=list[SeriesRow],
    responses={**REVALIDATED, **problem_responses(401, 404, 422, 429, 503)},
)
async def series(services: ServicesHere, profile_id: ProfileId, bins: Bins = None) -> Response:
    """Flat rows, one per position or bin: what dashboard tools plot without code.

    A curve's column holds masses, as the profile and its CSV do: shares of the whole influence,
    which sum to 1 over the rows (`low` and `high` are the band of each). A mass times the number of
    rows is a density, where 1 is an even share. The rows never change, so you may keep them. Ask
    for `bins` at long lengths: every position is a row of about 300 bytes before compression.
    """
    return RepresentationResponse(await services.representations.get(profile_id, "series", bins))


@router.put(
    "/{profile_id}/pin",
    summary="Pin a profile",
    status_code=204,
    openapi_extra=needs("admin"),
    responses=problem_responses(401, 403, 404, 422, 429, 503),
)
async def pin(services: ServicesHere, profile_id: ProfileId) -> Response:
    """Keep a profile from eviction until it is unpinned or deleted."""
    await services.profiles.pin(profile_id, True)
    return Response(status_code=204)


@router.delete(
    "/{profile_id}/pin",
    summary="Unpin a profile",
    status_code=204,
    openapi_extra=needs("admin"),
    responses=problem_responses(401, 403, 404, 422, 429, 503),
)
async def unpin(services: ServicesHere, profile_id: ProfileId) -> Response:
    """Let a profile be evicted again. Also succeeds if it was not pinned."""
    await services.profiles.pin(profile_id, False)
    return Response(status_code=204)


@router.delete(
    "/{profile_id}",
    status_code=204,
    openapi_extra=needs("admin"),
    responses=problem_responses(401, 403, 404, 422, 429, 503),
)
async def delete(services: ServicesHere, profile_id: ProfileId) -> Response:
    """Delete a profile. Asking for it again measures it again."""
    await services.profiles.delete(profile_id)
    services.representations.forget(profile_id)
    services.curves.forget(profile_id)
    return Response(status_code=204)  # the framework's own would name a media type


comparisons = APIRouter(prefix="/v1/comparisons", tags=["profiles"])
_Id = Annotated[str, Query(pattern=DIGEST_PATTERN, description="Id of a profile.")]


@comparisons.get(
    "",
    summary="Compare two profiles",
    response_model=Comparison,
    responses={**REVALIDATED, **problem_responses(401, 404, 422, 429, 503)},
)
async def compare(
    services: ServicesHere,
    a: _Id,
    b: _Id,
    source: Annotated[
        ComparedCurve | None,
        Query(description="Default: `measured`, and `recall` if one of them has no influence."),
    ] = None,
    bins: Annotated[int, Query(ge=1, le=1_000)] = 100,
) -> Response:
    """How `b` differs from `a`: verdict, a sentence, and the change of each tenth of the prompt.

    Profiles that read the same documents, or recalled the same groups of facts, are compared in
    pairs, which sees much smaller changes than two separate curves do.
    """
    first, second = await services.profiles.load(a), await services.profiles.load(b)

    def compared() -> Comparison:
        return pairwise.compare(views.parse(first), views.parse(second), source=source, bins=bins)

    return RepresentationResponse(await services.representations.computed(compared))
