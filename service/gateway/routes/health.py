"""Alive, ready, metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from lacuna.contract.errors import StoreUnavailable
from service.gateway import metrics as model_metrics
from service.gateway.dependencies import Services, ServicesHere
from service.gateway.metrics import CONTENT_TYPE
from service.gateway.openapi import problems
from service.gateway.problems import problem
from service.store.monitoring import store_metrics

router = APIRouter(tags=["service"])


class Alive(BaseModel):
    """The process answers."""

    status: str


class Check(BaseModel):
    """One thing that readiness depends on."""

    ok: bool
    detail: str


class Readiness(BaseModel):
    """Whether new work would be done, and what is missing."""

    ready: bool
    redis: Check
    workers: Check


@router.get("/healthz", summary="Alive", responses=problems(422))
async def alive() -> Alive:
    """200 while the process answers at all."""
    return Alive(status="ok")


@router.get("/readyz", summary="Ready", response_model=Readiness, responses=problems(422, 503))
async def ready(request: Request, services: ServicesHere) -> Response:
    """200 when Redis answers and a worker lives; else a problem that says what is missing."""
    found = await _readiness(services)
    if found.ready:
        return Response(found.model_dump_json(), 200, media_type="application/json")
    missing = [c.detail for c in (found.redis, found.workers) if not c.ok]
    members = found.model_dump(include={"ready", "redis", "workers"})
    return problem(request.scope, "not_ready", "; ".join(missing), retry_after=2.0, members=members)


async def _readiness(services: Services) -> Readiness:
    try:
        live = await services.profiles.live_workers(fresh=True)
    except StoreUnavailable as error:
        unknown = Check(ok=False, detail="workers are unknown")
        return Readiness(ready=False, redis=Check(ok=False, detail=error.detail), workers=unknown)
    workers = Check(ok=bool(live), detail=f"{len(live)} live" if live else "no live worker")
    return Readiness(ready=workers.ok, redis=Check(ok=True, detail="answers"), workers=workers)


@router.get(
    "/metrics",
    summary="Metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        **problems(401, 422, 429),
    },
)
async def metrics(services: ServicesHere) -> Response:
    """Prometheus: this gateway process, the queue as the store sees it, and profiles by model."""
    try:
        store = await store_metrics(services.client)
        newest = (await services.profiles.summaries(limit=model_metrics.SUMMARIES)).items
    except StoreUnavailable:
        store, newest = None, []
    body = services.metrics.text(store) + model_metrics.text(newest)
    return Response(body, media_type=CONTENT_TYPE)
