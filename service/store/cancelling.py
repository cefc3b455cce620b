"""Ending tasks that talk to Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

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
