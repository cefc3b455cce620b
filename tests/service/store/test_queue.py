"""The queue as gateway and worker share it, on a real server."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis
import redis.asyncio

from lacuna.contract.errors import JobNotFound, QueueFull, StoreUnavailable
from lacuna.contract.jobs import Failure
from service.store import keys
from service.store.claims import ClaimStore, ProfileOutcome
from service.store.connection import connect_async
from service.store.kinds import needs
from service.store.profiles import read_profile
from service.store.queue import JobStore

REQUEST = b'{"model": "preset:gpt2"}'


def name(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()[:32]


def result(number: int = 1, body: bytes = b'{"a": 1}') -> ProfileOutcome:
    return ProfileOutcome(name(number), body, b"{}", b'{"model": "preset:gpt2"}')


FAILURE = Failure(code="out_of_memory", detail="no", retryable=False, field="sequence_length")


@pytest.fixture
async def jobs(redis_async: redis.asyncio.Redis) -> AsyncIterator[JobStore]:
    store = JobStore(redis_async, max_queued=5, resolve_ttl=60, job_ttl=100)
    yield store
    await store.close()


@pytest.fixture
def claims(redis_sync: redis.Redis) -> ClaimStore:
    return ClaimStore(redis_sync, name="worker-1", queues=["cpu"], lease=0.5, job_ttl=100)


@pytest.fixture
def rival(redis_sync: redis.Redis) -> ClaimStore:
    return ClaimStore(redis_sync, name="worker-2", queues=["cpu"], lease=30)


async def test_a_thousand_simultaneous_submissions_are_one_job(jobs: JobStore) -> None:
    calls = [jobs.submit(name(1), REQUEST, queue="cpu") for _ in range(1_000)]
    answers = await asyncio.gather(*calls)
    assert sum(answer.created for answer in answers) == 1
    assert {answer.job.state for answer in answers} == {"queued"}


async def test_a_job_runs_once_from_queue_to_profile(
    jobs: JobStore, claims: ClaimStore, redis_sync: redis.Redis
) -> None:
    await jobs.submit(name(1), REQUEST, queue="cpu", trace="req-7")
    claim = claims.claim()
    assert claim is not None
    assert (claim.job_id, claim.request, claim.attempt) == (name(1), REQUEST, 1)
    assert claim.trace == "req-7"
    assert claims.claim() is None
    assert claims.beat(claim, 0.25, "batch 1") == "ok"
    job = await jobs.get(name(1))
    assert (job.state, job.progress, job.message, job.position) == (
        "running",
        0.25,
        "batch 1",
        None,
    )
    assert claims.finish(claim, result()) == "ok"
    job = await jobs.get(name(1))
    assert (job.state, job.profile_id, job.failure) == ("done", name(1), None)
    assert job.started_at is not None
    assert job.finished_at is not None
    stored = read_profile(redis_sync, name(1))
    assert stored is not None
    assert stored.body == b'{"a": 1}'


async def test_the_request_is_forgotten_at_the_end(
    jobs: JobStore, claims: ClaimStore, redis_sync: redis.Redis
) -> None:
    """It may hold the caller's own texts."""
    await jobs.submit(name(1), REQUEST, queue="cpu")
    claim = claims.claim()
    assert claim is not None
    claims.fail(claim, FAILURE)
    assert redis_sync.hget(keys.job(name(1)), "document") is None


async def test_no_text_can_keep_a_job_from_ending(jobs: JobStore, claims: ClaimStore) -> None:
    await jobs.submit(name(1), REQUEST, queue="cpu")
    claim = claims.claim()
    assert claim is not None
    assert claims.beat(claim, 0.5, "reading \udcff") == "ok"
    odd = Failure(code="internal_error", detail="\udcff" + "x" * 10_000, retryable=True)
    assert claims.fail(claim, odd) == "ok"
    job = await jobs.get(name(1))
    assert job.failure is not None
    assert len(job.failure.detail) == 2_000


