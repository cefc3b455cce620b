"""Jobs of several kinds and versions on one store: who takes them, and what stays of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import redis
import redis.asyncio

from lacuna.contract import experiment_requests, profile_requests
from lacuna.contract.models import WorkerModels
from service.store import connection, keys, kinds
from service.store.claims import Claim, ClaimStore, ExperimentOutcome, ProfileOutcome
from service.store.profiles import read_experiment
from service.store.queue import JobStore

A, B = "a" * 32, "b" * 32
NEWER = "5.of.tomorrow"
PROFILE = ProfileOutcome(A, b"{}", b"{}", b'{"model": "m"}')
EXPERIMENT = ExperimentOutcome(b'{"verdict": 1}', b"\x00\xffrows")


@pytest.fixture
async def jobs(redis_async: redis.asyncio.Redis) -> AsyncIterator[JobStore]:
    store = JobStore(redis_async, job_ttl=100)
    yield store
    await store.close()


def worker(client: redis.Redis, name: str = "w", *queues: keys.QueueName) -> ClaimStore:
    found = ClaimStore(client, name=name, queues=queues or ("cpu",), lease=30, job_ttl=100)
    found.announce(
        WorkerModels(worker=name, device="cpu", queue=found.queues[0], warm=[], local=[]), 30
    )
    return found


def taken(claims: ClaimStore) -> Claim:
    claim = claims.claim()
    assert claim is not None
    return claim


@pytest.fixture
def old(redis_sync: redis.Redis) -> ClaimStore:
    """A worker of this version."""
    return worker(redis_sync, "old")


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on everything is of the next method."""
    monkeypatch.setattr(profile_requests, "METHOD_VERSION", NEWER)


async def test_the_oldest_job_comes_first_whatever_its_kind(
    jobs: JobStore, old: ClaimStore
) -> None:
    await jobs.submit(A, b"{}", queue="cpu", kind="experiment", identity=B)
    await jobs.submit(B, b"{}", queue="cpu")
    await jobs.submit("c" * 32, b"{}", queue="cpu", kind="experiment", high=True)
    assert [(await jobs.get(job)).position for job in (A, B, "c" * 32)] == [1, 2, 0]
    found = [taken(old) for _ in range(3)]
    assert [claim.kind for claim in found] == ["experiment", "experiment", "profile"]
    assert (found[1].job_id, found[1].identity, found[2].identity) == (A, B, B)
    assert old.claim() is None


async def test_an_older_worker_leaves_what_a_newer_gateway_asks_for(
    jobs: JobStore, old: ClaimStore, redis_sync: redis.Redis, newer: None
) -> None:
    await jobs.submit(A, b"{}", queue="cpu")
    assert old.claim() is None
    waiting = await jobs.get(A)
    assert waiting.message.startswith(f"waits for a CPU worker of method version {NEWER}:")
    assert (waiting.state, waiting.attempt) == ("queued", 0)
    await asyncio.to_thread(old.wait, 0.2)  # no token of that lane wakes it
    assert not await asyncio.to_thread(old.wait, 0.1)
    new = worker(redis_sync, "new")
    assert (await jobs.get(A)).message == ""
    assert taken(new).job_id == A


