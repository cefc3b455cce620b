"""What the gateway knows of workers and queues: for readiness, the model list and Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import redis.asyncio

from lacuna.contract.jobs import JobKind
from lacuna.contract.models import WorkerModels
from service.store import keys, kinds
from service.store.connection import outages_translated
from service.store.queue import readable

Served = frozenset[tuple[keys.QueueName, JobKind]]
"""Queues with the kinds of jobs that their workers run, in this version."""


async def served_queues(client: redis.asyncio.Redis) -> Served:
    """The queues that have a worker of this version for a kind of job, or had one so recently that
    it may be restarting.

    Raises:
        StoreUnavailable: Redis is away.
    """
    lanes = [(queue, kind) for queue in keys.QUEUES for kind in kinds.KINDS]
    fields = [f"{keys.LAST_SEEN}{keys.lane(queue, kinds.needs(kind))}" for queue, kind in lanes]
    pipe = client.pipeline(transaction=False)
    pipe.time()
    pipe.hmget(keys.STATS, fields)
    with outages_translated():
        (seconds, _), seen = await pipe.execute()
    now = seconds * 1_000_000
    found = zip(lanes, seen, strict=True)
    return frozenset(lane for lane, at in found if at and now - int(at) <= keys.STRANDED_US)


async def live_worker_names(client: redis.asyncio.Redis) -> list[str]:
    """The names of the workers that announced themselves recently, sorted.

    Raises:
        StoreUnavailable: Redis is away.
    """
    # One round trip: readiness asks this, and each answer that is awaited may have to wait for the
    # threads of computations.
    pipe = client.pipeline(transaction=False)
    pipe.time()
    for queue in keys.QUEUES:
        pipe.zrange(keys.workers(queue), 0, -1, withscores=True)
    with outages_translated():
        (seconds, _), *queues = await pipe.execute()
    now = seconds * 1_000_000
    return sorted({name.decode() for queue in queues for name, gone in queue if gone >= now})


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
    "ended:done": "Jobs that ended with a result.",
    "ended:failed": "Jobs that ended with a failure.",
    "ended:cancelled": "Jobs that their callers withdrew.",
    "redeliveries": "Jobs that were queued again because a lease expired.",
    "lost_leases": "Leases that expired.",
    "dead": "Jobs that failed because their leases expired too often.",
    "given_back": "Jobs that a stopping worker gave back.",
    "declined": "Jobs that a worker could not read, and that wait for a newer one.",
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
    """From start to end, of jobs that ended with a result."""
    dead_letters: int
    profiles: int
    profile_bytes: int


async def store_metrics(client: redis.asyncio.Redis) -> StoreMetrics:
    """Counters, gauges and histograms of the queue and the profiles, in two round trips.

    Raises:
        StoreUnavailable: Redis is away.
    """
    with outages_translated():
        lanes = [
            (queue, needs.decode())
            for queue in keys.QUEUES
            for needs in cast("set[bytes]", await client.smembers(keys.lanes(queue)))
        ]
        pipe = client.pipeline(transaction=False)
        pipe.time()
        pipe.hgetall(keys.STATS)
        pipe.xlen(keys.DEAD)
        pipe.zcard(keys.PROFILES)
        pipe.get(keys.PROFILES_BYTES)
        for queue in keys.QUEUES:
            pipe.zcard(keys.leased(queue))
            pipe.zrange(keys.workers(queue), 0, -1, withscores=True)
        for lane in lanes:
            for high in (True, False):
                pipe.zcard(keys.ready(*lane, high=high))
                pipe.zrange(keys.ready(*lane, high=high), 0, 0, withscores=True)
        reply = await pipe.execute()
    (seconds, microseconds), counted, dead, profiles, profile_bytes = reply[:5]
    stats = {name.decode(): text.decode() for name, text in counted.items()}
    of_queues, of_lanes = reply[5:][: 2 * len(keys.QUEUES)], reply[5 + 2 * len(keys.QUEUES) :]
    waiting = {queue: _Waiting() for queue in keys.QUEUES}
    for at, (queue, _) in enumerate(lanes):
        waiting[queue].add(of_lanes[4 * at : 4 * at + 4])
    now = seconds * 1e6 + microseconds
    return StoreMetrics(
        queues=tuple(
            _queue(queue, waiting[queue], of_queues[2 * at], of_queues[2 * at + 1], now)
            for at, queue in enumerate(keys.QUEUES)
        ),
        counters={name: int(stats.get(name, 0)) for name in COUNTERS},
        wait=_histogram(stats, "wait", keys.WAIT_BUCKETS),
        run=_histogram(stats, "run", keys.RUN_BUCKETS),
        dead_letters=int(dead),
        profiles=int(profiles),
        profile_bytes=int(profile_bytes or 0),
    )


@dataclass
class _Waiting:
    """What waits in all lanes of a queue."""

    jobs: int = 0
    oldest: float = float("inf")

    def add(self, lane: list[Any]) -> None:
        """Count one lane: how many wait and which is the oldest, high priority first."""
        high, first_high, normal, first_normal = lane
        self.jobs += high + normal
        self.oldest = min([self.oldest, *(score for _, score in [*first_high, *first_normal])])


def _histogram(stats: Mapping[str, str], name: str, bounds: tuple[float, ...]) -> Histogram:
    total, buckets = 0, {}
    for bound in (*bounds, float("inf")):
        total += int(stats.get(f"{name}<={bound:g}", 0))
        buckets[bound] = total
    return Histogram(buckets, float(stats.get(f"{name}:sum", 0)))


def _queue(
    queue: keys.QueueName, waiting: _Waiting, running: int, workers: list[Any], now: float
) -> QueueMetrics:
    return QueueMetrics(
        queue=queue,
        depth=waiting.jobs,
        oldest_seconds=max(0.0, (now - waiting.oldest) / 1e6),
        running=running,
        workers=sum(1 for _, gone in workers if gone > now),
    )