async def test_only_terminal_jobs_expire(
    jobs: JobStore, claims: ClaimStore, redis_sync: redis.Redis
) -> None:
    await jobs.submit(name(1), REQUEST, queue="cpu")
    assert redis_sync.ttl(keys.job(name(1))) == -1
    claim = claims.claim()
    assert claim is not None
    assert redis_sync.ttl(keys.job(name(1))) == -1
    claims.finish(claim, result())
    assert 0 < redis_sync.pttl(keys.job(name(1))) - keys.RECORD_GRACE_MS <= 100_000


@pytest.mark.parametrize("pinned", [True, False])
async def test_done_stands_while_fresh_or_pinned(
    redis_async: redis.asyncio.Redis, claims: ClaimStore, pinned: bool
) -> None:
    jobs = JobStore(redis_async, resolve_ttl=0.05, job_ttl=100)
    await jobs.submit(name(1), REQUEST, queue="cpu", pinned=pinned)
    claim = claims.claim()
    assert claim is not None
    claims.finish(claim, result())
    again = await jobs.submit(name(1), REQUEST, queue="cpu", pinned=pinned)
    assert (again.created, again.job.state) == (False, "done")
    await asyncio.sleep(0.1)
    later = await jobs.submit(name(1), REQUEST, queue="cpu", pinned=pinned)
    assert (later.created, later.job.state) == ((False, "done") if pinned else (True, "queued"))
    assert (await redis_async.ttl(keys.job(name(1)))) == -1


async def test_done_without_its_profile_is_made_again(
    jobs: JobStore, claims: ClaimStore, redis_sync: redis.Redis
) -> None:
    await jobs.submit(name(1), REQUEST, queue="cpu", pinned=True)
    claim = claims.claim()
    assert claim is not None
    claims.finish(claim, result())
    redis_sync.delete(keys.profile(name(1)))
    again = await jobs.submit(name(1), REQUEST, queue="cpu", pinned=True)
    assert (again.created, again.job.state, again.job.profile_id) == (True, "queued", None)


async def test_failed_and_cancelled_jobs_are_made_again(jobs: JobStore, claims: ClaimStore) -> None:
    await jobs.submit(name(1), REQUEST, queue="cpu")
    claim = claims.claim()
    assert claim is not None
    claims.fail(claim, FAILURE)
    job = await jobs.get(name(1))
    assert job.state == "failed"
    assert job.failure == FAILURE
    again = await jobs.submit(name(1), REQUEST, queue="cpu")
    assert again.created
    assert (again.job.state, again.job.failure, again.job.attempt) == ("queued", None, 0)
    assert (await jobs.cancel(name(1))).state == "cancelled"
    assert (await jobs.submit(name(1), REQUEST, queue="cpu")).created


async def test_a_full_queue_refuses_and_says_when_to_retry(jobs: JobStore) -> None:
    for number in range(5):
        await jobs.submit(name(number), REQUEST, queue="cpu")
    with pytest.raises(QueueFull) as refusal:
        await jobs.submit(name(5), REQUEST, queue="cpu")
    assert refusal.value.retry_after is not None
    assert 1 <= refusal.value.retry_after <= 60
    assert not (await jobs.submit(name(3), REQUEST, queue="cpu")).created
    with pytest.raises(JobNotFound):
        await jobs.get(name(5))


async def test_position_counts_those_ahead_and_high_priority_goes_first(
    jobs: JobStore, claims: ClaimStore
) -> None:
    for number in range(3):
        answer = await jobs.submit(name(number), REQUEST, queue="cpu")
        assert answer.job.position == number
    high = await jobs.submit(name(9), REQUEST, queue="cpu", high=True)
    assert high.job.position == 0
    assert (await jobs.get(name(0))).position == 1
    promoted = await jobs.submit(name(2), REQUEST, queue="cpu", high=True)
    assert (promoted.created, promoted.job.position) == (False, 0)
    order = [claim.job_id for _ in range(4) if (claim := claims.claim()) is not None]
    assert order == [name(2), name(9), name(0), name(1)]


