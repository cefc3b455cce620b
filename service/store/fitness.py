"""Whether a server can be relied on: its version, its settings, what it lets us do.

Each problem is one sentence that says what to change. Gateway and worker look when they start, and
the gateway again every few seconds, for `/readyz`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import redis
import redis.asyncio

from service.store import keys
from service.store.connection import is_lasting, is_outage, refusal

NEARLY_FULL: Final = 0.9
"""Share of the server's memory above which no new job is accepted."""
_LEAST: Final = (7, 0)
_PROBE_MS: Final = 60_000


def version_problem(info: Mapping[str, Any]) -> str | None:
    """What is wrong with a server's version, if anything.

    Args:
        info: the answer to INFO; Valkey reports there which Redis it can replace.
    """
    version = str(info.get("redis_version", ""))
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) >= _LEAST:
        return None
    return f"the store is Redis {version}: Lacuna needs Redis 7.0 or Valkey 7.2, or newer"


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


@dataclass(frozen=True)
class Refusal:
    """The server refuses what we need of it.

    Attributes:
        why: one sentence.
        lasting: until somebody changes the rights of our user; else it may pass by itself.
    """

    why: str
    lasting: bool


def refused(client: redis.Redis) -> Refusal | None:
    """Try what every job needs: a key, our channel, a script.

    Raises:
        redis.RedisError, OSError: the server is away.
    """
    try:
        client.set(keys.PROBE, b"1", px=_PROBE_MS)
        client.delete(keys.PROBE)
        client.publish(keys.EVENTS, b"")
        client.eval("return redis.call('PUBLISH', ARGV[1], '')", 1, keys.PROBE, keys.EVENTS)
    except redis.ResponseError as error:
        return _refusal(error)
    return None


async def refused_async(client: redis.asyncio.Redis) -> Refusal | None:
    """`refused`, for the gateway."""
    try:
        await client.set(keys.PROBE, b"1", px=_PROBE_MS)
        await client.delete(keys.PROBE)
        await client.publish(keys.EVENTS, b"")
        script = client.register_script("return redis.call('PUBLISH', ARGV[1], '')")
        await script(keys=[keys.PROBE], args=[keys.EVENTS])
    except redis.ResponseError as error:
        return _refusal(error)
    return None


def _refusal(error: redis.ResponseError) -> Refusal:
    if not is_outage(error):
        raise error
    return Refusal(refusal(error), lasting=is_lasting(error))
