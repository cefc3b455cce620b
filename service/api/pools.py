"""Pools of threads with a bounded backlog: one per kind of work, so that none waits for another."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from service.contract.errors import QueueFull

T = TypeVar("T")
_BACKLOG = 64


class Pool:
    """Runs calls off the event loop.

    Args:
        name: of its threads.
        threads: how many calls run at once.
        backlog: how many may run or wait.
    """

    def __init__(self, name: str, threads: int, backlog: int = _BACKLOG) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._backlog = backlog
        self._held = 0

    async def run(self, call: Callable[..., T], *arguments: Any) -> T:
        """The result of `call`.

        Raises:
            QueueFull: too many wait for this pool already.
        """
        if self._held >= self._backlog:
            raise QueueFull("too many computations at once", retry_after=1.0)
        self._held += 1
        try:
            loop = asyncio.get_running_loop()
            # With the context, so that what is logged there carries the request's id.
            within = contextvars.copy_context().run
            return await loop.run_in_executor(self._executor, within, call, *arguments)
        finally:
            self._held -= 1

    def close(self) -> None:
        """Let go of what waits; what runs ends by itself."""
        self._executor.shutdown(wait=False, cancel_futures=True)
