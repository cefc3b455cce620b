"""/v1/calibrations: from a retriever's scores to probabilities."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from lacuna.contract.calibrations import Calibration, CalibrationRequest
from service.answers.calibrations import calibrate
from service.gateway.access import needs
from service.gateway.bodies import body_of, openapi_body
from service.gateway.dependencies import ServicesHere, while_connected
from service.gateway.problems import problem_responses

router = APIRouter(prefix="/v1/calibrations", tags=["placements"])


@router.post(
    "",
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
