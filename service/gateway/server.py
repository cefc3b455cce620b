"""The HTTP server's side of a connection, with bounds that hold before any request exists.

uvicorn's own protocol keeps every header line that arrives, for as long as lines arrive, and waits
for the end of a head for ever. `BoundedHttp` takes its place:
`uvicorn --http service.gateway.server:BoundedHttp`. `bound_connections` sets how many connections a
process keeps open.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from typing import Any, ClassVar, Final

import httptools
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.gateway.access import network
from service.gateway.edge import MAX_HEADERS, MAX_TARGET
from service.gateway.problems import problem

MAX_FIELDS: Final = 128
"""Header fields of one request, its trailers included."""
MAX_HEAD: Final = MAX_HEADERS + MAX_TARGET + 8 * MAX_FIELDS
"""Bytes that a sender may send without completing a head, a part of a body or the head of a
chunk: what may be in one, and what stands between."""
HEAD_SECONDS: Final = 20.0
"""Time from the opening of a connection, or from the first byte after an answer, to the end of the
next head. The rest of a body that has its answer gets as long."""
LINGER_SECONDS: Final = 1.0
LINGER_BYTES: Final = 2_000_000
"""What is read and dropped after a refusal: a connection that ends with unread bytes is reset, and
the sender may never see the answer."""


READ_SECONDS: Final = 20.0
READ_BYTES: Final = 16_384
"""What a receiver reads of an answer in this time at least, or its connection ends: an answer that
nobody reads stays in memory."""
MAX_PIPELINED: Final = 32
"""Requests of one connection that wait for the answers to those before them."""
MAX_CONNECTIONS: Final = 4_096
_OTHER_FILES: Final = 128
"""Open files that are no callers' connections: the store, logs, libraries."""
_TURNED_AWAY: Final = 64
"""Connections of one address beyond its bound that are told so; more end without a word."""


