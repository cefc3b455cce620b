"""/v1/rollouts: theory alone, from architecture parameters."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from service.api.bodies import body_of, openapi_body
from service.api.dependencies import ServicesHere
from service.api.openapi import problems
from service.contract.rollouts import RolloutRequest, RolloutResponse
from service.usecases import rollouts

router = APIRouter(prefix="/v1/rollouts", tags=["theory"])


@router.post(
    "",
    summary="Predict from an architecture",
    response_model=RolloutResponse,
    openapi_extra=openapi_body(RolloutRequest),
    responses=problems(401, 408, 413, 415, 422, 429),
)
async def roll_out(
    body: Annotated[RolloutRequest, Depends(body_of(RolloutRequest))], services: ServicesHere
) -> Response:
    """Influence curves that layers, heads, lambda, mask and positions imply; no model is loaded."""
    answer = await services.theory.run(lambda: rollouts.compute(body).model_dump_json())
    return Response(answer, media_type="application/json")
