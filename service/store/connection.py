"""Connections to Redis: clients, the Lua scripts, and which errors mean an outage.

Nothing connects on construction: a client connects on its first command.
"""

from __future__ import annotations

import asyncio
import json
import re
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
_OF_PIPELINE = re.compile(
    r"^Command # \d+ \(.*\) of pipeline caused error: (?:\(['\"])?", re.DOTALL
)
# The rights of our user. Somebody may have taken them away for a while, and what we know is no less
# true: so this is an outage as well, with a sentence of its own.
_FORBIDDEN_WORDS = "ACL failure"
# What is there is not what we need: another node of a cluster, another database, another server.
_ELSEWHERE = redis.exceptions.AskError  # MOVED as well
_MISPLACED_WORDS = {
    "DB index": "the store has no database with the number in the address",
    "SELECT is not allowed": "the store is a cluster, which has no numbered databases",
    "unknown command": "the store is no Redis with scripts: it lacks a command that we need",
    "Unknown Redis command": "the store is no Redis with scripts: it lacks a command that we need",
}

_WORDS = {
    **_MISPLACED_WORDS,
    "NOREPLICAS": "the store refuses writes: too few of its replicas are connected",
    "max number of clients": "the store has no more room for connections: raise its maxclients",
}
_MEANINGS: dict[type[Exception], str] = {
    redis.exceptions.OutOfMemoryError: (
        "the store is out of memory and refuses writes: raise its maxmemory"
    ),
    redis.exceptions.ReadOnlyError: (
        "the store is a replica and refuses writes: the address must lead to the primary"
    ),
    _ELSEWHERE: "the store is a node of a cluster that lacks our keys: use the one that has them",
    redis.exceptions.InvalidResponse: "what answers at the store's address is no Redis",
    redis.exceptions.AuthenticationError: "the store refuses our user or password",
    redis.exceptions.BusyLoadingError: "the store is loading its data",
}

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
    if is_lasting(error):
        return True
    return isinstance(error, redis.ResponseError) and _said(error).startswith(_OUTAGE_WORDS)


def is_lasting(error: BaseException) -> bool:
    """Whether it stays so until somebody changes the server, our rights there, or the address."""
    if _is_forbidden(error) or isinstance(error, _ELSEWHERE | redis.exceptions.InvalidResponse):
        return True
    # While it connects, redis-py makes another class of what the server says.
    return isinstance(error, redis.RedisError) and _said(error).startswith(tuple(_MISPLACED_WORDS))


def _said(error: BaseException) -> str:
    """What the server said; of a pipeline, redis-py puts the command in front."""
    return _OF_PIPELINE.sub("", str(error))


def _is_forbidden(error: BaseException) -> bool:
    """Whether our user lacks a right; in scripts this has no class."""
    if isinstance(error, redis.exceptions.NoPermissionError):
        return True
    return isinstance(error, redis.ResponseError) and _said(error).startswith(_FORBIDDEN_WORDS)


def refusal(error: BaseException) -> str:
    """Why the server does not do what we ask, in one sentence that says what to change."""
    said = _said(error)
    if _is_forbidden(error):
        return _forbidden(said)
    if said.startswith("MISCONF"):
        reason = said.removeprefix("MISCONF ").partition(". ")[0]
        return f"the store cannot write to its disk and refuses writes ({reason:.200})"
    by_class = (meaning for kind, meaning in _MEANINGS.items() if isinstance(error, kind))
    by_words = (meaning for words, meaning in _WORDS.items() if said.startswith(words))
    return next(by_class, None) or next(by_words, "the store does not answer")


def _forbidden(said: str) -> str:
    if "channel" in said:
        what, rule = f"the channel {keys.EVENTS}", f"&{keys.PREFIX}:*"
    elif "access a key" in said:
        what, rule = "our keys", f"~{keys.PREFIX}:*"
    else:
        command = re.search(r"the '([\w|]+)' command", said)
        what = f"the command {command[1] if command else 'that we need'}"
        rule = f"+{command[1]}" if command else "+@all"
    return f"the store's user may not use {what}: give it `{rule}` (ACL SETUSER)"


@contextmanager
def outages_translated() -> Iterator[None]:
    """Turn an outage into `StoreUnavailable`; other errors are our own mistakes and pass through.

    Raises:
        StoreUnavailable: Redis is away, loading, read-only, out of memory or disk, does not let
            our user do it, or is no server that we can use.
    """
    try:
        yield
    except (redis.RedisError, OSError) as error:
        if not is_outage(error):
            raise
        raise StoreUnavailable(f"{refusal(error)}; try again shortly", retry_after=5.0) from error


@cache
def lua_source(name: Literal["queue", "profiles", "upkeep", "endpoints"]) -> str:
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
