"""What the store knows about the queue, for Prometheus: counters, gauges and histograms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import redis.asyncio

from service.store import keys
from service.store.connection import translated
from service.store.records import text_map

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


def _histogram(stats: Mapping[str, str], name: str, bounds: tuple[float, ...]) -> Histogram:
    total, buckets = 0, {}
    for bound in (*bounds, float("inf")):
        total += int(stats.get(f"{name}<={bound:g}", 0))
        buckets[bound] = total
    return Histogram(buckets, float(stats.get(f"{name}:sum", 0)))


async def metrics(client: redis.asyncio.Redis) -> StoreMetrics:
    """Read them all, in one round trip.

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
    with translated():
        reply = await pipe.execute()
    (seconds, microseconds), stats = reply[0], text_map(reply[1])
    now = seconds * 1e6 + microseconds
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
