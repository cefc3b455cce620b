"""What reaches the server before there is a request: bounded in bytes and in time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from service.gateway import server
from service.gateway.server import MAX_FIELDS, MAX_HEAD, MAX_PIPELINED, BoundedHttp

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
LONG = 40_000_000
"""More than the buffers of both systems take."""
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the length of the body and the number of header fields."""
    assert scope["type"] == "http"
    size, more = 0, scope["path"] != "/at-once"
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message["body"]), message["more_body"]
    body = f"{size} {len(scope['headers'])}".encode()
    if scope["path"] == "/long":
        body = bytes(LONG)
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    config = uvicorn.Config(
        echo, port=0, http=BoundedHttp, ws="none", lifespan="off", log_config=None, access_log=False
    )
    running = uvicorn.Server(config)
    task = asyncio.create_task(running.serve())
    while not running.started:
        await asyncio.sleep(0.01)
    port = running.servers[0].sockets[0].getsockname()[1]
    yield lambda: asyncio.open_connection("127.0.0.1", port)
    running.should_exit = True
    await task


async def endless(connect: Connect, start: bytes, lines: Iterator[bytes]) -> tuple[int, bytes]:
    """Send without end; how many bytes were taken before the server hung up, and its answer."""
    reader, writer = await connect()
    writer.write(start)
    sent, answer = 0, asyncio.create_task(reader.read())
    try:
        while not answer.done() and sent < 50 * MAX_HEAD:
            part = b"".join(itertools.islice(lines, 64))
            writer.write(part)
            sent += len(part)
            await writer.drain()
            await asyncio.sleep(0.001)
        return sent, await answer
    except ConnectionError:
        return sent, b"" if not answer.done() or answer.exception() else answer.result()
    finally:
        answer.cancel()
        writer.close()


@pytest.mark.parametrize(
    ("start", "part"),
    [
        (GET, b"a:\r\n"),
        (GET, b"x-long: " + b"y" * 4_000 + b"\r\n"),
        (GET + b"x-one: ", b"y" * 100),
        (GET + b"", b"n" * 100),
        (b"GET /", b"p" * 100),
        (b"", b"\r\n"),
        (CHUNKED + b"5;", b"ext=" + b"e" * 100),
        (CHUNKED + b"1\r\nx\r\n0\r\n", b"a: b\r\n"),
        (CHUNKED + b"1\r\nx\r\n0\r\nt: ", b"b" * 100),
    ],
    ids=[
        "lines",
        "long lines",
        "value",
        "name",
        "target",
        "blank",
        "extension",
        "trailers",
        "tail",
    ],
)
async def test_what_leads_to_no_request_is_cut_off(
    connect: Connect, start: bytes, part: bytes
) -> None:
    sent, answer = await endless(connect, start, itertools.repeat(part))
    assert sent < 20 * MAX_HEAD  # what the system's own buffers take
    # No answer where the application was at work on one, or where the reset overtook it.
    assert answer == b"" or answer.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400")), answer


async def test_the_refusal_is_a_problem_document(connect: Connect) -> None:
    reader, writer = await connect()
    writer.write(GET + b"".join(b"x-%d: y\r\n" % n for n in range(MAX_FIELDS + 1)))
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert b"content-type: application/problem+json" in head.lower()
    assert b'"code":"headers_too_large"' in body
    assert f"more than {MAX_FIELDS} header fields".encode() in body


