"""What callers learn while the store hangs or is full."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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


class _NoRedis(socketserver.BaseRequestHandler):
    """Answers as a web server does that is asked for something else."""

    def handle(self) -> None:
        self.request.recv(1_000)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.fixture
def no_redis() -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _NoRedis) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"redis://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


COMMANDS = {
    "gateway": ["-m", "service.terminal", "gateway"],
    "worker": [str(Path(__file__).parents[2] / "workers" / "fake_worker.py")],
}


@pytest.mark.parametrize("process", COMMANDS)
@pytest.mark.parametrize("wrong", ["number", "server"])
def test_a_store_of_no_use_ends_the_start_in_a_line(
    redis_url: str, no_redis: str, tmp_path: Path, process: str, wrong: str
) -> None:
    url = f"{redis_url}?db=99" if wrong == "number" else no_redis
    environment = {"LACUNA_REDIS_URL": url, "LACUNA_PORT": "0", "LACUNA_DATA_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, *COMMANDS[process]],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": os.getcwd(), **environment},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode not in (0, 1)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    (said,) = [line["message"] for line in lines if line["level"] == "critical"]
    known = {"number": "no database with the number", "server": "is no Redis"}
    assert known[wrong] in said
    assert b"Traceback" not in done.stderr
