"""What callers learn while the store hangs or is full."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

from service.local import store


async def test_a_store_that_hangs_refuses_all_at_once_and_not_in_turn(
    gateway: Any, short_dir: Path
) -> None:
    with store.ensure(short_dir) as server:
        client = await gateway(redis_url=server.url)
        assert (await client.post("/v1/profiles", json={"model": "gpt2"})).status_code == 202
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(2.1)  # until the store is asked for the workers again
            started = time.monotonic()
            asked = [{"model": "gpt2", "seed": seed} for seed in range(20)]
            posts = [client.post("/v1/profiles", json=body) for body in asked]
            *answers, ready = await asyncio.gather(*posts, client.get("/readyz"))
            assert time.monotonic() - started < 5
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert {answer.status_code for answer in answers} == {503}
        assert (ready.status_code, ready.json()["code"]) == (503, "not_ready")
        assert (await client.get("/readyz")).json()["redis"]["ok"]