def bound_connections(per_address: int = 0) -> None:
    """Set how many connections this process keeps open, all together and of one address.

    Lets the process have as many open files as that takes. Where the system allows fewer, fewer
    connections are kept.

    Args:
        per_address: of one address (IPv6: of one /64 network); 0 is half of all.
    """
    wanted = 2 * MAX_CONNECTIONS  # beyond the bound they are refused, which needs a file too
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft != resource.RLIM_INFINITY:
        wanted = min(wanted, soft - _OTHER_FILES)
    BoundedHttp.most = max(2, wanted // 2)
    BoundedHttp.per_address = per_address or BoundedHttp.most // 2


class _Stop(Exception):
    """Stops the parser in the middle of what has arrived."""


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's protocol, with bounds on heads and connections.

    What has arrived at once is parsed before it is judged, at most 256 kB. A wish to speak another
    protocol is ignored (RFC 9110, 7.8): Java's client has it in every first request.

    Attributes:
        most: connections of this process.
        per_address: connections of one address.
    """

    most: ClassVar[int] = MAX_CONNECTIONS
    per_address: ClassVar[int] = MAX_CONNECTIONS // 2
    _open: ClassVar[Counter[str]] = Counter()

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._without_progress = 0
        self._fields = 0
        self._dropped: int | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None
        self._in_body = False
        self._address = ""
        self.limit_concurrency = min(self.limit_concurrency or self.most, self.most)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock of the first head, or refuse one connection too many."""
        super().connection_made(transport)
        # Behind a proxy on a unix socket there is no client address.
        self._address = network(self.client[0]) if self.client else ""
        self._open[self._address] += 1
        beyond = self._open[self._address] - self.per_address if self._address else 0
        if beyond > _TURNED_AWAY or len(self.connections) > self.most * 3 // 2:
            self.transport.abort()
        elif beyond > 0:
            detail = f"more than {self.per_address} connections of your address are open"
            self._refuse("rate_limited", detail, retry_after=5.0)
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        self._open[self._address] -= 1
        if not self._open[self._address]:
            del self._open[self._address]
        self._stop_waiting()
        if self._read_timer is not None:
            self._read_timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The receiver is slower than the answer."""
        super().pause_writing()
        self._await_reading()

    def on_response_complete(self) -> None:
        """An answer is on its way; what the receiver did not take yet is in memory."""
        super().on_response_complete()
        self._await_reading()

    def _await_reading(self) -> None:
        unread = self.transport.get_write_buffer_size()
        if self._read_timer is None and unread:
            self._read_timer = self.loop.call_later(READ_SECONDS, self._check_reading, unread)

    def _check_reading(self, before: int) -> None:
        self._read_timer = None
        unread = self.transport.get_write_buffer_size()
        if unread > before - READ_BYTES and unread:
            self.transport.abort()
        else:
            self._await_reading()

    def data_received(self, data: bytes) -> None:
        """Parse, and refuse what leads nowhere."""
        if self._dropped is not None:
            self._dropped += len(data)
            if self._dropped > LINGER_BYTES:
                self.transport.close()
            return
        self._without_progress += len(data)
        self._unset_keepalive_if_required()
        while data:
            data = self._parse(data)
        if self._dropped is not None or self.transport.is_closing():
            return
        if self._without_progress > MAX_HEAD:
            self._refuse("headers_too_large", f"the head of a request exceeds {MAX_HEAD} bytes")
        elif self._head_timer is None and not self._is_answering():
            self._await_head()  # blank lines, or the rest of a body that has its answer

    def _parse(self, data: bytes) -> bytes:
        """Read what has arrived; returns what has to be read again."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        except httptools.HttpParserUpgrade as upgrade:
            if self.parser.get_method() != b"CONNECT":
                return self._without_upgrade() + data[upgrade.args[0] :]
            self.send_400_response("Invalid HTTP request received.")
        return b""

    def _without_upgrade(self) -> bytes:
        """The head that asked for another protocol, without that wish, for a new parser: the old
        one takes what follows for the other protocol."""
        version = self.parser.get_http_version().encode()
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        for name, value in self.headers:
            if name == b"connection":
                kept = [part for part in value.split(b",") if part.strip().lower() != b"upgrade"]
                lines.append(name + b": " + b",".join(kept))
            elif name != b"upgrade":
                lines.append(name + b": " + value)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        return b"\r\n".join([*lines, b"", b""])

    def _should_upgrade(self) -> bool:
        return False

    def on_message_begin(self) -> None:
        """A request begins. Thousands may have arrived at once, and each takes kilobytes."""
        if len(self.pipeline) >= MAX_PIPELINED:
            raise _Stop
        super().on_message_begin()
        self._fields = 0
        self._await_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a field of a head or of a trailer, up to `MAX_FIELDS`."""
        self._fields += 1
        if self._fields > MAX_FIELDS:
            raise _Stop
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A request is there."""
        if self.parser.should_upgrade():
            return  # it is read again
        self._without_progress = 0
        self._in_body = True
        self._stop_waiting()
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """A chunk of a body is announced."""
        self._without_progress = 0

    def on_body(self, body: bytes) -> None:
        """A part of a body is there."""
        self._without_progress = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A body is there."""
        if self.parser.should_upgrade():
            return
        self._without_progress = 0
        self._in_body = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """The parser has stopped: because of us, or because this is not HTTP."""
        if self._fields > MAX_FIELDS:
            self._refuse("headers_too_large", f"a request has more than {MAX_FIELDS} header fields")
        elif len(self.pipeline) >= MAX_PIPELINED:
            self.transport.close()
        else:
            super().send_400_response(msg)

    def _await_head(self) -> None:
        self._stop_waiting()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        if self._is_answering():
            self._await_head()  # it is we who do not read on
        elif self._in_body:
            self.transport.close()  # its request has an answer already
        elif not self.transport.is_closing():
            detail = f"the head of a request did not arrive in {HEAD_SECONDS:g} seconds"
            self._refuse("request_timeout", detail)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, code: str, detail: str, retry_after: float | None = None) -> None:
        """Answer a request that never reached the application, and end the connection.

        An answer that is on its way must not be mixed with this one: then the connection just ends.
        """
        self._stop_waiting()
        self._unset_keepalive_if_required()
        if self._is_answering() or self.transport.is_closing():
            self.transport.close()
            return
        close = {"Connection": "close"}
        answer = problem({}, code, detail, headers=close, retry_after=retry_after)
        self.transport.write(_raw(answer))
        self._dropped = 0
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._head_timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)


def _raw(answer: Response) -> bytes:
    """An answer as it goes over the wire."""
    fields = [name + b": " + value + b"\r\n" for name, value in answer.raw_headers]
    return b"".join([STATUS_LINE[answer.status_code], *fields, b"\r\n", bytes(answer.body)])
