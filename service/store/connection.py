"""Connections to Redis: clients, the Lua scripts, and which errors mean an outage.

Nothing connects on construction: a client connects on its first command.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import resources
from typing import Any, Final, Literal

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from lacuna.contract.errors import StoreUnavailable
from service.store import keys

BLOCK_SECONDS = 2.0
"""How long an idle worker blocks on its queue; a worker's socket timeout is far longer."""
NEARLY_FULL = 0.9
"""Share of the server's memory above which no new job is accepted."""
ROUTE: Final = [keys.STATS]
"""The one key that a script call declares: any key of ours leads a cluster client to the right
node."""

# Error replies that mean "not now" rather than "wrong command": those with a class in redis-py, and
# the first words of the others.
_OUTAGE_CLASSES = (
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.MasterDownError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
)
_OUTAGE_WORDS = ("MISCONF", "NOREPLICAS", "BUSY ", "UNBLOCKED")

# After a planned failover the old primary lives on as a replica and keeps our connections. Only a
# new connection, by name, reaches the new primary; a retry opens one.
_DEMOTED = (redis.exceptions.ReadOnlyError, redis.exceptions.MasterDownError)


def connect_async(url: str) -> redis.asyncio.Redis:
    """A client for the gateway: at most 32 shared connections, failing within seconds."""
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        url,
        max_connections=32,
        # Many callers at once take turns. The socket's timeouts detect a store that hangs.
        timeout=5,
        socket_timeout=2,
        socket_connect_timeout=2,
        health_check_interval=15,
        # For a connection that a restart left stale. A server that hangs is not asked twice.
        retry=redis.asyncio.retry.Retry(NoBackoff(), 1, (redis.ConnectionError, *_DEMOTED)),
        decode_responses=False,
    )
    return redis.asyncio.Redis.from_pool(pool)


def connect(url: str) -> redis.Redis:
    """A client for a worker, with a socket timeout well above `BLOCK_SECONDS`.

    One retry, for a connection that a restart left stale. The worker loop waits out an outage: it
    must learn of one at once, to write its result to disk.
    """
    return redis.Redis.from_url(
        url,
        socket_timeout=BLOCK_SECONDS + 8,
        socket_connect_timeout=3,
        health_check_interval=15,
        retry=Retry(NoBackoff(), 1, (redis.ConnectionError, redis.TimeoutError, *_DEMOTED)),
        decode_responses=False,
    )


def is_outage(error: BaseException) -> bool:
    """Whether an error means that the store cannot answer now, and may later."""
    if isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError):
        return True
    if isinstance(error, _OUTAGE_CLASSES):
        return True
    return isinstance(error, redis.ResponseError) and str(error).startswith(_OUTAGE_WORDS)


@contextmanager
def outages_translated() -> Iterator[None]:
    """Turn an outage into `StoreUnavailable`; other errors are our own mistakes and pass through.

    Raises:
        StoreUnavailable: Redis is away, loading, read-only or out of memory.
    """
    try:
        yield
    except (redis.RedisError, OSError) as error:
        if not is_outage(error):
            raise
        full = isinstance(error, redis.exceptions.OutOfMemoryError)
        detail = "the store is out of memory" if full else "the store does not answer"
        raise StoreUnavailable(f"{detail}; try again shortly", retry_after=5.0) from error


def policy_problem(info: Mapping[str, Any]) -> str | None:
    """What is wrong with a server's eviction policy, if anything.

    Args:
        info: the answer to INFO.

    Returns:
        One sentence, or None when Redis never drops a key of ours by itself.
    """
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if not policy.startswith("allkeys"):
        return None
    return (
        f"maxmemory-policy is {policy}: Redis would drop queued jobs under memory pressure; "
        "set it to noeviction (LACUNA_EVICTION_POLICY_CHECK=warn starts all the same)"
    )


def durability_problem(info: Mapping[str, Any]) -> str | None:
    """A warning when a restart of the server would lose the queue."""
    if int(info.get("aof_enabled", 0)):
        return None
    return "appendonly is off: a restart of Redis loses every queued job; set appendonly yes"


def nearly_full(info: Mapping[str, Any]) -> bool:
    """Whether more than `NEARLY_FULL` of the server's memory is used, as the server counts it.

    Buffers for its log and its replicas do not count: a slow disk or replica lets them grow for a
    while, and the server refuses no key because of them.

    Args:
        info: the answer to INFO, section memory.
    """
    used = int(info["used_memory"]) - int(info.get("mem_not_counted_for_evict", 0))
    return 0 < int(info["maxmemory"]) * NEARLY_FULL <= used


@cache
def lua_source(name: Literal["queue", "profiles"]) -> str:
    """The full text of a script: the names of `keys`, then `<name>.lua` of this folder."""
    file = resources.files("service.store") / f"{name}.lua"
    return keys.lua_header() + file.read_text(encoding="utf-8")


def lua_arguments(
    operation: str, named: Mapping[str, Any], payloads: Iterable[str | bytes] = ()
) -> list[str | bytes]:
    """The ARGV of a script call, as `queue.lua` describes it.

    Args:
        operation: name of a function in `operations`.
        named: its arguments; those that are None are left out.
        payloads: sent as they are, after the named arguments.
    """
    given = {name: value for name, value in named.items() if value is not None}
    return [operation, json.dumps(given), *payloads]


async def cancel_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they are done, whatever they end with.

    One cancel is not enough: redis-py may swallow it while it connects.
    """
    known = set(tasks)
    while pending := {task for task in known if not task.done()}:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=0.1)
    for task in known:
        if not task.cancelled():
            task.exception()  # marks it as retrieved, or asyncio would report it
