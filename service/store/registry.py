"""Who works: what /readyz and /v1/models know of the workers."""

from __future__ import annotations

from typing import cast

import redis.asyncio

from service.contract.models import WorkerModels
from service.store import keys
from service.store.connection import translated


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


async def workers(client: redis.asyncio.Redis) -> list[WorkerModels]:
    """The workers that announced themselves lately, by name.

    Raises:
        StoreUnavailable: Redis is away.
    """
    with translated():
        names: set[bytes] = set()
        for queue in keys.QUEUES:
            names.update(cast(list[bytes], await client.zrange(keys.workers(queue), 0, -1)))
        if not names:
            return []
        documents = await client.mget([keys.worker(name.decode()) for name in sorted(names)])
    return [WorkerModels.model_validate_json(document) for document in documents if document]
