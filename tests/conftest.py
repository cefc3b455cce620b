"""What all tests share: a real store on a unix socket, empty before each test that uses it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio

from lacuna.contract.profile_requests import ProfileRequest
from service.local import store
from service.store.connection import connect, connect_async


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A folder whose path is short enough for a unix socket (pytest's own may be too long)."""
    path = Path(tempfile.mkdtemp(prefix="lacuna-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def store_server() -> Iterator[store.EmbeddedServer]:
    """One embedded store for the whole session (and for each xdist worker its own)."""
    path = Path(tempfile.mkdtemp(prefix="lacuna-"))
    with store.ensure(path) as server:
        yield server
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def redis_url(store_server: store.EmbeddedServer) -> Iterator[str]:
    """Address of an empty store."""
    client = redis.Redis.from_url(store_server.url)
    client.flushall()
    client.config_set("maxmemory", 0)
    yield store_server.url
    client.close()


@pytest.fixture
def redis_sync(redis_url: str) -> Iterator[redis.Redis]:
    """A worker's client on an empty store."""
    client = connect(redis_url)
    yield client
    client.close()


@pytest.fixture
async def redis_async(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    """A gateway's client on an empty store."""
    client = connect_async(redis_url)
    yield client
    await client.aclose()
    await client.connection_pool.disconnect()


class Workers:
    """Starts fake workers (tests/workers/fake_worker.py) as processes, and ends them all."""

    script = Path(__file__).parent / "workers" / "fake_worker.py"

    def __init__(self, url: str, data_dir: Path) -> None:
        self.url, self.data_dir = url, data_dir
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(
        self, *, lease: float = 2.0, grace: float = 5.0, **more: str
    ) -> subprocess.Popen[bytes]:
        """One more worker; `more` are environment variables."""
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "LACUNA_REDIS_URL": self.url,
            "LACUNA_DATA_DIR": str(self.data_dir),
            "LACUNA_LEASE_SECONDS": str(lease),
            "LACUNA_GRACE_SECONDS": str(grace),
            **more,
        }
        log = open(self.data_dir / f"worker-{len(self.processes)}.log", "wb")  # noqa: SIM115
        with log:
            process = subprocess.Popen(
                [sys.executable, str(self.script)], env=environment, stderr=log
            )
        self.processes.append(process)
        return process

    def notes(self, kind: str) -> list[tuple[str, int]]:
        """(job, process) of every start ("starts") or complete run ("ends"), in order."""
        path = self.data_dir / kind
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [(line.split()[0], int(line.split()[1])) for line in lines]

    def log(self, index: int = 0) -> str:
        """What a worker wrote."""
        return (self.data_dir / f"worker-{index}.log").read_text()

    def close(self) -> None:
        """Kill what is left."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


@pytest.fixture
def workers(redis_url: str, tmp_path: Path) -> Iterator[Workers]:
    """Fake worker processes on the session's store."""
    started = Workers(redis_url, tmp_path)
    yield started
    started.close()


@pytest.fixture
def make_request() -> Callable[..., ProfileRequest]:
    """Builds a request whose job does what `text` says in a fake worker."""

    def make(text: str = "sleep 0", **fields: object) -> ProfileRequest:
        documents = {"source": "inline", "count": 1, "texts": [text]}
        return ProfileRequest.model_validate(
            {"model": "local:tiny", "documents": documents, **fields}
        )

    return make
