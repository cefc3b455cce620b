"""What ends a gateway, and its embedded store with it; `serve` and its workers are in tests/e2e."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from service.local import store

Start = Callable[[bool], subprocess.Popen[bytes]]


@pytest.fixture
def start(short_dir: Path) -> Iterator[Start]:
    """Starts a gateway on a store of its own; True as nohup does."""
    started: list[subprocess.Popen[bytes]] = []

    def gateway(nohup: bool) -> subprocess.Popen[bytes]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        kept = {k: v for k, v in os.environ.items() if not k.startswith("LACUNA_")}
        environment = {**kept, "LACUNA_DATA_DIR": str(short_dir), "LACUNA_PORT": port}
        command = [sys.executable, "-m", "service.terminal", "gateway"]
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
        with (short_dir / "log").open("wb") as log:
            child = subprocess.Popen(command, env=environment, stderr=log)
        signal.signal(signal.SIGHUP, before)
        started.append(child)
        deadline = time.monotonic() + 60
        while not _answers(port):
            assert child.poll() is None, (short_dir / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        return child

    yield gateway
    for child in started:
        child.kill()
        child.wait()


def _answers(port: str) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_stops_in_order_and_its_store_with_it(
    start: Start, short_dir: Path, number: signal.Signals
) -> None:
    child = start(False)
    assert store.is_running(short_dir)
    child.send_signal(number)
    assert child.wait(30) == 0
    assert not store.is_running(short_dir)


def test_under_nohup_it_outlives_the_terminal(start: Start, short_dir: Path) -> None:
    child = start(True)
    child.send_signal(signal.SIGHUP)
    time.sleep(1)
    assert child.poll() is None
    child.terminate()
    assert child.wait(30) == 0
    assert not store.is_running(short_dir)
