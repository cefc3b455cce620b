"""What the service says of itself: alive, ready, metrics, and which models it can measure."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from lacuna.contract.errors import StoreUnavailable
from lacuna.contract.models import ModelCatalogue, WorkerModels
from service.gateway.dependencies import Services, ServicesHere
from service.gateway.metrics import CONTENT_TYPE
from service.gateway.problems import problem, problem_responses
from service.store import kinds

router = APIRouter()


@router.get(
    "/v1/models",
    tags=["models"],
    summary="List models",
    responses=problem_responses(401, 422, 429, 503),
)
async def models(services: ServicesHere) -> ModelCatalogue:
    """Models and architectures, and what each live worker holds warm on which device."""
    return await services.profiles.catalogue()


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


@router.get("/healthz", tags=["service"], summary="Alive", responses=problem_responses(422))
async def alive() -> Alive:
    """200 while the process answers at all."""
    return Alive(status="ok")


@router.get(
    "/readyz",
    tags=["service"],
    summary="Ready",
    response_model=Readiness,
    responses=problem_responses(422, 503),
)
async def ready(request: Request, services: ServicesHere) -> Response:
    """200 when Redis answers and a worker is running; else a problem that says what is missing."""
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
    workers = _workers(live)
    refusal = services.profiles.jobs.refusal
    if refusal is not None:
        return Readiness(ready=False, redis=Check(ok=False, detail=refusal), workers=workers)
    return Readiness(ready=workers.ok, redis=Check(ok=True, detail="answers"), workers=workers)


def _workers(live: list[WorkerModels]) -> Check:
    """Whether a worker runs what this gateway queues; one of another version does not."""
    needed = kinds.needs("profile")
    able = sum(needed in worker.knows for worker in live)
    if not live:
        return Check(ok=False, detail="no live worker")
    if able == len(live):
        return Check(ok=True, detail=f"{able} live")
    others = f"{len(live) - able} of another version than this gateway's {kinds.described(needed)}"
    return Check(ok=bool(able), detail=f"{len(live)} live, {others}")


@router.get(
    "/metrics",
    tags=["service"],
    summary="Metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        **problem_responses(401, 422, 429),
    },
)
async def metrics(services: ServicesHere) -> Response:
    """Prometheus: this gateway process, the queue as the store sees it, and profiles by model."""
    return Response(await services.metrics_text(), media_type=CONTENT_TYPE)
