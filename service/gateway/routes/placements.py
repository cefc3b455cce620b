"""/v1/placements: in which order to put the chunks of a prompt."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from lacuna.contract.placements import PlacementRequest, PlacementResponse
from service.gateway.access import needs
from service.gateway.bodies import body_of, openapi_body
from service.gateway.dependencies import ServicesHere, while_connected
from service.gateway.problems import problem_responses

router = APIRouter(prefix="/v1/placements", tags=["placements"])


@router.post(
    "",
    summary="Order the chunks of a prompt",
    openapi_extra=openapi_body(PlacementRequest) | needs("place"),
    responses=problem_responses(401, 403, 404, 408, 413, 415, 422, 429, 503),
)
async def place(
    request: Request,
    body: Annotated[PlacementRequest, Depends(body_of(PlacementRequest))],
    services: ServicesHere,
) -> PlacementResponse:
    """The order of the chunks, whether another one than the caller's is worth it, and how sure that
    is."""
    answer = await while_connected(request, services.place(body))
    services.metrics.placement(answer)
    return answer
