"""Waits for a job that end with their caller, and no more of them than one caller may hold open."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect, Request

from service.contract.errors import RateLimited
from service.store.cancelling import end

T = TypeVar("T")
MOST: Final = 1_024
"""Open waits and event streams of one caller in one process: a quarter of its connections."""


class Waits:
    """Counts the open waits of each caller."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._open: Counter[str | None] = Counter()

    @contextmanager
    def place(self, owner: str | None) -> Iterator[None]:
        """Hold a place; `owner` is None for the one anonymous caller.

        Raises:
            RateLimited: the caller holds as many as one may.
        """
        if self._open[owner] >= self._most:
            raise RateLimited(f"more than {self._most} waits are open", retry_after=5.0)
        self._open[owner] += 1
        try:
            yield
        finally:
            self._open[owner] -= 1
            if not self._open[owner]:
                del self._open[owner]


async def while_connected(request: Request, call: Coroutine[Any, Any, T]) -> T:
    """What `call` returns, unless the client leaves first: then it is cancelled.

    Args:
        request: its body must have been read.
        call: what the client waits for.

    Raises:
        ClientDisconnect: nobody is left to answer.
    """
    waiting = asyncio.create_task(call)
    leaving = asyncio.create_task(_left(request))
    try:
        await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise ClientDisconnect
        return waiting.result()
    finally:
        await end((waiting, leaving))


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
