"""The gateway: `create_app(settings)` puts stores, use cases, middleware and routes together.

A request passes the middleware of `edge`, then a route, then a use case of `service.answers`, which
reads and writes the store.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

import redis
import redis.asyncio
from fastapi import Depends, FastAPI
from pydantic import ValidationError
from starlette.middleware import Middleware

from lacuna.contract.errors import StoreUnavailable
from service import logs, parent
from service.answers.drift import Drifts
from service.answers.experiments import Experiments
from service.answers.placements import Curves
from service.answers.profiles import Policy, Profiles
from service.answers.token_counts import TokenCounts
from service.gateway import openapi, problems
from service.gateway.access import ApiKeys, allowed
from service.gateway.bodies import known_parameters
from service.gateway.dependencies import Services, State
from service.gateway.edge import BodyLimit, CachedProfiles, Edge
from service.gateway.metrics import Metrics
from service.gateway.pools import Pool
from service.gateway.representations import RepresentationCache, Representations
from service.gateway.routes import (
    computed,
    experiments,
    jobs,
    page,
    profiles,
    status,
)
from service.gateway.server import bound_connections
from service.settings import Settings, first_fault
from service.store.connection import (
    cancel_tasks,
    connect_async,
    is_lasting,
    outages_translated,
)
from service.store.fitness import (
    durability_problem,
    policy_problem,
    refused_async,
    version_problem,
)
from service.store.profiles import ProfileStore, TokenizerStore
from service.store.queue import JobStore

log = logging.getLogger("lacuna.api")
_READING_THREADS = 2
_WRONG_SETTING = 2
"""Exit status, as the command line's."""
_SWITCH_SECONDS = 0.0005
"""How long a thread that computes may keep the interpreter from the event loop. During three
rollouts, on two cores with other work, the median of /readyz was 300 ms with Python's 5 ms, and
90 ms with this."""
_STOP_SECONDS = 15.0
"""A gateway that does not stop within this time, though its parent has gone, is ended."""
EVICT_SECONDS = 60.0
"""How often profiles are evicted."""
DESCRIPTION = (
    "Measures and predicts where in a prompt a language model listens, and where it does not. "
    "Errors are problem documents (RFC 9457) with a stable `code`."
)


_ROUTERS = (
    profiles.router,
    experiments.router,
    jobs.router,
    computed.router,
    profiles.comparisons,
    status.router,
    problems.router,
)
"""In the order of the OpenAPI document."""


class Gateway(FastAPI):
    """FastAPI with our OpenAPI document."""

    def openapi(self) -> dict[str, Any]:
        """The document, made once."""
        if self.openapi_schema is None:
            self.openapi_schema = openapi.document(self)
        return self.openapi_schema


def factory() -> Gateway:
    """For `uvicorn --factory service.gateway.app:factory`.

    Reads the settings from the environment.
    """
    try:
        settings = Settings()
    except ValidationError as error:
        print(f"the gateway cannot start: {first_fault(error)}", file=sys.stderr)
        raise SystemExit(_WRONG_SETTING) from None
    logs.configure(
        settings.log_level, settings.log_format, settings.secrets, settings.exit_reason_fd
    )
    sys.setswitchinterval(_SWITCH_SECONDS)
    bound_connections(settings.max_connections_per_address)
    parent.end_with_it(settings.exit_reason_fd, _STOP_SECONDS)
    return create_app(settings)


def create_app(settings: Settings) -> Gateway:
    """The gateway as an ASGI application. Connects to nothing until a request needs it."""
    metrics, cache = Metrics(), RepresentationCache()

    app = Gateway(
        title="Lacuna",
        version=version("lacuna-service"),
        summary="Influence profiles and dead zones of language models",
        description=DESCRIPTION,
        openapi_url=None,  # `openapi.mount_docs` serves it
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=partial(_lifespan, settings, metrics, cache),
        # Our own metrics and logs say the same, and know about answers given before routing.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        middleware=_middleware(settings, metrics, cache),
        exception_handlers=problems.HANDLERS,
    )
    for router in _ROUTERS:
        app.include_router(router, dependencies=[Depends(allowed), Depends(known_parameters)])
    # The address of the page may carry parameters that only its script reads.
    app.include_router(page.router)
    openapi.mount_docs(app)
    return app


def _middleware(
    settings: Settings, metrics: Metrics, cache: RepresentationCache
) -> list[Middleware]:
    """From the outermost to the innermost."""
    return [
        Middleware(Edge, metrics=metrics),
        Middleware(
            ApiKeys,
            keys=settings.keys,
            per_minute=settings.rate_limit_per_minute,
            metrics=metrics,
        ),
        Middleware(
            BodyLimit,
            limit=settings.max_body_bytes,
            budget=settings.max_bodies_bytes,
            larger={experiments.router.prefix: settings.max_experiment_bytes},
        ),
        Middleware(CachedProfiles, cache=cache, metrics=metrics),
    ]


