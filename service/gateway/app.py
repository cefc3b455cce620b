"""The gateway: `create_app(settings)` puts stores, use cases, middleware and routes together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from lacuna.contract.errors import LacunaError, StoreUnavailable
from service import logs
from service.answers.placements import TokenCounts
from service.answers.profiles import Policy, Profiles
from service.gateway import openapi
from service.gateway.bodies import BodyInvalid, BodyTooSlow, MediaTypeRefused, known_once
from service.gateway.dependencies import Pool, Services, State
from service.gateway.edge import BodyLimit, CachedProfiles, Edge, Keys
from service.gateway.metrics import Metrics
from service.gateway.problems import (
    on_body_invalid,
    on_body_too_slow,
    on_http_exception,
    on_invalid,
    on_lacuna_error,
    on_media_type,
)
from service.gateway.representations import Memory
from service.gateway.routes import (
    comparisons,
    health,
    jobs,
    models,
    page,
    placements,
    problem_types,
    profiles,
    rollouts,
)
from service.settings import Settings
from service.store.connection import (
    connect_async,
    durability_problem,
    end,
    policy_problem,
    translated,
)
from service.store.fleet import keep_house
from service.store.profiles import ProfileStore, TokenizerStore
from service.store.queue import JobStore

log = logging.getLogger("lacuna.api")
_READERS = 2
DESCRIPTION = (
    "Measures and predicts where in a prompt a language model listens, and where it does not. "
    "Errors are problem documents (RFC 9457) with a stable `code`."
)


class Gateway(FastAPI):
    """FastAPI with our OpenAPI document."""

    def openapi(self) -> dict[str, Any]:
        """The document, made once."""
        if self.openapi_schema is None:
            self.openapi_schema = openapi.document(self)
        return self.openapi_schema


def create_app(settings: Settings) -> Gateway:
    """The gateway as an ASGI application. Connects to nothing until a request needs it."""
    metrics, memory = Metrics(), Memory()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[State]:
        services = _services(settings, metrics, memory)
        house = None
        try:
            await _check_policy(services)
            house = asyncio.create_task(_keep_house(services), name="housekeeping")
            yield {"services": services}
        finally:
            if house is not None:
                await end([house])
            await services.profiles.jobs.close()
            services.close()
            await services.client.aclose()

    app = Gateway(
        title="Lacuna",
        version=version("lacuna-service"),
        summary="Influence profiles and dead zones of language models",
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        # Our own metrics and logs say the same, and know about routes answered before routing.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        middleware=[
            Middleware(Edge, metrics=metrics),
            Middleware(
                Keys,
                keys=settings.api_keys,
                per_minute=settings.rate_limit_per_minute,
                metrics=metrics,
            ),
            Middleware(BodyLimit, limit=settings.max_body_bytes),
            Middleware(CachedProfiles, memory=memory, metrics=metrics),
        ],
        exception_handlers={
            LacunaError: on_lacuna_error,
            BodyInvalid: on_body_invalid,
            BodyTooSlow: on_body_too_slow,
            MediaTypeRefused: on_media_type,
            RequestValidationError: on_invalid,
            HTTPException: on_http_exception,
        },
    )
    for routes in (
        profiles,
        jobs,
        rollouts,
        placements,
        comparisons,
        models,
        health,
        problem_types,
    ):
        app.include_router(routes.router, dependencies=[Depends(known_once)])
    # The page's own address may carry what only its script reads.
    app.include_router(page.router)
    openapi.mount(app)
    return app


async def _keep_house(services: Services) -> None:
    settings = services.settings
    await keep_house(
        services.profiles.jobs,
        services.profiles.store,
        lease=settings.lease_seconds,
        profile_ttl=settings.profile_ttl,
        max_profile_bytes=settings.max_profile_bytes,
    )


async def _check_policy(services: Services) -> None:
    """Refuse, or warn of, a server that drops our keys; one that is away now is checked by workers.

    Raises:
        StoreUnavailable: the policy is one of `allkeys-*` and the settings say "refuse".
    """
    try:
        with translated():
            info = await services.client.info()
    except StoreUnavailable as error:
        log.warning("the store is away", extra={"why": error.detail})
        return
    if found := policy_problem(info):
        if services.settings.eviction_policy_check == "refuse":
            raise StoreUnavailable(found)
        log.warning(found)
    if found := durability_problem(info):
        log.warning(found)


def factory() -> Gateway:
    """For `uvicorn --factory service.gateway.app:factory`: a root, so it reads the environment."""
    settings = Settings()
    logs.configure(settings.log_level, settings.log_format, settings.secrets)
    return create_app(settings)


def _services(settings: Settings, metrics: Metrics, memory: Memory) -> Services:
    client = connect_async(settings.store_url)
    jobs_store = JobStore(
        client,
        max_queued=settings.max_queued,
        resolve_ttl=settings.resolve_ttl,
        job_ttl=settings.job_ttl,
        max_finished=settings.max_finished_jobs,
        max_attempts=settings.max_attempts,
    )
    return Services(
        settings=settings,
        client=client,
        profiles=Profiles(
            jobs=jobs_store,
            store=ProfileStore(client, job_ttl=settings.job_ttl),
            client=client,
            policy=Policy(settings.allowed_models, settings.max_cost, settings.max_cost_gpu),
        ),
        tokens=TokenCounts(TokenizerStore(client)),
        memory=memory,
        metrics=metrics,
        theory=Pool("theory", settings.theory_threads),
        placing=Pool("placing", settings.theory_threads),
        reading=Pool("reading", _READERS),
        # One thread: a parser keeps the interpreter to itself, and two would take turns without
        # ever letting the event loop in.
        bodies=Pool("bodies", 1),
    )
