"""A gateway in this process on a real store, and what stands for a worker."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from starlette.types import ASGIApp, Receive, Scope, Send

from lacuna.contract.jobs import Failure
from lacuna.contract.models import WorkerModels
from lacuna.contract.profiles import Profile, ProfileBody, ProfileEnvelope, ProfileSummary
from lacuna.contract.recall import main_recall
from service.gateway.app import create_app
from service.settings import Settings
from service.store.claims import Claim, ClaimStore, ProfileOutcome

Gateway = Callable[..., Awaitable[httpx.AsyncClient]]


def stateful(app: ASGIApp, state: dict[str, Any]) -> ASGIApp:
    """What a server does with the lifespan's state."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "state": dict(state)}, receive, send)

    return call


@pytest.fixture
async def gateway(redis_url: str) -> AsyncIterator[Gateway]:
    """Starts a gateway with the given settings and returns a client of it."""
    async with AsyncExitStack() as exits:

        async def start(*, raise_errors: bool = True, **settings: Any) -> httpx.AsyncClient:
            app = create_app(Settings(**{"redis_url": redis_url, **settings}))
            state = await exits.enter_async_context(app.router.lifespan_context(app))
            transport = httpx.ASGITransport(
                stateful(app, dict(state or {})), raise_app_exceptions=raise_errors
            )
            client = httpx.AsyncClient(transport=transport, base_url="http://test")
            return await exits.enter_async_context(client)

        yield start


@pytest.fixture
async def client(gateway: Gateway) -> httpx.AsyncClient:
    """A client of a gateway with default settings."""
    return await gateway()


class Worker:
    """The worker's side of the queue, by hand."""

    def __init__(self, client: redis.Redis) -> None:
        self.store = ClaimStore(client, name="w1", queues=["cpu", "endpoints"])

    def announce(self, queue: str = "cpu", seconds: float = 30.0) -> None:
        facts = {"worker": "w1", "device": "cpu", "queue": queue, "warm": [], "local": []}
        self.store.announce(WorkerModels.model_validate(facts), seconds)

    def claim(self) -> Claim:
        claim = self.store.claim()
        assert claim is not None
        return claim

    def finish(self, profile: Profile) -> str:
        """Take the next job and end it with this profile."""
        assert self.store.finish(self.claim(), outcome(profile)) == "ok"
        return profile.id

    def fail(self, code: str, detail: str, field: str | None = None) -> None:
        """Take the next job and end it with this failure."""
        self.fail_claim(self.claim(), code, detail, field)

    def fail_claim(
        self,
        claim: Claim,
        code: str = "not_finite",
        detail: str = "gradients are NaN in float32",
        field: str | None = None,
    ) -> None:
        failure = Failure(code=code, detail=detail, retryable=False, field=field)
        assert self.store.fail(claim, failure) == "ok"

    def idle(self) -> bool:
        return self.store.claim() is None


def outcome(profile: Profile) -> ProfileOutcome:
    body = ProfileBody.model_validate(profile.model_dump(include=set(ProfileBody.model_fields)))
    envelope = ProfileEnvelope.model_validate(
        profile.model_dump(include=set(ProfileEnvelope.model_fields))
    )
    measured, shape, recall = profile.measured, profile.shape, main_recall(profile.recall)
    summary = ProfileSummary(
        id=profile.id,
        model=profile.model.id,
        revision=None,
        weights=profile.request.weights,
        sequence_length=profile.request.sequence_length,
        objective=profile.request.objective,
        documents=measured.documents if measured else 40,
        recall=recall is not None,
        recall_verdict=recall.verdict if recall else None,
        recall_spread=recall.spread if recall else None,
        shape=shape.class_ if shape else None,
        dead_zone=profile.dead_zone,
        dead_zone_verdict=profile.dead_zone_verdict,
        primacy_mass=shape.primacy_mass if shape else None,
        recency_mass=shape.recency_mass if shape else None,
        created_at=profile.created_at,
    )
    parts = (part.model_dump_json().encode() for part in (body, envelope, summary))
    return ProfileOutcome(profile.id, *parts)


@pytest.fixture
def worker(redis_sync: redis.Redis) -> Worker:
    """A worker on the same store."""
    return Worker(redis_sync)


@dataclass(frozen=True)
class Process:
    """A gateway process of its own."""

    base: str
    child: subprocess.Popen[bytes]
    log: Path

    def wait(self) -> None:
        for _ in range(600):
            assert self.child.poll() is None, self.log.read_text()
            try:
                assert httpx.get(f"{self.base}/readyz").status_code == 200, self.log.read_text()
            except httpx.HTTPError:
                time.sleep(0.1)
            else:
                return
        pytest.fail("the gateway did not start")


StartProcess = Callable[..., AbstractContextManager[Process]]


@pytest.fixture
def start_process(redis_url: str, worker: Worker, tmp_path: Path) -> StartProcess:
    """Starts a gateway process with a live worker; `more` are environment variables."""

    @contextmanager
    def start(command: str = "service.terminal gateway", **more: str) -> Iterator[Process]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        worker.announce(seconds=600)
        log = tmp_path / "gateway.log"
        with log.open("wb") as sink:
            child = subprocess.Popen(
                [sys.executable, "-m", *command.format(port=port).split()],
                env={**os.environ, "LACUNA_REDIS_URL": redis_url, "LACUNA_PORT": port, **more},
                cwd=Path(__file__).parents[3],
                stdout=sink,
                stderr=sink,
            )
            found = Process(f"http://127.0.0.1:{port}", child, log)
            try:
                found.wait()
                yield found
            finally:
                child.terminate()
                child.wait(20)

    return start


@pytest.fixture
def process(start_process: StartProcess, worker: Worker, profile: Profile) -> Iterator[Process]:
    """A gateway process with a live worker and one profile in its store."""
    with start_process(LACUNA_MAX_WAIT_SECONDS="0.2") as found:
        body = {"model": "preset:gpt2", "weights": "random"}
        httpx.post(f"{found.base}/v1/profiles", json=body).raise_for_status()
        worker.finish(profile)
        yield found


@pytest.fixture
async def stored(client: httpx.AsyncClient, worker: Worker, profile: Profile) -> str:
    """Id of a profile that is in the store."""
    body = {"model": "preset:gpt2", "weights": "random"}
    assert (await client.post("/v1/profiles", json=body)).status_code == 202
    return worker.finish(profile)
