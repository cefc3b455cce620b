"""What the gateway knows of workers and queues: for readiness, the model list and Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import redis.asyncio

from lacuna.contract.models import WorkerModels
from service.store import keys
from service.store.connection import outages_translated
from service.store.queue import readable


async def served_queues(client: redis.asyncio.Redis) -> frozenset[keys.QueueName]:
    """The queues that have a worker, or had one so recently that it may be restarting.

    Raises:
        StoreUnavailable: Redis is away.
    """
    with outages_translated():
        fields = [f"{keys.LAST_SEEN}{queue}" for queue in keys.QUEUES]
        seen = cast("list[bytes | None]", await client.hmget(keys.STATS, fields))
        now = (await client.time())[0] * 1_000_000
    found = zip(keys.QUEUES, seen, strict=True)
    return frozenset(queue for queue, at in found if at and now - int(at) <= keys.STRANDED_US)


async def live_worker_names(client: redis.asyncio.Redis) -> list[str]:
    """The names of the workers that announced themselves recently, sorted.

    Raises:
        StoreUnavailable: Redis is away.
    """
    with outages_translated():
        now = (await client.time())[0] * 1_000_000
        found: set[bytes] = set()
        for queue in keys.QUEUES:
            live = await client.zrangebyscore(keys.workers(queue), now, "+inf")
            found.update(cast(list[bytes], live))
    return sorted(name.decode() for name in found)


async def live_workers(client: redis.asyncio.Redis) -> list[WorkerModels]:
    """What the workers that announced themselves recently offer, by name.

    Raises:
        StoreUnavailable: Redis is away.
    """
    known = await live_worker_names(client)
    if not known:
        return []
    with outages_translated():
        documents = await client.mget([keys.worker(name) for name in known])
    return readable(WorkerModels, cast("list[bytes | None]", documents))


COUNTERS: Final[Mapping[str, str]] = {
    "submitted": "Jobs created.",
    "ended:done": "Jobs that ended with a profile.",
    "ended:failed": "Jobs that ended with a failure.",
    "ended:cancelled": "Jobs that their callers withdrew.",
    "redeliveries": "Jobs that were queued again because a lease expired.",
    "lost_leases": "Leases that expired.",
    "dead": "Jobs that failed because their leases expired too often.",
    "given_back": "Jobs that a stopping worker gave back.",
    "mended": "Jobs that stood in no queue and were put back.",
}
"""Counters by name, with their meaning. They count since the store was created."""


@dataclass(frozen=True)
class Histogram:
    """Durations in seconds.

    Attributes:
        buckets: upper bound -> number of durations up to it; the last bound is infinite.
        sum: of all durations.
    """

    buckets: Mapping[float, int]
    sum: float

    @property
    def count(self) -> int:
        """Number of durations."""
        return self.buckets[float("inf")]


@dataclass(frozen=True)
class QueueMetrics:
    """One queue now."""

    queue: keys.QueueName
    depth: int
    """Jobs that wait."""
    oldest_seconds: float
    """How long the oldest has waited; 0 when none does."""
    running: int
    workers: int


@dataclass(frozen=True)
class StoreMetrics:
    """Everything at one moment."""

    queues: tuple[QueueMetrics, ...]
    counters: Mapping[str, int]
    """By the names of `COUNTERS`."""
    wait: Histogram
    """From creation to the first start."""
    run: Histogram
    """From start to end, of jobs that ended with a profile."""
    dead_letters: int
    profiles: int
    profile_bytes: int


async def store_metrics(client: redis.asyncio.Redis) -> StoreMetrics:
    """Counters, gauges and histograms of the queue and the profiles, in one round trip.

    Raises:
        StoreUnavailable: Redis is away.
    """
    pipe = client.pipeline(transaction=False)
    pipe.time()
    pipe.hgetall(keys.STATS)
    pipe.xlen(keys.DEAD)
    pipe.zcard(keys.PROFILES)
    pipe.get(keys.PROFILES_BYTES)
    for queue in keys.QUEUES:
        for high in (True, False):
            pipe.zcard(keys.ready(queue, high=high))
            pipe.zrange(keys.ready(queue, high=high), 0, 0, withscores=True)
        pipe.zcard(keys.leased(queue))
        pipe.zrange(keys.workers(queue), 0, -1, withscores=True)
    with outages_translated():
        reply = await pipe.execute()
    now = reply[0][0] * 1e6 + reply[0][1]
    stats = {name.decode(): text.decode() for name, text in reply[1].items()}
    rows = [reply[5 + 6 * i : 11 + 6 * i] for i in range(len(keys.QUEUES))]
    return StoreMetrics(
        queues=tuple(_queue(q, row, now) for q, row in zip(keys.QUEUES, rows, strict=True)),
        counters={name: int(stats.get(name, 0)) for name in COUNTERS},
        wait=_histogram(stats, "wait", keys.WAIT_BUCKETS),
        run=_histogram(stats, "run", keys.RUN_BUCKETS),
        dead_letters=int(reply[2]),
        profiles=int(reply[3]),
        profile_bytes=int(reply[4] or 0),
    )


def _histogram(stats: Mapping[str, str], name: str, bounds: tuple[float, ...]) -> Histogram:
    total, buckets = 0, {}
    for bound in (*bounds, float("inf")):
        total += int(stats.get(f"{name}<={bound:g}", 0))
        buckets[bound] = total
    return Histogram(buckets, float(stats.get(f"{name}:sum", 0)))


def _queue(queue: keys.QueueName, row: list[Any], now: float) -> QueueMetrics:
    high, first_high, normal, first_normal, running, workers = row
    oldest = min((score for _, score in [*first_high, *first_normal]), default=now)
    return QueueMetrics(
        queue=queue,
        depth=high + normal,
        oldest_seconds=max(0.0, (now - oldest) / 1e6),
        running=running,
        workers=sum(1 for _, gone in workers if gone > now),
    )