async def run_one(jobs: JobStore, claims: ClaimStore, number: int, seconds: float = 0.2) -> None:
    """A job that takes so long."""
    await jobs.submit(name(number), REQUEST, queue="cpu")
    claim = claims.claim()
    assert claim is not None
    await asyncio.sleep(seconds)
    assert claims.finish(claim, result(number)) == "ok"


async def eta(jobs: JobStore, number: int) -> float | None:
    return (await jobs.submit(name(number), REQUEST, queue="cpu")).job.eta_seconds


async def test_a_waiting_job_is_estimated_by_past_jobs_and_those_ahead(
    jobs: JobStore, claims: ClaimStore
) -> None:
    assert await eta(jobs, 0) is None, "no job has ended yet"
    await jobs.cancel(name(0))
    await run_one(jobs, claims, 1, seconds=1.0)
    first, second = await eta(jobs, 2), await eta(jobs, 3)
    assert first == pytest.approx(1, abs=0.3)
    assert second == pytest.approx(2, abs=0.6)
    claims.claim()
    assert (await jobs.get(name(3))).eta_seconds == pytest.approx(1.5, abs=0.5)


async def test_a_running_job_is_estimated_by_its_own_pace_since_its_model_was_loaded(
    jobs: JobStore, rival: ClaimStore
) -> None:
    await jobs.submit(name(1), REQUEST, queue="cpu")
    claim = rival.claim()
    assert claim is not None

    async def left() -> float | None:
        return (await jobs.get(name(1))).eta_seconds

    rival.beat(claim, 0.0, "loading the model")
    await asyncio.sleep(1)
    assert await left() is None
    rival.beat(claim, 0.04, "reading the documents")
    await asyncio.sleep(0.3)
    rival.beat(claim, 0.34, "document 1/3")
    assert await left() == pytest.approx(0.66, abs=0.3)
    # Another worker begins from the start, with a pace of its own.
    rival.release(claim)
    again = rival.claim()
    assert again is not None
    assert await left() is None
    await asyncio.sleep(0.3)
    rival.beat(again, 0.1, "document 1/10")
    assert await left() == pytest.approx(2.7, abs=1)


async def test_the_mean_run_learns_nothing_from_a_profile_that_was_there_already(
    jobs: JobStore, claims: ClaimStore
) -> None:
    await run_one(jobs, claims, 1)
    before = await eta(jobs, 2)
    claim = claims.claim()
    assert claim is not None
    assert claims.finish(claim, result(1)) == "ok"
    assert await eta(jobs, 3) == before


async def test_an_expired_lease_requeues_in_front_and_fences_the_former_owner(
    jobs: JobStore, claims: ClaimStore, rival: ClaimStore
) -> None:
    await jobs.submit(name(1), REQUEST, queue="cpu")
    await jobs.submit(name(2), REQUEST, queue="cpu")
    lost = claims.claim()
    assert lost is not None
    assert claims.expire() == 0
    await asyncio.sleep(0.55)
    assert rival.expire() == 1
    assert (await jobs.get(name(1))).position == 0
    taken = rival.claim()
    assert taken is not None
    assert (taken.job_id, taken.attempt) == (name(1), 2)
    assert claims.beat(lost, 0.9, "still here") == "lost"
    assert claims.finish(lost, result(7)) == "lost"
    assert claims.fail(lost, FAILURE) == "lost"
    assert claims.cancelled(lost) == "lost"
    assert claims.release(lost) == "lost"
    assert (await jobs.get(name(1))).progress == 0
    assert rival.finish(taken, result(1)) == "ok"
    assert (await jobs.get(name(1))).profile_id == name(1)


