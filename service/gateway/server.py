"""The HTTP server's side of a connection, with bounds that hold before any request exists.

uvicorn's own protocol keeps every header line that arrives, for as long as lines arrive, and waits
for the end of a head for ever. `BoundedHttp` takes its place:
`uvicorn --http service.gateway.server:BoundedHttp`.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.gateway.edge import MAX_HEADERS, MAX_TARGET
from service.gateway.problems import problem

MAX_FIELDS: Final = 128
"""Header fields of one request, its trailers included."""
MAX_HEAD: Final = MAX_HEADERS + MAX_TARGET + 8 * MAX_FIELDS
"""Bytes that a sender may send without completing a head, a part of a body or the head of a
chunk: what may be in one, and what stands between."""
HEAD_SECONDS: Final = 20.0
"""Time from the opening of a connection, or from the first byte of a request, to the end of the
head."""
LINGER_SECONDS: Final = 1.0
LINGER_BYTES: Final = 2_000_000
"""What is read and dropped after a refusal: a connection that ends with unread bytes is reset, and
the sender may never see the answer."""


MAX_PIPELINED: Final = 32
"""Requests of one connection that wait for the answers to those before them."""


class _Stop(Exception):
    """Stops the parser in the middle of what has arrived."""


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's protocol; a head that is too long or too slow ends the connection.

    What has arrived at once is parsed before it is judged, at most 256 kB.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._without_progress = 0
        self._fields = 0
        self._dropped: int | None = None
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock of the first head."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, and refuse what leads nowhere."""
        if self._dropped is not None:
            self._dropped += len(data)
            if self._dropped > LINGER_BYTES:
                self.transport.close()
            return
        self._without_progress += len(data)
        super().data_received(data)
        if self._without_progress > MAX_HEAD and self._dropped is None:
            self._refuse("headers_too_large", f"the head of a request exceeds {MAX_HEAD} bytes")

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
        self._without_progress = 0
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
        self._without_progress = 0
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
        elif not self.transport.is_closing():
            detail = f"the head of a request did not arrive in {HEAD_SECONDS:g} seconds"
            self._refuse("request_timeout", detail)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, code: str, detail: str) -> None:
        """Answer a request that never reached the application, and end the connection.

        An answer that is on its way must not be mixed with this one: then the connection just ends.
        """
        self._stop_waiting()
        self._unset_keepalive_if_required()
        if self._is_answering() or self.transport.is_closing():
            self.transport.close()
            return
        answer = problem({}, code, detail, headers={"Connection": "close"})
        self.transport.write(_raw(answer))
        self._dropped = 0
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._head_timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)


def _raw(answer: Response) -> bytes:
    """An answer as it goes over the wire."""
    fields = [name + b": " + value + b"\r\n" for name, value in answer.raw_headers]
    return b"".join([STATUS_LINE[answer.status_code], *fields, b"\r\n", bytes(answer.body)])
