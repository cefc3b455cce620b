"""Servers that cannot be relied on, each said in one sentence."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio

from lacuna.contract.errors import StoreUnavailable
from service.local import store
from service.store import keys
from service.store.connection import connect_async, outages_translated
from service.store.fitness import (
    Refusal,
    durability_problem,
    policy_problem,
    refused,
    refused_async,
    version_problem,
)


@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru", "volatile-ttl"])
def test_policies_that_spare_our_queue(policy: str) -> None:
    assert policy_problem({"maxmemory_policy": policy}) is None


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_policies_that_eat_our_queue(policy: str) -> None:
    problem = policy_problem({"maxmemory_policy": policy})
    assert problem is not None
    assert policy in problem
    assert "noeviction" in problem


def test_a_server_without_a_log_is_said() -> None:
    assert durability_problem({"aof_enabled": 1}) is None
    assert "appendonly" in str(durability_problem({"aof_enabled": 0}))


def test_what_a_real_server_says_of_itself_is_understood(redis_sync: redis.Redis) -> None:
    info = redis_sync.info()
    assert policy_problem(info) is None
    assert durability_problem(info) is None
    redis_sync.config_set("maxmemory-policy", "allkeys-lru")
    try:
        assert policy_problem(redis_sync.info()) is not None
    finally:
        redis_sync.config_set("maxmemory-policy", "noeviction")


@pytest.mark.parametrize("version", ["7.0.0", "7.2.4", "8.4.0", "255.255.255", "", "unstable"])
def test_versions_that_serve(version: str) -> None:
    assert version_problem({"redis_version": version}) is None


@pytest.mark.parametrize("version", ["6.2.14", "5.0.3", "2.8.0"])
def test_versions_that_are_too_old(version: str) -> None:
    said = version_problem({"redis_version": version})
    assert said == f"the store is Redis {version}: Lacuna needs Redis 7.0 or Valkey 7.2, or newer"


def test_the_server_of_the_tests_is_new_enough(redis_sync: redis.Redis) -> None:
    assert version_problem(redis_sync.info()) is None
    assert refused(redis_sync) is None


@pytest.fixture
def server(short_dir: Path) -> Iterator[redis.Redis]:
    """A server of its own, whose rights and limits a test may change."""
    with store.ensure(short_dir) as started:
        client = redis.Redis.from_url(started.url)
        yield client
        client.close()


def as_user(server: redis.Redis, folder: Path, *rules: str) -> redis.Redis:
    server.execute_command("ACL", "SETUSER", "lac", "reset", "on", ">pw", *rules)
    url = f"unix://{folder}/redis.sock"
    return redis.Redis.from_url(url, username="lac", password="pw")


@pytest.mark.parametrize(
    ("rules", "missing"),
    [
        (
            ["~{lacuna}:*", "+@all"],
            "may not use the channel {lacuna}:events: give it `&{lacuna}:*`",
        ),
        (["~other:*", "&*", "+@all"], "may not use our keys: give it `~{lacuna}:*`"),
        (
            ["~{lacuna}:*", "&*", "+@all", "-publish"],
            "may not use the command publish: give it `+publish`",
        ),
        (
            ["~{lacuna}:*", "&*", "+@all", "-eval", "-evalsha"],
            "may not use the command eval: give it `+eval`",
        ),
    ],
)
async def test_rights_that_our_user_lacks(
    server: redis.Redis, short_dir: Path, rules: list[str], missing: str
) -> None:
    client = as_user(server, short_dir, *rules)
    expected = Refusal(f"the store's user {missing} (ACL SETUSER)", lasting=True)
    assert refused(client) == expected
    gateway = connect_async(f"unix://lac:pw@{short_dir}/redis.sock")
    found = await refused_async(gateway)
    await gateway.aclose()
    assert found is not None
    assert found.lasting
    assert found.why.startswith("the store's user may not use ")
    if "eval" not in missing:  # the gateway's client says evalsha
        assert found == expected


def test_rights_taken_away_later_are_no_error_of_ours(server: redis.Redis, short_dir: Path) -> None:
    client = as_user(server, short_dir, "~{lacuna}:*", "+@all")
    with pytest.raises(StoreUnavailable, match="may not use the channel"), outages_translated():
        client.eval("return redis.call('PUBLISH', '{lacuna}:events', '')", 0)


def test_a_full_server_is_said(server: redis.Redis) -> None:
    server.config_set("maxmemory", 1)
    found = refused(server)
    assert found == Refusal(
        "the store is out of memory and refuses writes: raise its maxmemory", lasting=False
    )
    server.config_set("maxmemory", 0)
    assert refused(server) is None


def test_a_replica_is_said(server: redis.Redis) -> None:
    server.replicaof("127.0.0.1", "1")
    found = refused(server)
    assert found is not None
    assert found.why.startswith("the store is a replica and refuses writes")


def test_a_disk_that_takes_no_more_is_said(server: redis.Redis, short_dir: Path) -> None:
    """The server meets an error when it saves, as on a full disk, and takes no writes from then."""
    server.config_set("appendonly", "no")
    server.config_set("save", "3600 1")
    server.set("x", "y")
    (short_dir / "dump.rdb").mkdir()  # nothing can be renamed onto it
    (short_dir / "dump.rdb" / "x").touch()
    server.bgsave()
    end = time.monotonic() + 10
    while server.info("persistence")["rdb_last_bgsave_status"] == "ok":
        assert time.monotonic() < end
        time.sleep(0.05)
    found = refused(server)
    assert found is not None
    assert found.why.startswith("the store cannot write to its disk and refuses writes (")
    assert not found.lasting
    assert server.get(keys.PROBE) is None