@asynccontextmanager
async def _lifespan(
    settings: Settings, metrics: Metrics, cache: RepresentationCache, _app: FastAPI
) -> AsyncIterator[State]:
    """Everything that a running gateway has, from the first request to the last."""
    services = _services(settings, metrics, cache)
    housekeeping = None
    try:
        await _check_store(services)
        housekeeping = asyncio.create_task(_keep_house(services), name="housekeeping")
        yield {"services": services}
    finally:
        if housekeeping is not None:
            await cancel_tasks([housekeeping])
        await services.profiles.jobs.close()
        for pool in services.pools:
            pool.close()
        await services.client.aclose()


def _services(settings: Settings, metrics: Metrics, cache: RepresentationCache) -> Services:
    client = connect_async(settings.store_url)
    use_cases = _profiles(settings, client)
    rollout_pool = Pool("rollouts", settings.theory_threads)
    placement_pool = Pool("placements", settings.theory_threads)
    reading_pool = Pool("reading", _READING_THREADS)
    # One thread: a parser holds the interpreter lock, and two would take turns without ever letting
    # the event loop in.
    parsing_pool = Pool("parsing", 1, spare=0)
    # One thread and a spare one: a text is in memory several times while it is counted.
    counting_pool = Pool("counting", 1)
    return Services(
        settings=settings,
        client=client,
        profiles=use_cases,
        curves=Curves(),
        counter=TokenCounts(TokenizerStore(client, counting_pool.run), counting_pool.run),
        experiments=Experiments(use_cases, placement_pool.run),
        drifts=Drifts(use_cases.store.get),
        # Shared caches may keep profiles only while every caller may read them.
        representations=Representations(
            use_cases.load, reading_pool.run, cache, private=bool(settings.api_keys)
        ),
        metrics=metrics,
        rollout_pool=rollout_pool,
        placement_pool=placement_pool,
        parsing_pool=parsing_pool,
        pools=[rollout_pool, placement_pool, reading_pool, parsing_pool, counting_pool],
    )


def _profiles(settings: Settings, client: redis.asyncio.Redis) -> Profiles:
    return Profiles(
        jobs=JobStore(
            client,
            max_queued=settings.max_queued,
            resolve_ttl=settings.resolve_ttl,
            job_ttl=settings.job_ttl,
            max_finished=settings.max_finished_jobs,
            max_attempts=settings.max_attempts,
        ),
        store=ProfileStore(client, job_ttl=settings.job_ttl),
        client=client,
        policy=Policy(settings.allowed_models, settings.max_cost, settings.max_cost_gpu),
        endpoints=settings.endpoint_table,
    )


async def _keep_house(services: Services) -> None:
    settings = services.settings
    await keep_house(
        services.profiles.jobs,
        services.profiles.store,
        lease=settings.lease_seconds,
        profile_ttl=settings.profile_ttl,
        max_profile_bytes=settings.max_profile_bytes,
    )


async def keep_house(
    jobs: JobStore,
    profiles: ProfileStore,
    *,
    lease: float,
    profile_ttl: float = 0.0,
    max_profile_bytes: int = 0,
) -> None:
    """Sweep expired leases and evict profiles until cancelled; the gateway's background task.

    Any number of gateways may do this at the same time.

    Args:
        jobs: swept every few seconds, and records that are over taken away; once a minute callers'
            own texts leave the server's file.
        profiles: evicted once a minute.
        lease: the workers' lease in seconds.
        profile_ttl: seconds after which an unused profile goes; 0 is never.
        max_profile_bytes: total size beyond which the least recently used go; 0 sets no bound.
    """
    loop = asyncio.get_running_loop()
    pause, evict_at = min(5.0, lease / 4), loop.time()
    while True:
        try:
            await jobs.sweep(lease)
            await jobs.forget()
            if loop.time() >= evict_at:
                evict_at = loop.time() + EVICT_SECONDS
                await jobs.forget_history()
                gone = await profiles.evict(ttl=profile_ttl, max_bytes=max_profile_bytes)
                if gone:
                    log.info("profiles were evicted", extra={"profiles": gone})
        except StoreUnavailable as error:
            log.warning("the store is away", extra={"why": error.detail})
        except Exception:
            # An error here must not end the task silently; the next turn may succeed.
            log.exception("housekeeping failed")
        await asyncio.sleep(pause)


async def _check_store(services: Services) -> None:
    """Refuse a server that cannot be relied on, or warn. Workers check one that is away now.

    Raises:
        StoreUnavailable: the server is too old, cannot be used or does not let our user do what
            jobs need, or drops our keys and the settings say "refuse".
    """
    try:
        with outages_translated():
            info = await services.client.info()
            refused = await refused_async(services.client)
    except StoreUnavailable as error:
        if error.__cause__ is not None and is_lasting(error.__cause__):
            log.critical(error.detail)
            raise
        log.warning("the store is away", extra={"why": error.detail})
        return
    except redis.RedisError as error:
        detail = f"the store cannot be used: {error}"[:300]
        log.critical(detail)
        raise StoreUnavailable(detail) from error
    wrong = version_problem(info) or (refused.why if refused and refused.lasting else None)
    policy = policy_problem(info)
    if policy and services.settings.eviction_policy_check == "refuse":
        wrong = wrong or policy
    if wrong:
        log.critical(wrong)
        raise StoreUnavailable(wrong)
    for warning in (policy, durability_problem(info), refused.why if refused else None):
        if warning:
            log.warning(warning)
