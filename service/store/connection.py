"""Connections to Redis, and the translation of its failures into ours.

Nothing connects on construction: a client connects on its first command.

The Lua scripts: every step of the queue that must be atomic, each one round trip.

A script is the names of `keys`, then `scripts/common.lua`, then its own file. It is sent once and
called by digest afterwards; redis-py sends it again to a server that has forgotten it.

Ending tasks that talk to Redis.
"""

from __future__ import annotations

import asyncio
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
"""How long an idle worker blocks on its queue; the worker's socket timeout is far above."""
CROWDED = 0.9
"""Share of the server's memory beyond which no new job is accepted."""

# Error replies that say "not now" rather than "you made a mistake": those with a class in redis-py,
# and the codes (first words) of the others.
_AWAY_CLASSES = (
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.MasterDownError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
)
_AWAY_WORDS = ("MISCONF", "NOREPLICAS", "BUSY ", "UNBLOCKED")

# After a planned failover the old primary lives on as a replica and keeps our connections: only a
# new one, by the name, leads to the new primary. (A retry connects anew.)
_DEMOTED = (redis.exceptions.ReadOnlyError, redis.exceptions.MasterDownError)


def connect_async(url: str) -> redis.asyncio.Redis:
    """A client for the gateway: at most 32 shared connections, failing within seconds."""
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        url,
        max_connections=32,
        # A storm of callers waits its turn; a store that hangs is told by the socket's timeouts.
        timeout=5,
        socket_timeout=2,
        socket_connect_timeout=2,
        health_check_interval=15,
        # For a connection that a restart left stale; a server that hangs is not asked twice.
        retry=redis.asyncio.retry.Retry(NoBackoff(), 1, (redis.ConnectionError, *_DEMOTED)),
        decode_responses=False,
    )
    return redis.asyncio.Redis.from_pool(pool)


def connect(url: str) -> redis.Redis:
    """A client for a worker, with a socket timeout well above `BLOCK_SECONDS`.

    One retry, for a connection that a restart left stale. Patience is the worker loop's: it must
    learn of an outage at once, to bring its result to safety.
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
    """Whether an error means that the store cannot serve us now, and may later."""
    if isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError):
        return True
    if isinstance(error, _AWAY_CLASSES):
        return True
    return isinstance(error, redis.ResponseError) and str(error).startswith(_AWAY_WORDS)


@contextmanager
def translated() -> Iterator[None]:
    """Turn an outage into `StoreUnavailable`; let our own mistakes through.

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


def crowded(info: Mapping[str, Any]) -> bool:
    """Whether more than `CROWDED` of the server's memory is used, as the server itself counts.

    It leaves out what it will write to its log and send to its replicas: a slow disk or replica
    lets that grow for a while, and no key is refused for it.
    """
    used = int(info["used_memory"]) - int(info.get("mem_not_counted_for_evict", 0))
    return 0 < int(info["maxmemory"]) * CROWDED <= used


ScriptName = Literal[
    "submit", "view", "cancel", "claim", "beat", "finish", "release", "expire", "mend",
    "profile_delete", "profile_evict", "profile_pin", "worker_beat",
]  # fmt: skip

ROUTE: Final = [keys.STATS]
"""The one key that is declared: any key of ours leads a cluster client to the right node."""


@cache
def source(name: ScriptName) -> str:
    """The full text of a script."""
    folder = resources.files("service.store") / "scripts"
    common = (folder / "common.lua").read_text(encoding="utf-8")
    return keys.lua_header() + common + (folder / f"{name}.lua").read_text(encoding="utf-8")


_PATIENCE: Final = 0.1


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they are done, whatever they end in.

    Once is not enough: redis-py may swallow a cancellation while it connects.
    """
    known = set(tasks)
    while pending := {task for task in known if not task.done()}:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=_PATIENCE)
    for task in known:
        if not task.cancelled():
            task.exception()  # else it would be reported as never retrieved
