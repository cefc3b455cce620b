"""Why a running job must stop, and the keeper that learns of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from service.local import store as embedded
from service.store import keys
from service.store.claims import Claim, ClaimStore
from service.store.connection import connect
from service.store.kinds import needs
from workers.lease import (
    GiveBack,
    JobCancelled,
    JobContext,
    Keeper,
    LeaseLost,
    Shutdown,
    StopReason,
)

JOB = "a" * 32
CLAIM = Claim(JOB, "w/1", b"{}", 1, "")


def held(client: redis.Redis, lease: float = 1.0) -> tuple[ClaimStore, Claim]:
    """A running job under a lease, as a submit and a claim leave it."""
    store = ClaimStore(client, name="w", queues=["cpu"], lease=lease)
    fields = {"state": "queued", "kind": "profile", "identity": JOB, "queue": "cpu", "high": "0",
              "needs": needs("profile"), "document": "{}", "created": "1",
              "attempts": "0", "interest": "1", "by:ann": "1"}  # fmt: skip
    client.hset(keys.job(JOB), mapping=fields)
    client.zadd(keys.ready("cpu", needs("profile")), {JOB: 1})
    claim = store.claim()
    assert claim is not None
    return store, claim


@pytest.fixture
def shutdown() -> Shutdown:
    return Shutdown(0.5)


class Calls:
    def __init__(self) -> None:
        self.announced = threading.Event()
        self.outage = threading.Event()


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def keeper(
    redis_sync: redis.Redis, shutdown: Shutdown, calls: Calls
) -> Iterator[tuple[Keeper, ClaimStore, Claim]]:
    store, claim = held(redis_sync)
    keeper = Keeper(store, shutdown, calls.announced.set, calls.outage.set)
    keeper.start()
    yield keeper, store, claim
    keeper.close()


def eventually(context: JobContext, reason: StopReason) -> None:
    end = time.monotonic() + 5
    while context.stop_reason is None and time.monotonic() < end:
        time.sleep(0.01)
    assert context.stop_reason is reason


def test_a_job_goes_on_by_default(shutdown: Shutdown) -> None:
    context = JobContext(CLAIM, shutdown)
    context.check()
    assert context.overdue == 0


def test_the_first_reason_to_stop_stands(shutdown: Shutdown) -> None:
    context = JobContext(CLAIM, shutdown)
    context.stop(StopReason.LOST)
    context.stop(StopReason.CANCELLED)
    with pytest.raises(LeaseLost):
        context.check()


@pytest.mark.parametrize(("given", "kept"), [(-1.0, 0.0), (0.25, 0.25), (7.0, 1.0)])
def test_progress_stays_a_fraction(shutdown: Shutdown, given: float, kept: float) -> None:
    context = JobContext(CLAIM, shutdown)
    context.progress(given, "x")
    assert context.reported == (kept, "x")


def test_a_stop_gives_back_after_the_grace_period(shutdown: Shutdown) -> None:
    context = JobContext(CLAIM, shutdown)
    shutdown.request()
    context.check()
    time.sleep(0.55)
    with pytest.raises(GiveBack):
        context.check()


def test_a_stop_gives_back_at_once_what_cannot_end_in_time(shutdown: Shutdown) -> None:
    context = JobContext(CLAIM, shutdown)
    time.sleep(0.1)
    context.progress(0.1)
    shutdown.request()
    with pytest.raises(GiveBack):
        context.check()


def test_a_stop_lets_end_what_is_nearly_done(shutdown: Shutdown) -> None:
    context = JobContext(CLAIM, shutdown)
    time.sleep(0.1)
    context.progress(0.9)
    shutdown.request()
    context.check()


def test_asked_twice_it_stops_at_once(shutdown: Shutdown) -> None:
    context = JobContext(CLAIM, shutdown)
    shutdown.request()
    shutdown.request()
    with pytest.raises(GiveBack):
        context.check()


def test_the_keeper_renews_while_the_job_computes(
    keeper: tuple[Keeper, ClaimStore, Claim],
) -> None:
    thread, store, claim = keeper
    context = thread.hold(claim)
    context.progress(0.5, "half")
    end = time.monotonic() + 2.2  # more than two leases
    while time.monotonic() < end:
        assert store.expire() == 0
        time.sleep(0.05)
    assert store.client.hget(keys.job(JOB), "progress") == b"0.5000"
    context.check()


def test_the_keeper_learns_of_a_cancel(keeper: tuple[Keeper, ClaimStore, Claim]) -> None:
    thread, store, claim = keeper
    context = thread.hold(claim)
    store.client.hset(keys.job(JOB), "cancel", "1")
    eventually(context, StopReason.CANCELLED)
    with pytest.raises(JobCancelled):
        context.check()


def test_the_keeper_learns_of_a_lost_lease(keeper: tuple[Keeper, ClaimStore, Claim]) -> None:
    thread, store, claim = keeper
    context = thread.hold(claim)
    store.client.hset(keys.job(JOB), "token", "another")
    eventually(context, StopReason.LOST)


def test_the_keeper_outlives_any_error(redis_sync: redis.Redis, shutdown: Shutdown) -> None:
    store, claim = held(redis_sync)
    announced, outage = threading.Event(), threading.Event()

    def fail() -> None:
        announced.set()
        raise ZeroDivisionError

    keeper = Keeper(store, shutdown, fail, outage.set)
    keeper.start()
    keeper.hold(claim)
    assert announced.wait(5)
    time.sleep(1.5)
    assert store.expire() == 0
    assert not outage.is_set()
    keeper.close()


def test_no_beat_after_drop(keeper: tuple[Keeper, ClaimStore, Claim]) -> None:
    thread, store, claim = keeper
    thread.hold(claim)
    thread.drop()
    time.sleep(1.1)
    assert store.expire() == 1


def test_the_keeper_announces_the_worker(
    keeper: tuple[Keeper, ClaimStore, Claim], calls: Calls
) -> None:
    assert calls.announced.wait(5)


def test_an_outage_is_noted_and_survived(short_dir: Path, shutdown: Shutdown, calls: Calls) -> None:
    server = embedded.ensure(short_dir)
    store, claim = held(connect(server.url), lease=30)
    thread = Keeper(store, shutdown, calls.announced.set, calls.outage.set)
    thread.start()
    context = thread.hold(claim)
    server.close()
    assert calls.outage.wait(10)
    context.check()
    context.progress(0.7, "went on")
    with embedded.ensure(short_dir) as server:
        client = connect(server.url)
        end = time.monotonic() + 10
        while client.hget(keys.job(JOB), "progress") != b"0.7000" and time.monotonic() < end:
            time.sleep(0.05)
        assert client.hget(keys.job(JOB), "progress") == b"0.7000"
        context.check()
        thread.close()


def test_an_announcement_that_hangs_costs_no_lease(
    redis_sync: redis.Redis, shutdown: Shutdown
) -> None:
    """It tells what lies in the folder of models, and the disk below that may hang."""
    store, claim = held(redis_sync, lease=0.6)
    hangs = threading.Event()
    keeper = Keeper(store, shutdown, lambda: _wait(hangs), lambda: None)
    keeper.start()
    context = keeper.hold(claim)
    time.sleep(1.5)
    assert store.expire() == 0
    assert context.stop_reason is None
    hangs.set()
    keeper.close()


def _wait(event: threading.Event) -> None:
    event.wait(20)
