"""Outages told from mistakes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from lacuna.contract.errors import StoreUnavailable
from service.local import store
from service.store.connection import (
    connect,
    connect_async,
    is_outage,
    outages_translated,
)


@pytest.mark.parametrize(
    "error",
    [
        redis.ConnectionError("refused"),
        redis.TimeoutError("slow"),
        redis.BusyLoadingError("loading the dataset"),
        redis.exceptions.OutOfMemoryError("command not allowed"),
        redis.ReadOnlyError("a replica"),
        redis.ResponseError("MISCONF Errors writing to the AOF file: No space left on device"),
        redis.ResponseError("BUSY Redis is busy running a script"),
        redis.ResponseError("UNBLOCKED force unblock from blocking operation"),
        redis.exceptions.NoPermissionError("No permissions to access a channel"),
        redis.ResponseError("ACL failure in script: No permissions to access a key script: on x"),
        FileNotFoundError(2, "no socket"),
        redis.exceptions.MovedError("546 127.0.0.1:7001"),
        redis.exceptions.InvalidResponse("Protocol error, got H as reply type byte"),
        redis.ResponseError("DB index is out of range"),
    ],
)
def test_an_outage_becomes_store_unavailable(error: Exception) -> None:
    assert is_outage(error)
    with pytest.raises(StoreUnavailable) as caught, outages_translated():
        raise error
    assert caught.value.retry_after is not None


@pytest.mark.parametrize(
    "error",
    [
        redis.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"),
        redis.ResponseError("ERR user_script:3: attempt to index a nil value"),
        ValueError("ours"),
    ],
)
def test_a_mistake_of_our_own_is_let_through(error: Exception) -> None:
    assert not is_outage(error)
    with pytest.raises(type(error)), outages_translated():
        raise error


def test_a_real_server_loading_or_full_is_an_outage(redis_sync: redis.Redis) -> None:
    redis_sync.config_set("maxmemory", 1)
    with pytest.raises(StoreUnavailable, match="out of memory"), outages_translated():
        redis_sync.set("x", "y")


def test_a_wrong_type_on_a_real_server_is_a_mistake(redis_sync: redis.Redis) -> None:
    redis_sync.set("x", "y")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"), outages_translated():
        redis_sync.zcard("x")


@pytest.fixture
def server(short_dir: Path) -> Iterator[redis.Redis]:
    """A server of its own, which a test may hold up."""
    with store.ensure(short_dir) as started:
        client = redis.Redis.from_url(started.url)
        yield client
        client.close()


async def test_nothing_connects_on_construction() -> None:
    url = "redis://203.0.113.1:1"
    started = time.monotonic()
    connect(url).close()
    await connect_async(url).aclose()
    assert time.monotonic() - started < 1


class Failover:
    """Two servers, and an address that leads to the first of them until `demote`."""

    def __init__(self, folder: Path, old: store.EmbeddedServer) -> None:
        self.folder, self.old = folder, redis.Redis.from_url(old.url)
        self.name = folder / "primary"
        self.name.symlink_to(folder / "old" / "redis.sock")
        self.url = f"unix://{self.name}"

    def demote(self) -> None:
        self.old.replicaof("127.0.0.1", "1")
        moved = self.folder / "moved"
        moved.symlink_to(self.folder / "new" / "redis.sock")
        moved.replace(self.name)


@pytest.fixture
def failover(short_dir: Path) -> Iterator[Failover]:
    with store.ensure(short_dir / "old") as old, store.ensure(short_dir / "new"):
        yield Failover(short_dir, old)


@pytest.mark.parametrize("stale", ["yes", "no"])
async def test_a_client_leaves_a_node_that_became_a_replica(failover: Failover, stale: str) -> None:
    failover.old.config_set("replica-serve-stale-data", stale)
    gateway, worker = connect_async(failover.url), connect(failover.url)
    script = gateway.register_script("return redis.call('SET', KEYS[1], ARGV[1])")
    await script(keys=["x"], args=["1"])
    worker.set("x", "2")
    failover.demote()
    await script(keys=["x"], args=["3"])
    worker.set("x", "4")
    assert await gateway.get("x") == b"4"
    await gateway.aclose()
    worker.close()


def test_a_worker_that_waits_on_a_node_is_told_of_an_outage(failover: Failover) -> None:
    worker, raised = connect(failover.url), []

    def wait() -> None:
        try:
            worker.blpop(["x"], timeout=5)
        except redis.RedisError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not failover.old.info("clients")["blocked_clients"]:
        time.sleep(0.01)
    failover.demote()
    thread.join()
    assert [is_outage(error) for error in raised] == [True]
    worker.close()


def test_an_outage_is_known_in_a_pipeline_too(server: redis.Redis) -> None:
    """redis-py puts the command in front of what the server said."""
    url = f"unix://{server.connection_pool.connection_kwargs['path']}"

    def hold() -> None:
        script = "while tonumber(redis.call('TIME')[1]) < tonumber(ARGV[1]) do end"
        with contextlib.suppress(redis.RedisError):
            redis.Redis.from_url(url).eval(script, 0, int(time.time()) + 3)

    server.config_set("busy-reply-threshold", 50)
    thread = threading.Thread(target=hold)
    thread.start()
    time.sleep(0.5)
    pipeline = server.pipeline(transaction=False).time().get("x")
    with pytest.raises(StoreUnavailable, match="does not answer"), outages_translated():
        pipeline.execute()
    thread.join()
    user = ["lac", "reset", "on", ">pw", "~*", "+@all", "-get"]
    server.execute_command("ACL", "SETUSER", *user)
    client = redis.Redis.from_url(url, username="lac", password="pw")
    pipeline = client.pipeline(transaction=False).time().get("x")
    with pytest.raises(StoreUnavailable, match="may not use the command get"), outages_translated():
        pipeline.execute()
    client.close()
