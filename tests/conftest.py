"""What all tests share: a real store on a unix socket, empty before each test that uses it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio

from service import embedded
from service.store.connection import connect, connect_async


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A folder whose path is short enough for a unix socket (pytest's own may be too long)."""
    path = Path(tempfile.mkdtemp(prefix="lacuna-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def store_server() -> Iterator[embedded.EmbeddedServer]:
    """One embedded store for the whole session (and for each xdist worker its own)."""
    path = Path(tempfile.mkdtemp(prefix="lacuna-"))
    with embedded.ensure(path) as server:
        yield server
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def redis_url(store_server: embedded.EmbeddedServer) -> Iterator[str]:
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
