"""Threads for what takes longer than the event loop may stand still, shared out fairly.

One pool per kind of work, so that no kind waits for another. Within a pool callers take turns, one
caller cannot fill the backlog, and one thread more than the others is kept for callers of whom
nothing runs. What a caller who has left still waits for is dropped; what already runs can ask
`given_up`.

Nothing that only says how the service is (`/healthz`, `/readyz`) may enter a pool.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from lacuna.contract.errors import QueueFull

T = TypeVar("T")
caller: Final[contextvars.ContextVar[str]] = contextvars.ContextVar("caller", default="")
"""Who asks: the owner of the key, or the address. Set for each request by the middleware."""
_BACKLOG = 64
_left: Final[contextvars.ContextVar[threading.Event | None]] = contextvars.ContextVar(
    "left", default=None
)


def given_up() -> bool:
    """Whether nobody waits any more for the call of a pool that runs in this thread."""
    left = _left.get()
    return left is not None and left.is_set()


@dataclass(eq=False)
class _Call:
    """A call that waits or runs."""

    call: Callable[[], Any]
    caller: str
    answer: asyncio.Future[Any]
    left: threading.Event = field(default_factory=threading.Event)


class Pool:
    """A thread pool with a bounded backlog and turns.

    Args:
        name: of its threads.
        threads: how many calls run at once.
        backlog: how many may run or wait, three quarters of them of one caller.
        spare: threads more, for callers of whom nothing runs.
    """

    def __init__(self, name: str, threads: int, backlog: int = _BACKLOG, spare: int = 1) -> None:
        self._executor = ThreadPoolExecutor(threads + spare, thread_name_prefix=name)
        self._threads, self._spare = threads, spare
        self._backlog = backlog
        self._share = backlog - backlog // 4
        self._waiting: OrderedDict[str, deque[_Call]] = OrderedDict()
        self._running: Counter[str] = Counter()

    async def run(self, call: Callable[..., T], *arguments: Any) -> T:
        """The result of `call`. When this is cancelled, a call that waits never runs.

        Raises:
            QueueFull: too many calls wait already, or too many of this caller.
        """
        whose = caller.get()
        waiting = self._waiting.get(whose, ())
        held = sum(map(len, self._waiting.values())) + self._running.total()
        if held >= self._backlog:
            raise QueueFull("too many computations are running", retry_after=1.0)
        if len(waiting) + self._running[whose] >= self._share:
            raise QueueFull("too many of your computations are running", retry_after=1.0)
        loop = asyncio.get_running_loop()
        # With the context, so that what is logged there carries the request's id.
        context = contextvars.copy_context()
        one = _Call(lambda: context.run(call, *arguments), whose, loop.create_future())
        context.run(_left.set, one.left)
        self._waiting.setdefault(whose, deque()).append(one)
        self._start_what_fits()
        try:
            result: T = await one.answer
            return result
        except asyncio.CancelledError:
            one.left.set()
            self._forget(one)
            raise

    def close(self) -> None:
        """Drop the calls that wait; those that run end by themselves."""
        for calls in self._waiting.values():
            for one in calls:
                one.answer.cancel()
        self._waiting.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _forget(self, one: _Call) -> None:
        calls = self._waiting.get(one.caller)
        if calls is not None and one in calls:
            calls.remove(one)
            if not calls:
                del self._waiting[one.caller]

    def _start_what_fits(self) -> None:
        while (one := self._next()) is not None:
            self._running[one.caller] += 1
            running = asyncio.get_running_loop().run_in_executor(self._executor, one.call)
            running.add_done_callback(partial(self._ended, one))

    def _next(self) -> _Call | None:
        """The first call of the caller with the fewest running; of several, the longest waiting."""
        if not self._waiting:
            return None
        whose = min(self._waiting, key=lambda name: self._running[name])
        running = self._running.total()
        if running >= self._threads + (0 if self._running[whose] else self._spare):
            return None
        calls = self._waiting[whose]
        one = calls.popleft()
        # This caller goes to the back of the line.
        self._waiting.move_to_end(whose)
        if not calls:
            del self._waiting[whose]
        return one

    def _ended(self, one: _Call, done: asyncio.Future[Any]) -> None:
        self._running[one.caller] -= 1
        if not self._running[one.caller]:
            del self._running[one.caller]
        if not done.cancelled():
            error = done.exception()
            if one.answer.done():
                pass  # nobody waits any more
            elif error is not None:
                one.answer.set_exception(error)
            else:
                one.answer.set_result(done.result())
        elif not one.answer.done():
            one.answer.cancel()
        self._start_what_fits()
