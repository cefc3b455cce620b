"""Pools: turns, shares, and what becomes of a call whose caller has left."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest

from lacuna.contract.errors import QueueFull
from service.gateway.pools import Pool, caller, given_up


def asks(pool: Pool, whose: str, call: Callable[..., Any], *given: Any) -> asyncio.Task[Any]:
    """A call of that caller, as a task."""
    context = contextvars.copy_context()
    context.run(caller.set, whose)
    return asyncio.get_running_loop().create_task(pool.run(call, *given), context=context)


async def test_calls_run_beside_the_loop_and_their_errors_come_back() -> None:
    pool = Pool("here", 1)
    assert (await pool.run(lambda: threading.current_thread().name)).startswith("here")
    assert await pool.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await pool.run(divmod, 1, 0)
    pool.close()


async def test_the_backlog_is_bounded_and_empties_again() -> None:
    pool, go = Pool("here", 1, backlog=2), threading.Event()
    held = [asks(pool, name, go.wait, 10) for name in "ab"]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull, match="too many computations"):
        await asks(pool, "c", go.wait, 10)
    go.set()
    assert await asyncio.gather(*held) == [True, True]
    assert await pool.run(len, "ab") == 2
    pool.close()


async def test_one_caller_cannot_fill_the_backlog() -> None:
    pool, go = Pool("here", 1, backlog=8), threading.Event()
    held = [asks(pool, "a", go.wait, 10) for _ in range(6)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull, match="too many of your computations"):
        await asks(pool, "a", go.wait, 10)
    held.append(asks(pool, "b", go.wait, 10))
    await asyncio.sleep(0)
    go.set()
    assert all(await asyncio.gather(*held))
    pool.close()


async def test_another_caller_starts_at_once_while_one_fills_all_threads() -> None:
    pool, go = Pool("here", 2), threading.Event()
    held = [asks(pool, "a", go.wait, 10) for _ in range(20)]
    await asyncio.sleep(0)
    # None of the first caller's calls has ended, and none will before `go`.
    assert await asks(pool, "b", len, "ab") == 2
    go.set()
    await asyncio.gather(*held)
    pool.close()


async def test_callers_take_turns() -> None:
    pool, go, order = Pool("here", 1, spare=0), threading.Event(), []
    first = asks(pool, "a", go.wait, 10)
    await asyncio.sleep(0)
    calls = [asks(pool, name, order.append, name) for name in "aaaabbc"]
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(first, *calls)
    assert sorted(order[:3]) == ["a", "b", "c"]
    assert sorted(order[3:5]) == ["a", "b"]
    pool.close()


async def test_a_call_whose_caller_has_left_never_runs() -> None:
    pool, go, ran = Pool("here", 1, backlog=4, spare=0), threading.Event(), []
    first = asks(pool, "a", go.wait, 10)
    await asyncio.sleep(0)
    for _ in range(20):  # more than the backlog holds: each that leaves makes room
        left = asks(pool, "a", ran.append, "left")
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
    stays = asks(pool, "b", ran.append, "stays")
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(first, stays)
    assert ran == ["stays"]
    pool.close()


async def test_a_running_call_learns_that_its_caller_has_left_and_holds_its_thread_until_then() -> (
    None
):
    pool, started, ended = Pool("here", 1, spare=0), threading.Event(), threading.Event()

    def until_given_up() -> None:
        started.set()
        while not given_up():
            ended.wait(0.01)
        ended.set()

    left = asks(pool, "a", until_given_up)
    await asyncio.to_thread(started.wait, 10)
    left.cancel()
    assert await asks(pool, "b", ended.is_set)  # it came after, on the same thread
    assert not given_up()
    pool.close()


async def test_what_waits_when_the_pool_closes_is_cancelled() -> None:
    pool, go = Pool("here", 1, spare=0), threading.Event()
    held = [asks(pool, "a", go.wait, 10) for _ in range(3)]
    await asyncio.sleep(0)
    pool.close()
    go.set()
    assert await held[0]
    found = await asyncio.gather(*held[1:], return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in found)