async def test_what_waits_for_another_version_holds_up_nobody(
    jobs: JobStore, old: ClaimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(profile_requests, "METHOD_VERSION", NEWER)
        await jobs.submit(A, b"{}", queue="cpu")
    assert (await jobs.submit(B, b"{}", queue="cpu")).job.position == 0
    assert taken(old).job_id == B
    # Whoever asks again through this gateway gets a job that the workers know.
    said = (await jobs.get(A)).message
    assert said.startswith(f"waits for a CPU worker of method version {NEWER}:")
    assert said.endswith("If none will come, withdraw it and ask again")


async def test_a_field_that_only_the_gateway_knows_is_another_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = kinds.known()
    identity = profile_requests.ProfileRequest.identity
    monkeypatch.setattr(
        profile_requests.ProfileRequest, "identity", lambda self: {**identity(self), "new": None}
    )
    assert kinds.needs("profile") not in before
    assert kinds.needs("experiment") in before
    monkeypatch.setattr(experiment_requests, "EXPERIMENT_METHOD_VERSION", NEWER)
    assert kinds.needs("experiment") not in before


async def test_a_job_moves_to_the_queue_whose_workers_know_it(
    jobs: JobStore,
    redis_sync: redis.Redis,
    newer: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await jobs.submit(A, b"{}", queue="gpu")
    with monkeypatch.context() as patch:
        patch.setattr(profile_requests, "METHOD_VERSION", "4")
        worker(redis_sync, "old", "gpu", "cpu")
    monkeypatch.setattr(keys, "STRANDED_US", 1)
    connection.lua_source.cache_clear()
    new = worker(redis_sync, "new", "cpu")
    new.expire()
    connection.lua_source.cache_clear()
    assert taken(new).job_id == A


async def test_a_declined_job_stands_aside_until_workers_are_asked_again(
    jobs: JobStore, old: ClaimStore, redis_sync: redis.Redis
) -> None:
    await jobs.submit(A, b"{}", queue="cpu")
    assert old.release(taken(old), declined=True) == "ok"
    assert old.claim() is None
    job = await jobs.get(A)
    assert (job.state, job.attempt, job.started_at) == ("queued", 0, None)
    assert "newer worker" in job.message
    # Asked for again, withdrawn and asked for again with high priority: it stays one waiting job.
    assert not (await jobs.submit(A, b"{}", queue="cpu", high=True)).created
    assert old.claim() is None
    assert old.mend() == 0, "nothing was broken"
    assert (await jobs.get(A)).message == ""
    redis_sync.delete(keys.HOUSEKEEPER)
    assert old.mend() == 0
    assert taken(old).attempt == 1
    assert (await jobs.cancel(A)).message == "stopping"


async def test_a_declined_job_can_be_withdrawn(
    jobs: JobStore, old: ClaimStore, redis_sync: redis.Redis
) -> None:
    await jobs.submit(A, b"{}", queue="cpu", private=True)
    old.release(taken(old), declined=True)
    assert (await jobs.cancel(A)).state == "cancelled"
    assert redis_sync.hget(keys.job(A), "document") is None
    old.mend()
    assert old.claim() is None


async def test_an_experiment_leaves_its_result_as_long_as_its_job(
    jobs: JobStore,
    old: ClaimStore,
    redis_sync: redis.Redis,
    redis_async: redis.asyncio.Redis,
) -> None:
    await jobs.submit(A, b"{}", queue="cpu", kind="experiment", pinned=True, private=True)
    assert old.finish(taken(old), EXPERIMENT) == "ok"
    job = await jobs.get(A)
    assert (job.kind, job.state, job.profile_id) == ("experiment", "done", None)
    assert await read_experiment(redis_async, A) == EXPERIMENT
    # Pinned or not: it is not kept for ever.
    assert 0 < redis_sync.ttl(keys.experiment(A)) <= 100
    assert 0 < redis_sync.pttl(keys.job(A)) - keys.RECORD_GRACE_MS <= 100_000
    assert redis_sync.zcard(keys.PROFILES) == 0
    assert not (await jobs.submit(A, b"{}", queue="cpu", kind="experiment", pinned=True)).created
    redis_sync.delete(keys.experiment(A))
    assert (await jobs.submit(A, b"{}", queue="cpu", kind="experiment", pinned=True)).created


async def test_a_result_that_comes_late_ends_only_a_job_that_waits(
    jobs: JobStore,
    old: ClaimStore,
    redis_sync: redis.Redis,
    redis_async: redis.asyncio.Redis,
) -> None:
    """A profile is kept in any case; an experiment is its caller's, who may have withdrawn it."""
    await jobs.submit(A, b"{}", queue="cpu", kind="experiment")
    late = taken(old)
    old.release(late)
    await jobs.cancel(A)
    assert old.finish(late, EXPERIMENT, late=True) == "lost"
    assert await read_experiment(redis_async, A) is None
    assert redis_sync.zcard(keys.EXPERIMENTS) == 0
    await jobs.submit(A, b"{}", queue="cpu", kind="experiment")
    assert old.finish(late, EXPERIMENT, late=True) == "ok"
    assert (await jobs.get(A)).state == "done"


async def test_results_are_bounded_together_and_the_oldest_go(
    jobs: JobStore,
    redis_sync: redis.Redis,
    redis_async: redis.asyncio.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keys, "RESULTS_BYTES", 250)
    connection.lua_source.cache_clear()
    claims = worker(redis_sync)
    for number in range(4):
        await jobs.submit(f"{number:032x}", b"{}", queue="cpu", kind="experiment")
        size = 1_000 if number == 3 else 100
        claims.finish(taken(claims), ExperimentOutcome(b"x" * size, b""))
        left = [n for n in range(4) if await read_experiment(redis_async, f"{n:032x}")]
        assert left == [[0], [0, 1], [1, 2], [3]][number]
    connection.lua_source.cache_clear()
    assert redis_sync.zcard(keys.EXPERIMENTS) == 1


async def test_each_kind_has_a_mean_run_time_of_its_own(
    jobs: JobStore, old: ClaimStore, redis_sync: redis.Redis
) -> None:
    redis_sync.hset(keys.STATS, f"{keys.MEAN_RUN}cpu:experiment", 1_000)
    await jobs.submit(A, b"{}", queue="cpu")
    old.finish(taken(old), PROFILE)
    assert (await jobs.submit(B, b"{}", queue="cpu")).job.eta_seconds < 10  # type: ignore[operator]
    longer = await jobs.submit("c" * 32, b"{}", queue="cpu", kind="experiment")
    assert 1_000 <= (longer.job.eta_seconds or 0) < 1_010


def as_the_first_version_left_it(client: redis.Redis, state: str, leased: bool) -> None:
    fields = {"state": state, "queue": "cpu", "high": "0", "request": "{}", "created": "1",
              "attempts": "1", "interest": "1", "by:ann": "1", "started": "2", "progress": "0",
              "message": ""}  # fmt: skip
    client.hset(keys.job(A), mapping=fields)
    client.zadd(f"{keys.LEASED}cpu" if leased else f"{keys.READY}cpu", {A: 1})


async def test_jobs_of_the_first_version_stay_with_its_workers(
    jobs: JobStore, old: ClaimStore, redis_sync: redis.Redis
) -> None:
    as_the_first_version_left_it(redis_sync, "running", leased=True)
    assert (await jobs.get(A)).kind == "profile"
    assert old.expire() == 1
    assert redis_sync.zscore(f"{keys.READY}cpu", A) == 1
    assert old.claim() is None
    assert (await jobs.get(A)).state == "queued"
    assert (await jobs.cancel(A, "ann")).state == "cancelled"


async def test_workers_of_the_first_version_find_nothing_of_ours(
    jobs: JobStore, redis_sync: redis.Redis
) -> None:
    """They read this list, and put back into it whatever has a field `request`."""
    await jobs.submit(A, b"{}", queue="cpu")
    assert redis_sync.exists(f"{keys.READY}cpu") == 0
    assert redis_sync.hget(keys.job(A), "request") is None
