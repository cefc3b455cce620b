"""`lacuna serve` is stopped by SIGTERM, or killed: nothing that it started is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import redis


def descendants(pid: int) -> set[int]:
    """Children of a process and theirs, from /proc."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found |= {child} | descendants(child)
    return found


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_serve_takes_everything_with_it(short_dir: Path, how: signal.Signals) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "LACUNA_DATA_DIR": str(short_dir), "LACUNA_PORT": str(port)}
    command = [sys.executable, "-m", "service.terminal", "serve"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not ready(port):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.5)
        started = descendants(process.pid)
        assert len(started) >= 2
        process.send_signal(how)
        process.wait(60)
        deadline = time.monotonic() + (0 if how == signal.SIGTERM else 60)
        while left := [pid for pid in started if alive(pid)]:
            assert time.monotonic() < deadline, left
            time.sleep(0.2)
        with pytest.raises(redis.exceptions.ConnectionError):
            redis.Redis(unix_socket_path=f"{short_dir}/redis.sock").ping()
    finally:
        process.kill()
        process.wait()


def ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False
