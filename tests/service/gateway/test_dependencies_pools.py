from __future__ import annotations

import asyncio
import threading

import pytest

from lacuna.contract.errors import QueueFull
from service.gateway.dependencies import Pool


async def test_calls_run_beside_the_loop_and_their_errors_come_back() -> None:
    pool = Pool("here", 1)
    assert (await pool.run(lambda: threading.current_thread().name)).startswith("here")
    assert await pool.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await pool.run(divmod, 1, 0)
    pool.close()


async def test_the_backlog_is_bounded_and_empties_again() -> None:
    pool, go = Pool("here", 1, backlog=2), threading.Event()
    held = [asyncio.create_task(pool.run(go.wait, 10)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await pool.run(go.wait, 10)
    go.set()
    assert await asyncio.gather(*held) == [True, True]
    assert await pool.run(len, "ab") == 2
    pool.close()
