"""What a hostile or careless sender can make the gateway keep: held against a limit on its process.

The limit is on data (RLIMIT_DATA), so that threads may reserve addresses they never use.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from lacuna.contract.profiles import Profile
from service.store.profiles import publish_tokenizer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits a running process")
ROOM = 220_000_000
"""Bytes that the gateway may take beyond what it has when it is ready."""


@pytest.fixture
def bounded(start_process: Any) -> Iterator[Any]:
    """A gateway process that dies of more memory than `ROOM`, rather than to swap."""
    with start_process() as process:
        httpx.post(f"{process.base}/v1/placements", json={})  # what is imported late is there now
        pid = process.child.pid
        status = Path(f"/proc/{pid}/status").read_text()
        data = next(line for line in status.splitlines() if line.startswith("VmData"))
        limit = int(data.split()[1]) * 1024 + ROOM
        resource.prlimit(pid, resource.RLIMIT_DATA, (limit, limit))
        yield process
        assert process.child.poll() is None
        log = process.log.read_text()
        assert "MemoryError" not in log
        assert '"unhandled error"' not in log


def healthy(process: Any) -> None:
    for path in ("/healthz", "/readyz"):
        assert httpx.get(f"{process.base}{path}", timeout=10).status_code == 200


def send(connection: socket.socket, part: bytes, times: int) -> int:
    """Send a part so many times, unless the other side hangs up; how often it was sent."""
    for number in range(times):
        try:
            connection.sendall(part)
        except OSError:
            return number
    return times


@contextlib.contextmanager
def open_connections(process: Any, number: int) -> Iterator[list[socket.socket]]:
    address = ("127.0.0.1", int(process.base.rpartition(":")[2]))
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(address, timeout=10))
            for _ in range(number)
        ]


def test_header_lines_without_end_are_not_kept(bounded: Any) -> None:
    """48 MB of them took 1.3 GB."""
    with open_connections(bounded, 8) as connections:
        for connection in connections:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
            assert send(connection, b"a:\r\n" * 16_384, 500) < 500  # 33 MB
    healthy(bounded)


def test_half_sent_bodies_are_bounded_together(bounded: Any) -> None:
    """Sixty of 7.9 MB are half a gigabyte; each by itself is within the limit."""
    head = (
        b"POST /v1/placements HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 7900000\r\n\r\n"
    )
    with open_connections(bounded, 60) as connections:
        for connection in connections:
            connection.sendall(head + b'{"model": "')
        for connection in connections:
            send(connection, b"a" * 65_536, 118)
        healthy(bounded)
        statuses = []
        for connection in connections:
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                statuses.append(connection.recv(100).split(b" ")[1])
        # The others wait for the rest of their bodies, or were reset after the answer.
        assert set(statuses) <= {b"429"}
    answer = httpx.post(f"{bounded.base}/v1/placements", json={}, timeout=10)
    assert answer.status_code == 422


@pytest.fixture
def word_profile(profile: Profile, redis_sync: redis.Redis) -> Profile:
    """A profile of a model whose tokenizer counts words."""
    tokenizer = Tokenizer(WordLevel({"ab": 0}, unk_token="ab"))
    tokenizer.pre_tokenizer = Whitespace()
    digest = publish_tokenizer(redis_sync, str(tokenizer.to_str()))
    model = profile.model.model_copy(update={"tokenizer_digest": digest})
    return profile.model_copy(update={"model": model})


def test_long_texts_are_counted_in_little_memory(
    bounded: Any, worker: Any, word_profile: Profile
) -> None:
    """Four texts of 1.9 MB took 1.3 GB."""
    body = {"model": "preset:gpt2", "weights": "random"}
    httpx.post(f"{bounded.base}/v1/profiles", json=body).raise_for_status()
    worker.finish(word_profile)
    chunks = [{"id": str(n), "relevance": 1.0, "text": "ab " * 630_000} for n in range(4)]
    asked = {"profile_id": word_profile.id, "chunks": chunks}
    answer = httpx.post(f"{bounded.base}/v1/placements", json=asked, timeout=120)
    assert answer.status_code == 422, answer.text
    assert answer.json()["code"] == "too_long"
    assert "2520000" in answer.json()["detail"]
    healthy(bounded)
