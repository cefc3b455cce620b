"""What is answered at once, without a job: /v1/rollouts, /v1/placements and /v1/calibrations."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from lacuna.contract.calibrations import Calibration, CalibrationRequest
from lacuna.contract.placements import PlacementRequest, PlacementResponse
from lacuna.contract.rollouts import RolloutRequest, RolloutResponse
from service.answers import rollouts
from service.answers.placements import calibrate
from service.gateway.access import needs
from service.gateway.bodies import body_of, openapi_body
from service.gateway.dependencies import ServicesHere, while_connected
from service.gateway.pools import given_up
from service.gateway.problems import problem_responses

router = APIRouter(prefix="/v1")


@router.post(
    "/rollouts",
    tags=["theory"],
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


@router.post(
    "/placements",
    tags=["placements"],
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


@router.post(
    "/calibrations",
    tags=["placements"],
    summary="Calibrate scores",
    openapi_extra=openapi_body(CalibrationRequest) | needs("place"),
    responses=problem_responses(401, 403, 408, 413, 415, 422, 429),
)
async def fit(
    request: Request,
    body: Annotated[CalibrationRequest, Depends(body_of(CalibrationRequest))],
    services: ServicesHere,
) -> Calibration:
    """A map from scores to probabilities, fitted on chunks that are known to hold the answer or
    not, with its reliability on questions that it did not see. Nothing is stored: pass the answer
    back as `calibration` of a placement."""
    return await while_connected(request, services.placement_pool.run(calibrate, body))
