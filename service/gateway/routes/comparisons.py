"""/v1/comparisons: two profiles side by side."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from lacuna import views
from lacuna.contract.base import DIGEST_PATTERN
from lacuna.contract.profiles import Comparison, Source
from lacuna.views import compare as compare_profiles
from service.gateway.dependencies import ServicesHere
from service.gateway.openapi import REVALIDATED, problems
from service.gateway.representations import RepresentationResponse

router = APIRouter(prefix="/v1/comparisons", tags=["profiles"])
_Id = Annotated[str, Query(pattern=DIGEST_PATTERN, description="Id of a profile.")]


@router.get(
    "",
    summary="Compare two profiles",
    response_model=Comparison,
    responses={**REVALIDATED, **problems(401, 404, 422, 429, 503)},
)
async def compare(
    services: ServicesHere,
    a: _Id,
    b: _Id,
    source: Source = "measured",
    bins: Annotated[int, Query(ge=1, le=1_000)] = 100,
) -> Response:
    """Distance, and how dead zone, primacy and recency change from `a` to `b`."""
    first, second = await services.profiles.load(a), await services.profiles.load(b)
    return RepresentationResponse(
        await services.view(
            lambda: compare_profiles(
                views.parse(first), views.parse(second), source=source, bins=bins
            )
        )
    )
