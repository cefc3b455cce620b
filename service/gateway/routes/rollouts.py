"""/v1/rollouts: theory alone, from architecture parameters."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from lacuna.contract.rollouts import RolloutRequest, RolloutResponse
from service.answers import rollouts
from service.gateway.access import needs
from service.gateway.bodies import body_of, openapi_body
from service.gateway.dependencies import ServicesHere, while_connected
from service.gateway.pools import given_up
from service.gateway.problems import problem_responses

router = APIRouter(prefix="/v1/rollouts", tags=["theory"])


@router.post(
    "",
    summary="Predict from an architecture",
    response_model=RolloutResponse,
    openapi_extra=openapi_body(RolloutRequest) | needs("place"),
    responses=problem_responses(401, 403, 408, 413, 415, 422, 429),
)
async def roll_out(
    request: Request,
    body: Annotated[RolloutRequest, Depends(body_of(RolloutRequest))],
    services: ServicesHere,
) -> Response:
    """Influence curves that layers, heads, lambda, mask and positions imply; no model is loaded."""

    def computed() -> str:
        return rollouts.compute(body, given_up=given_up).model_dump_json()

    answer = await while_connected(request, services.rollout_pool.run(computed))
    return Response(answer, media_type="application/json")
