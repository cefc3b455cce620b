"""Who works: what /readyz and /v1/models know of the workers."""

from __future__ import annotations

from typing import cast

import redis.asyncio

from service.contract.models import WorkerModels
from service.store import keys
from service.store.connection import translated
from service.store.records import readable


async def served(client: redis.asyncio.Redis) -> frozenset[keys.QueueName]:
    """The queues that have a worker, or had one so lately that it may be starting anew.

    Raises:
        StoreUnavailable: Redis is away.
    """
    with translated():
        fields = [f"{keys.SEEN}{queue}" for queue in keys.QUEUES]
        seen = cast("list[bytes | None]", await client.hmget(keys.STATS, fields))
        now = (await client.time())[0] * 1_000_000
    found = zip(keys.QUEUES, seen, strict=True)
    return frozenset(queue for queue, at in found if at and now - int(at) <= keys.STRANDED_US)


async def names(client: redis.asyncio.Redis) -> list[str]:
    """The names of the workers that announced themselves lately, sorted.

    Raises:
        StoreUnavailable: Redis is away.
    """
    with translated():
        now = (await client.time())[0] * 1_000_000
        found: set[bytes] = set()
        for queue in keys.QUEUES:
            live = await client.zrangebyscore(keys.workers(queue), now, "+inf")
            found.update(cast(list[bytes], live))
    return sorted(name.decode() for name in found)


async def workers(client: redis.asyncio.Redis) -> list[WorkerModels]:
    """What the workers that announced themselves lately offer, by name.

    Raises:
        StoreUnavailable: Redis is away.
    """
    known = await names(client)
    if not known:
        return []
    with translated():
        documents = await client.mget([keys.worker(name) for name in known])
    return readable(WorkerModels, cast("list[bytes | None]", documents))