async def test_heads_up_to_the_bound_pass(connect: Connect) -> None:
    reader, writer = await connect()
    fields = b"".join(b"x-%d: y\r\n" % n for n in range(MAX_FIELDS - 1))
    for _ in range(3):  # on one connection: what was counted is forgotten with its request
        writer.write(GET + fields + b"\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert await reader.readexactly(5) == f"0 {MAX_FIELDS}".encode()
    writer.close()


async def test_some_requests_may_follow_before_the_answer_and_not_thousands(
    connect: Connect,
) -> None:
    reader, writer = await connect()
    writer.write((GET + b"\r\n") * MAX_PIPELINED)
    for _ in range(MAX_PIPELINED):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        await reader.readexactly(3)
    writer.close()
    reader, writer = await connect()
    writer.write(CHUNKED + b"1\r\nx\r\n0\r\n\r\n" + (GET + b"\r\n") * 5_000)
    with contextlib.suppress(ConnectionError):
        assert (await reader.read()).count(b"HTTP/1.1 200 ") <= MAX_PIPELINED + 2
    writer.close()


async def test_a_body_of_many_small_chunks_makes_progress(connect: Connect) -> None:
    reader, writer = await connect()
    number = 2 * MAX_HEAD
    writer.write(CHUNKED + b"1\r\nx\r\n" * number + b"0\r\n\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    assert (await reader.readexactly(len(str(number)))).decode() == str(number)
    writer.close()


async def test_a_head_that_does_not_arrive_in_time_ends_the_connection(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.3)
    for start in (b"", GET):
        reader, writer = await connect()
        writer.write(start)
        async with asyncio.timeout(5):
            assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        writer.close()


async def test_a_body_may_take_longer_than_a_head(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.3)
    reader, writer = await connect()
    writer.write(CHUNKED)
    await asyncio.sleep(0.8)
    writer.write(b"1\r\nx\r\n0\r\n\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    # The next head on the same connection has a clock of its own.
    await reader.readexactly(3)
    writer.write(GET)
    async with asyncio.timeout(5):
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
    writer.close()


@pytest.mark.parametrize(
    ("request_", "drip"),
    [
        (GET + b"Content-Length: 1000\r\n\r\n", b"a"),
        (GET + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
        (GET + b"\r\n", b"\r\n"),
        (GET + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n", b"\r\n"),
    ],
    ids=["rest of a body", "chunks", "blank lines", "another protocol"],
)
async def test_what_drips_in_after_an_answer_does_not_hold_the_connection(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, request_: bytes, drip: bytes
) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.3)
    reader, writer = await connect()
    writer.write(request_.replace(b"/ ", b"/at-once ", 1))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    dropped = asyncio.create_task(reader.read())
    async with asyncio.timeout(10):
        while not dropped.done():
            writer.write(drip)
            await asyncio.sleep(0.02)
    writer.close()


async def test_the_rest_of_an_answered_body_may_come(connect: Connect) -> None:
    reader, writer = await connect()
    writer.write(b"POST /at-once HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(3)
    writer.write(b"a" * 200_000 + GET + b"\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    writer.close()


@pytest.mark.parametrize("wish", [b"h2c", b"websocket", b"TLS/1.0, x"])
async def test_a_wish_for_another_protocol_is_ignored(connect: Connect, wish: bytes) -> None:
    """Java's client has one in every first request, with a body like any other."""
    reader, writer = await connect()
    head = b"POST / HTTP/1.1\r\nHost: x\r\nHTTP2-Settings: AAMAAABk\r\nUpgrade: " + wish
    head += b"\r\nConnection: Upgrade, HTTP2-Settings\r\nContent-Length: 5\r\n\r\n"
    writer.write((head + b"hello") * 2 + head[:40])
    await asyncio.sleep(0.05)
    writer.write(head[40:] + b"hel")
    await asyncio.sleep(0.05)
    writer.write(b"lo" + GET + b"\r\n")
    for expected in (b"5 4", b"5 4", b"5 4", b"0 1"):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert await reader.readexactly(3) == expected
    writer.close()


async def test_a_tunnel_is_refused(connect: Connect) -> None:
    reader, writer = await connect()
    writer.write(b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    writer.close()


async def test_one_address_has_so_many_connections(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedHttp, "per_address", 3)
    held = [await connect() for _ in range(3)]
    reader, writer = await connect()
    async with asyncio.timeout(5):
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 429 ")
    assert b"retry-after: 5" in answer.lower()
    assert b"more than 3 connections of your address are open" in answer
    held[0][1].close()
    await asyncio.sleep(0.1)
    writer.close()
    await asyncio.sleep(0.1)
    held[1][1].write(GET + b"\r\n")
    assert (await held[1][0].readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    reader, writer = await connect()
    writer.write(GET + b"\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    for _, one in [*held, (reader, writer)]:
        one.close()
    await asyncio.sleep(0.1)
    assert not BoundedHttp._open  # nothing is kept of addresses that have gone


async def test_connections_far_beyond_the_bound_end_without_a_word(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedHttp, "most", 4)
    held = [await connect() for _ in range(6)]
    held.append(await connect())
    async with asyncio.timeout(5):
        with contextlib.suppress(ConnectionError):
            assert await held[-1][0].read() == b""
    for _, writer in held:
        writer.close()


_ROOM = """
import resource
from service.gateway import server
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, min(hard, {hard})))
server.bound_connections({asked})
found = server.BoundedHttp
print(found.most, found.per_address, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "asked", "expected"),
    [
        (1_024, 1_024, 0, (448, 224, 1_024)),
        (256, 2_048, 0, (960, 480, 2_048)),
        (256, 2_048, 7, (960, 7, 2_048)),
        (100, 100, 0, (2, 1, 100)),
    ],
)
def test_there_are_no_more_connections_than_files(
    soft: int, hard: int, asked: int, expected: tuple[int, ...]
) -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= hard
    script = _ROOM.format(soft=soft, hard=hard, asked=asked)
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    assert tuple(map(int, told.split())) == expected


async def test_an_answer_that_nobody_reads_ends_the_connection(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "READ_SECONDS", 0.3)
    reader, writer = await connect()
    transport = writer.transport
    transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(GET.replace(b"/ ", b"/long ", 1) + b"\r\n")
    await asyncio.sleep(0.2)
    assert BoundedHttp._open
    async with asyncio.timeout(5):
        while BoundedHttp._open:
            await asyncio.sleep(0.05)
    writer.close()
    transport.resume_reading()  # type: ignore[attr-defined]
    with contextlib.suppress(ConnectionError):
        assert len(await reader.read()) < LONG


async def test_who_reads_slowly_gets_the_whole_answer(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "READ_SECONDS", 0.3)
    reader, writer = await connect()
    writer.write(GET.replace(b"/ ", b"/long ", 1) + b"\r\n")
    await reader.readuntil(b"\r\n\r\n")
    for _ in range(10):
        await reader.readexactly(LONG // 10)
        await asyncio.sleep(0.15)
    writer.write(GET + b"\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    writer.close()