async def test_a_beat_keeps_the_lease(jobs: JobStore, claims: ClaimStore) -> None:
    await jobs.submit(name(1), REQUEST, queue="cpu")
    claim = claims.claim()
    assert claim is not None
    for _ in range(4):
        await asyncio.sleep(0.2)
        assert claims.beat(claim, 0, "") == "ok"
        assert claims.expire() == 0


async def test_a_poison_job_fails_after_three_deliveries(
    jobs: JobStore,
    claims: ClaimStore,
    redis_sync: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await jobs.submit(name(1), REQUEST, queue="cpu", trace="asked-by")
    for attempt in (1, 2, 3):
        claim = claims.claim()
        assert claim is not None
        assert claim.attempt == attempt
        await asyncio.sleep(0.51)
        claims.expire()
    assert claims.claim() is None
    job = await jobs.get(name(1))
    assert job.state == "failed"
    assert job.failure is not None
    assert job.failure.code == "worker_lost"
    assert "lease expired 3 times" in job.failure.detail
    assert "worker-1" in job.failure.detail
    letters = redis_sync.xrange(keys.DEAD)
    assert [letter[1][b"job"].decode() for letter in letters] == [name(1)]
    # Each loss is told under the job's id, and the last one is an error.
    told = [vars(record) for record in caplog.records]
    assert [line["levelname"] for line in told] == ["WARNING", "WARNING", "ERROR"]
    assert {(line["job_id"], line["request_id"]) for line in told} == {(name(1), "asked-by")}
    assert {line["worker"] for line in told} == {"worker-1"}
    assert [line["attempts"] for line in told] == [1, 2, 3]


async def test_dead_letters_are_bounded(
    redis_async: redis.asyncio.Redis, claims: ClaimStore, redis_sync: redis.Redis
) -> None:
    jobs = JobStore(redis_async)
    hasty = ClaimStore(redis_sync, name="w", queues=["cpu"], lease=1e-6, max_attempts=1)
    for number in range(1_100):
        await jobs.submit(name(number), REQUEST, queue="cpu")
        hasty.claim()
    while hasty.expire():
        pass
    assert redis_sync.xlen(keys.DEAD) == keys.DEAD_LETTERS


async def test_records_of_finished_jobs_are_bounded(
    redis_async: redis.asyncio.Redis, redis_sync: redis.Redis
) -> None:
    """Who submits and withdraws in a loop fills no server, and pushes out no result."""
    jobs = JobStore(redis_async, max_finished=5)
    claims = ClaimStore(redis_sync, name="w", queues=["cpu"], max_finished=5)
    await jobs.submit(name(0), REQUEST, queue="cpu", pinned=True)
    claim = claims.claim()
    assert claim is not None
    claims.finish(claim, result(0))
    for number in range(1, 41):
        await jobs.submit(name(number), REQUEST, queue="cpu")
        await jobs.cancel(name(number))
    assert sorted(records(redis_sync)) == sorted(map(name, [0, *range(36, 41)]))
    assert redis_sync.zcard(f"{keys.ENDED}cancelled") == 5
    # One that is asked for again waits, and is not forgotten with those that ended.
    await jobs.submit(name(36), REQUEST, queue="cpu")
    for number in range(50, 60):
        await jobs.submit(name(number), REQUEST, queue="cpu")
        await jobs.cancel(name(number))
    assert (await jobs.get(name(36))).state == "queued"


async def test_a_forgotten_result_is_found_again(
    redis_async: redis.asyncio.Redis, redis_sync: redis.Redis
) -> None:
    jobs = JobStore(redis_async)
    claims = ClaimStore(redis_sync, name="w", queues=["cpu"], max_finished=2)
    for number in range(4):
        await jobs.submit(name(number), REQUEST, queue="cpu", pinned=True)
        claim = claims.claim()
        assert claim is not None
        assert claims.finish(claim, result(9)) == "ok"
    assert sorted(records(redis_sync)) == sorted(map(name, [2, 3]))
    # What leads to the profile is as bounded, and the profile itself stays.
    ours = {member.decode() for member in redis_sync.smembers(f"{keys.profile(name(9))}:jobs")}
    assert ours == {name(2), name(3)}
    assert (await jobs.submit(name(0), REQUEST, queue="cpu", pinned=True)).created
    assert read_profile(redis_sync, name(9)) is not None


async def test_a_lower_bound_is_reached_step_by_step(
    redis_async: redis.asyncio.Redis, redis_sync: redis.Redis
) -> None:
    for most, count in ((1_000, 300), (10, 3)):
        jobs = JobStore(redis_async, max_finished=most)
        for number in range(count):
            await jobs.submit(name(most + number), REQUEST, queue="cpu")
            await jobs.cancel(name(most + number))
    assert len(records(redis_sync)) == 10


def records(client: redis.Redis) -> list[str]:
    return [key.decode().removeprefix(keys.JOB) for key in client.keys(f"{keys.JOB}*")]


async def test_giving_back_is_not_an_attempt_and_keeps_the_place(
    jobs: JobStore, claims: ClaimStore, rival: ClaimStore
) -> None:
    await jobs.submit(name(1), REQUEST, queue="cpu")
    await jobs.submit(name(2), REQUEST, queue="cpu")
    claim = claims.claim()
    assert claim is not None
    assert claims.release(claim) == "ok"
    assert (await jobs.get(name(1))).attempt == 0
    taken = rival.claim()
    assert taken is not None
    assert (taken.job_id, taken.attempt) == (name(1), 1)


async def test_cancel_of_a_running_job_is_seen_at_the_next_beat(
    jobs: JobStore, claims: ClaimStore
) -> None:
    await jobs.submit(name(1), REQUEST, queue="cpu")
    claim = claims.claim()
    assert claim is not None
    job = await jobs.cancel(name(1))
    assert (job.state, job.message) == ("running", "stopping")
    assert claims.beat(claim, 0.5, "") == "cancel"
    assert claims.cancelled(claim) == "ok"
    job = await jobs.get(name(1))
    assert job.state == "cancelled"
    assert job.failure is not None
    assert job.failure.code == "cancelled"


async def test_a_cancelled_job_whose_worker_dies_ends_cancelled(
    jobs: JobStore, claims: ClaimStore
) -> None:
    await jobs.submit(name(1), REQUEST, queue="cpu")
    claims.claim()
    await jobs.cancel(name(1))
    await asyncio.sleep(0.55)
    claims.expire()
    assert (await jobs.get(name(1))).state == "cancelled"


async def test_cancel_withdraws_one_interest_and_the_last_one_ends_the_job(
    jobs: JobStore,
) -> None:
    for owner in ("ann", "bob", "ann"):
        await jobs.submit(name(1), REQUEST, queue="cpu", owner_key=owner)
    with pytest.raises(JobNotFound):
        await jobs.cancel(name(1), "eve")
    with pytest.raises(JobNotFound):
        await jobs.get(name(1), "eve")
    assert (await jobs.cancel(name(1), "ann")).state == "queued"
    assert (await jobs.cancel(name(1), "ann")).state == "queued"
    assert (await jobs.get(name(1), "ann")).state == "queued"
    assert (await jobs.cancel(name(1), "bob")).state == "cancelled"


async def test_asking_again_while_a_cancel_is_under_way_revives_the_job(
    jobs: JobStore, claims: ClaimStore
) -> None:
    await jobs.submit(name(1), REQUEST, queue="cpu", owner_key="ann")
    claim = claims.claim()
    assert claim is not None
    await jobs.cancel(name(1), "ann")
    assert claims.beat(claim, 0.5, "") == "cancel"
    await jobs.submit(name(1), REQUEST, queue="cpu", owner_key="bob")
    assert claims.cancelled(claim) == "again"
    job = await jobs.get(name(1), "bob")
    assert (job.state, job.attempt) == ("queued", 0)


async def test_terminal_states_are_final(jobs: JobStore, claims: ClaimStore) -> None:
    await jobs.submit(name(1), REQUEST, queue="cpu")
    claim = claims.claim()
    assert claim is not None
    claims.finish(claim, result())
    assert claims.fail(claim, FAILURE) == "lost"
    assert claims.cancelled(claim) == "lost"
    assert claims.finish(claim, result(2)) == "lost"
    assert (await jobs.cancel(name(1))).state == "done"
    await asyncio.sleep(0.55)
    assert claims.expire() == 0
    assert claims.mend() == 0
    assert (await jobs.get(name(1))).state == "done"


async def test_a_profile_is_never_changed(
    jobs: JobStore, claims: ClaimStore, redis_sync: redis.Redis
) -> None:
    for number, body in ((1, b"first"), (2, b"second")):
        await jobs.submit(name(number), REQUEST, queue="cpu")
        claim = claims.claim()
        assert claim is not None
        assert claims.finish(claim, result(1, body)) == "ok"
    stored = read_profile(redis_sync, name(1))
    assert stored is not None
    assert stored.body == b"first"
    assert (await jobs.get(name(2))).profile_id == name(1)


async def test_a_late_result_ends_a_waiting_job_but_not_another_workers(
    jobs: JobStore, claims: ClaimStore, rival: ClaimStore, redis_sync: redis.Redis
) -> None:
    for number in (1, 2):
        await jobs.submit(name(number), REQUEST, queue="cpu")
    lost = [claims.claim(), claims.claim()]
    await asyncio.sleep(0.55)
    assert claims.expire() == 2
    first, second = lost
    assert first is not None
    assert second is not None
    assert claims.finish(first, result(1), late=True) == "ok"
    assert (await jobs.get(name(1))).state == "done"
    taken = rival.claim()
    assert taken is not None
    assert taken.job_id == name(2)
    assert claims.finish(second, result(2), late=True) == "lost"
    assert (await jobs.get(name(2))).state == "running"
    assert read_profile(redis_sync, name(2)) is not None
    assert rival.claim() is None


async def test_a_job_that_is_nowhere_is_put_back(
    jobs: JobStore,
    claims: ClaimStore,
    redis_sync: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for number in (1, 2, 3):
        await jobs.submit(name(number), REQUEST, queue="cpu")
    claims.claim()
    redis_sync.zrem(keys.leased("cpu"), name(1))
    redis_sync.zrem(keys.ready("cpu", needs("profile")), name(2))
    assert claims.mend() == 2
    assert {vars(record)["job_id"] for record in caplog.records} == {name(1), name(2)}
    assert [(await jobs.get(name(n))).position for n in (1, 2, 3)] == [0, 1, 2]
    assert claims.mend() == 0


async def test_a_full_server_refuses_with_nothing_half_written(
    jobs: JobStore, claims: ClaimStore, redis_sync: redis.Redis
) -> None:
    await jobs.submit(name(1), REQUEST, queue="cpu")
    await jobs.submit(name(2), REQUEST, queue="cpu")
    done = claims.claim()
    assert done is not None
    claims.finish(done, result(1))
    redis_sync.config_set("maxmemory", 1)
    before = sorted(redis_sync.keys("*"))
    with pytest.raises(StoreUnavailable, match="out of memory"):
        await jobs.submit(name(3), REQUEST, queue="cpu")
    assert sorted(redis_sync.keys("*")) == before
    # What is there already goes on: reading, claiming, holding a lease, failing, giving back.
    assert (await jobs.submit(name(1), REQUEST, queue="cpu", owner_key="new")).job.state == "done"
    claim = claims.claim()
    assert claim is not None
    assert claims.beat(claim, 0.5, "half") == "ok"
    # A late result of a job that runs elsewhere would only take: all of it is refused.
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        claims.finish(dataclasses.replace(claim, token="former"), result(2), late=True)
    assert read_profile(redis_sync, name(2)) is None
    assert (await jobs.get(name(2))).state == "running"
    # An end frees the request.
    assert claims.finish(claim, result(2)) == "ok"
    assert read_profile(redis_sync, name(2)) is not None


@pytest.mark.parametrize("lost", [redis.ConnectionError, redis.TimeoutError])
async def test_a_claim_whose_answer_is_lost_is_the_same_claim_when_asked_again(
    jobs: JobStore,
    claims: ClaimStore,
    redis_sync: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    lost: type[Exception],
) -> None:
    for number in (1, 2):
        await jobs.submit(name(number), REQUEST, queue="cpu", trace="t")
    run = claims._run

    def lose(*arguments: Any, **named: Any) -> None:
        run(*arguments, **named)
        raise lost("the answer did not arrive")

    monkeypatch.setattr(claims, "_run", lose)
    for _ in range(2):
        with pytest.raises(lost):
            claims.claim()
    monkeypatch.setattr(claims, "_run", run)
    claim = claims.claim()
    assert claim is not None
    assert (claim.job_id, claim.attempt, claim.request, claim.trace) == (name(1), 1, REQUEST, "t")
    assert redis_sync.zcard(keys.leased("cpu")) == 1
    assert claims.beat(claim, 0.5, "") == "ok"
    another = claims.claim()
    assert another is not None
    assert another.job_id == name(2)


async def test_wait_answers_at_the_end_or_at_the_timeout(
    jobs: JobStore, claims: ClaimStore
) -> None:
    await jobs.submit(name(1), REQUEST, queue="cpu")
    assert (await asyncio.wait_for(jobs.wait(name(1), 0.1), 20)).state == "queued"
    claim = claims.claim()
    assert claim is not None
    waits = [asyncio.create_task(jobs.wait(name(1), 60)) for _ in range(1_000)]
    await asyncio.sleep(0.3)
    claims.finish(claim, result())
    # Were they not woken, they would wait for a minute.
    assert {job.state for job in await asyncio.wait_for(asyncio.gather(*waits), 20)} == {"done"}
    with pytest.raises(JobNotFound):
        await jobs.wait(name(2), 5)


async def test_events_tell_every_state_to_the_end(jobs: JobStore, claims: ClaimStore) -> None:
    await jobs.submit(name(1), REQUEST, queue="cpu")

    events = jobs.events(name(1))

    async def told() -> tuple[str, float]:
        job = await asyncio.wait_for(anext(events), 20)
        return job.state, job.progress

    assert await told() == ("queued", 0)
    claim = claims.claim()
    assert claim is not None
    assert await told() == ("running", 0)
    claims.beat(claim, 0.5, "half")
    assert await told() == ("running", 0.5)
    claims.finish(claim, result())
    assert await told() == ("done", 1)
    with pytest.raises(StopAsyncIteration):
        await anext(events)


async def test_a_store_that_is_away_is_said_quickly(short_dir: object) -> None:
    client = connect_async(f"unix://{short_dir}/nobody.sock")
    jobs = JobStore(client)
    started = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await jobs.submit(name(1), REQUEST, queue="cpu")
    with pytest.raises(StoreUnavailable):
        await jobs.get(name(1))
    with pytest.raises(StoreUnavailable):
        await jobs.wait(name(1), 0.2)
    assert time.monotonic() - started < 5
    await jobs.close()
    await client.aclose()


async def test_every_key_carries_the_hash_tag(
    jobs: JobStore, claims: ClaimStore, redis_sync: redis.Redis
) -> None:
    await jobs.submit(name(1), REQUEST, queue="cpu")
    claim = claims.claim()
    assert claim is not None
    claims.finish(claim, result())
    await jobs.submit(name(2), REQUEST, queue="cpu", high=True)
    assert all(key.startswith(b"{lacuna}:") for key in redis_sync.keys("*"))
