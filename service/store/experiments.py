"""Results of experiments, by the id of their job. Each belongs to the caller that asked for it."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final, cast

import redis.asyncio

from service.store import keys
from service.store.claims import ExperimentOutcome
from service.store.connection import outages_translated

MAX_ROWS_BYTES: Final = 64_000_000
"""Longest table of rows that is unpacked; 13,000 rows have about 1 MB."""


async def read_experiment(client: redis.asyncio.Redis, job_id: str) -> ExperimentOutcome | None:
    """The result of a job, or None.

    Raises:
        StoreUnavailable: Redis is away.
    """
    with outages_translated():
        reply = await client.hmget(keys.experiment(job_id), ["result", "rows"])
    result, rows = cast("list[bytes | None]", reply)
    return None if result is None or rows is None else ExperimentOutcome(result, rows)


def packed(lines: Iterable[str]) -> bytes:
    """Lines of a table as they are stored."""
    return zlib.compress("".join(lines).encode())


def unpacked(rows: bytes) -> bytes:
    """The table as UTF-8, cut at `MAX_ROWS_BYTES`.

    Raises:
        zlib.error: these are no rows of ours.
    """
    return zlib.decompressobj().decompress(rows, MAX_ROWS_BYTES)
