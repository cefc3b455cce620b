"""/v1/models: what can be measured here."""

from __future__ import annotations

from fastapi import APIRouter

from lacuna.contract.models import ModelCatalogue
from service.gateway.dependencies import ServicesHere
from service.gateway.openapi import problems

router = APIRouter(prefix="/v1/models", tags=["models"])


@router.get("", summary="List models", responses=problems(401, 422, 429, 503))
async def models(services: ServicesHere) -> ModelCatalogue:
    """Models and architectures, and what each live worker holds warm on which device."""
    return await services.profiles.catalogue()
