"""Endpoints through the queue with real workers: kill, cancel, budget, secrets, two of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from pydantic import SecretStr

from lacuna.contract.endpoints import EndpointAbilities
from lacuna.contract.experiments import ExperimentResult
from lacuna.contract.jobs import TERMINAL
from lacuna.contract.profile_requests import ProfileRequest
from lacuna.contract.profiles import Profile
from service.answers.drift import Drifts
from service.store import keys
from service.store.profiles import ProfileStore, read_experiment, read_profile, unpacked
from service.store.queue import JobRecord, JobStore
from tests.workers.endpoints.fake_dialects import DIALECTS
from tests.workers.endpoints.fake_model import FakeModel, recency
from tests.workers.endpoints.fake_server import KEY, FakeServer, Faults
from tests.workers.endpoints.harness import endpoint_of
from tests.workers.experiments.test_served import request_of
from workers.endpoints.ledger import MemoryLedger
from workers.endpoints.measurement import open_reader, plan, run

ROOT = Path(__file__).parents[3]
CONCURRENCY = 3
CANARIES = 3
"""Calls that are made anew when a measurement starts again: they tell whether the model changed."""
SMALL: dict[str, Any] = {
    "model": "endpoint:prod",
    "sequence_length": 256,
    "recall": {"depths": 3, "groups": 16},
}


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with DIALECTS["vllm"](FakeModel(recency)) as running:
        yield running


class Workers:
    """Endpoint workers as processes on one store."""

    def __init__(self, url: str, folder: Path, server: FakeServer) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        table = {
            "base_url": f"{server.url}/v1",
            "model": "fake",
            "form": "plain",
            "context_length": 4096,
            "key_variable": "PROD_KEY",
            "concurrency": CONCURRENCY,
            "input_price": 1.0,
            "output_price": 2.0,
        }
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "LACUNA_REDIS_URL": url,
            "LACUNA_DATA_DIR": str(folder),
            "LACUNA_LEASE_SECONDS": "2",
            "LACUNA_GRACE_SECONDS": "1",
            "LACUNA_ENDPOINTS": json.dumps({"prod": table}),
            "PROD_KEY": KEY,
        }

    def start(self, **more: str) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{len(self.processes)}.log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "workers", "--queue", "endpoints"],
                env={**self.environment, **more},
                stderr=log,
                cwd=self.folder,
            )
        self.processes.append(process)
        return process

    @property
    def logs(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def endpoint_workers(redis_url: str, tmp_path: Path, server: FakeServer) -> Iterator[Workers]:
    started = Workers(redis_url, tmp_path, server)
    yield started
    started.close()


@pytest.fixture
async def store(redis_async: redis.asyncio.Redis) -> AsyncIterator[JobStore]:
    opened = JobStore(redis_async)
    yield opened
    await opened.close()


def request(**fields: Any) -> ProfileRequest:
    return ProfileRequest.model_validate({**SMALL, **fields})


async def submit(store: JobStore, asked: ProfileRequest) -> str:
    document = asked.model_dump_json(exclude_defaults=True).encode()
    await store.submit(asked.job_id, document, queue="endpoints")
    return asked.job_id


async def ended(store: JobStore, job_id: str, seconds: float = 240) -> JobRecord:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        job = await store.wait(job_id, 5)
        if job.state in TERMINAL:
            return job
    raise AssertionError(f"the job is {job}")


def until(true: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)


def undisturbed() -> int:
    """Calls that the same measurement takes when nothing happens to it."""
    with DIALECTS["vllm"](FakeModel(recency)) as server:
        endpoint = endpoint_of(server, name="prod", form="plain", concurrency=CONCURRENCY)
        with open_reader(endpoint, SecretStr(KEY), request(), MemoryLedger()) as reader:
            run(plan(reader, request()), on_share=lambda *_: None, check=lambda: None)
        return server.requests


async def test_a_kill_in_the_middle_pays_no_answer_twice_but_those_under_way(
    store: JobStore,
    redis_sync: redis.Redis,
    server: FakeServer,
    endpoint_workers: Workers,
) -> None:
    first = endpoint_workers.start()
    asked = request()
    job_id = await submit(store, asked)
    until(lambda: sum(server.answered.values()) > 250)
    first.kill()
    first.wait()
    before, kept = sum(server.answered.values()), len(redis_sync.keys(f"{keys.ANSWER}*"))
    endpoint_workers.start()
    job = await ended(store, job_id)
    assert (job.state, job.attempt) == ("done", 2)

    stored = read_profile(redis_sync, job.profile_id or "")
    assert stored is not None
    found = Profile.model_validate_json(stored.body[:-1] + b"," + stored.envelope[1:])
    assert found.spending is not None
    assert found.spending.replayed >= kept - CANARIES - 1, "what was kept came from the store"
    whole, calls = sum(server.answered.values()), found.spending.calls
    # The server may have answered what was under way when the first worker was killed.
    assert 0 <= whole - before - calls <= CONCURRENCY, "every call of the second start is counted"
    assert server.requests <= await asyncio.to_thread(undisturbed) + CANARIES + CONCURRENCY
    curve = (found.recall or {})["facts"]
    assert curve.probability == sorted(curve.probability)
    assert curve.reader == "endpoint"
    assert found.endpoint is not None
    assert found.endpoint.served_model == "fake"
    assert found.measured is None


async def test_the_key_is_in_no_log_profile_key_or_metric(
    store: JobStore,
    redis_sync: redis.Redis,
    server: FakeServer,
    endpoint_workers: Workers,
) -> None:
    endpoint_workers.start(LACUNA_LOG_LEVEL="debug")
    job_id = await submit(store, request())
    assert (await ended(store, job_id)).state == "done"
    server.faults = Faults(hidden_key=True, redirect="http://127.0.0.1:9/v1")
    failed = await submit(store, request(seed=1))
    job = await ended(store, failed)
    assert job.failure is not None
    assert job.failure.code == "endpoint_refused"
    everything = [endpoint_workers.logs, repr(job)]
    for name in redis_sync.keys("*"):
        kind = redis_sync.type(name)
        reads = {
            b"string": redis_sync.get, b"hash": redis_sync.hgetall,
            b"set": redis_sync.smembers, b"list": lambda k: redis_sync.lrange(k, 0, -1),
            b"zset": lambda k: redis_sync.zrange(k, 0, -1), b"stream": redis_sync.xrange,
            b"none": str,
        }  # fmt: skip
        everything.append(repr(reads[kind](name)))
    text = "".join(everything)
    assert "job ends" in text
    assert KEY not in text
    document = redis_sync.get(keys.endpoint("prod"))
    assert document is not None
    offered = EndpointAbilities.model_validate_json(document)
    assert offered.rung == "answer"
    assert offered.refused


async def test_a_budget_ends_a_job_within_the_calls_under_way(
    store: JobStore, server: FakeServer, endpoint_workers: Workers
) -> None:
    server.faults = Faults(usage_grows=200)
    endpoint_workers.start()
    asked = request(sequence_length=512, budget={"max_tokens": 110_000})
    job = await ended(store, await submit(store, asked))
    assert job.failure is not None
    assert job.failure.code == "budget_spent"
    tokens = server.tokens_told
    one = server.longest_told
    assert 110_000 - one < tokens <= 110_000 + CONCURRENCY * one


async def test_two_workers_keep_the_endpoints_concurrency_together(
    store: JobStore, server: FakeServer, endpoint_workers: Workers
) -> None:
    server.faults = Faults(slow=0.01)
    for _ in range(2):
        endpoint_workers.start()
    jobs = [await submit(store, request(seed=seed)) for seed in (1, 2)]
    found = [await ended(store, job) for job in jobs]
    assert [job.state for job in found] == ["done", "done"]
    assert server.most_under_way == CONCURRENCY


async def test_a_cancelled_and_a_given_back_job_resume(
    store: JobStore, server: FakeServer, endpoint_workers: Workers
) -> None:
    first = endpoint_workers.start()
    asked = request()
    job_id = await submit(store, asked)
    until(lambda: server.requests > 200)
    await store.cancel(job_id)
    assert (await ended(store, job_id)).state == "cancelled"
    after_cancel = server.requests
    await submit(store, asked)
    until(lambda: server.requests > after_cancel + 100)
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 0
    endpoint_workers.start()
    job = await ended(store, job_id)
    assert (job.state, job.attempt) == ("done", 1)
    assert server.requests <= await asyncio.to_thread(undisturbed) + 2 * (CANARIES + CONCURRENCY)


async def test_an_experiment_goes_on_after_a_kill_and_leaves_nothing_of_its_texts(
    store: JobStore,
    redis_sync: redis.Redis,
    redis_async: redis.asyncio.Redis,
    server: FakeServer,
    endpoint_workers: Workers,
) -> None:
    first = endpoint_workers.start()
    asked = request_of(24, model="endpoint:prod")
    document, job_id = asked.model_dump_json(exclude_defaults=True).encode(), "e" * 32
    await store.submit(
        job_id,
        document,
        queue="endpoints",
        kind="experiment",
        identity=asked.job_id,
        private=True,
    )
    until(lambda: sum(server.answered.values()) > 60)
    first.kill()
    first.wait()
    kept = len(redis_sync.keys(f"{keys.ANSWER}*"))
    assert kept > 20
    endpoint_workers.start()
    job = await ended(store, job_id)
    assert (job.state, job.attempt, job.kind) == ("done", 2, "experiment"), job.failure
    found = await read_experiment(redis_async, job_id)
    assert found is not None
    result = ExperimentResult.model_validate_json(found.result)
    assert (result.id, result.questions) == (job_id, 24)
    assert result.usage.replayed >= kept - CANARIES - 1
    assert result.orders[1].difference.value > 0, "this model listens to the end"
    assert unpacked(found.rows).count(b"\r\n") == 1 + 24 * 4
    assert redis_sync.keys(f"{keys.ANSWER}*") == [], "answers to a caller's own texts"


async def test_a_model_that_changed_behind_its_endpoint_raises_the_alert(
    store: JobStore,
    redis_async: redis.asyncio.Redis,
    server: FakeServer,
    endpoint_workers: Workers,
) -> None:
    """The same groups are asked again, and another model recalls next to nothing."""
    endpoint_workers.start()
    profiles = ProfileStore(redis_async)
    watch, alerts = Drifts(profiles.get), []
    for groups, model in (
        (16, server.model),
        (17, server.model),
        (18, FakeModel(lambda _: 0.05, flavour="other")),
    ):
        server.model = model
        asked = request(recall={"probes": ["pairs"], "depths": 3, "groups": groups})
        assert (await ended(store, await submit(store, asked))).state == "done"
        newest = (await profiles.list(None, 10, None)).items
        for drift in await watch.among(newest):
            (recall,) = drift.recall
            alerts.append((recall.groups, recall.alert))
    assert alerts == [(16, False), (17, True)]
    fallen = recall.changes[2]
    assert (fallen.statistic, drift.influence) == ("depth_3", None)
    assert fallen.high < 0
