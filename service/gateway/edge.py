"""Pure ASGI middleware: Edge, then the keys of `access`, then BodyLimit and CachedProfiles.

None of it is the framework's own. `BaseHTTPMiddleware` and `GZipMiddleware` cost more than a cached
answer, and Starlette's body limit (FastAPI's `max_body_size`) answers in plain text.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lacuna.contract.errors import PayloadTooLarge, QueueFull, StoreUnavailable
from lacuna.contract.validation import SMALL_BYTES
from service import logs
from service.gateway import pools
from service.gateway.access import caller_of
from service.gateway.bodies import BodyTooSlow
from service.gateway.dependencies import address_prefix
from service.gateway.metrics import Metrics
from service.gateway.problems import problem
from service.gateway.representations import (
    Conditions,
    RepresentationCache,
    choose,
    send_representation,
)

log = logging.getLogger("lacuna.api")

CLIENT_LEFT = 499
"""Counted and logged as the status when the client left before the answer."""
_REFUSED = f"{StoreUnavailable.__name__}: "
"""How the last line of a traceback begins when `app` refuses a store."""
MAX_HEADERS = 32_768
MAX_TARGET = 8_192
"""Bytes of all header fields together, and of path and query; the server's parser has no bound."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._\-]{1,64}")
_PREFIX = re.compile(rb"(?:/[A-Za-z0-9._~\-]{1,64}){1,8}/?")
_SECURITY = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
_PROFILE = re.compile(r"/v1/profiles/([0-9a-f]{32})(?:\.(json|csv|svg|png))?")
PROFILE_ROUTE = "/v1/profiles/{profile_id}"


class Edge:
    """Request id, security headers, HEAD, metrics, access log, and an answer for any exception."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, _without_traceback(send))
            return
        request_id = _request_id(scope)
        scope["lacuna.request_id"] = request_id
        method = scope["method"]
        # HEAD is GET without the body; an event stream has no length to report.
        head = method == "HEAD" and not scope["path"].endswith("/events")
        prefix, path = _prefix(scope)
        inner = {**scope, "method": "GET" if head else method, "path": path, "root_path": ""}
        address_prefix.set(prefix)
        started = time.perf_counter()
        # Not reset at the end: a request has its own context, and what the server itself logs about
        # it belongs to it as well.
        logs.request_id.set(request_id)
        logs.job_id.set("")
        reply = _Reply(send, request_id, head=head)
        try:
            await self._answer(inner, receive, reply)
        finally:
            seconds = time.perf_counter() - started
            self.metrics.request(method, _route(inner), reply.status, seconds)
            if key := inner.get("lacuna.key"):
                self.metrics.caller(key.name, reply.status)
            _log_access(inner, method, reply.status, seconds)

    async def _answer(self, scope: Scope, receive: Receive, reply: _Reply) -> None:
        try:
            # Before anything reads them, so that a sender cannot make a header expensive.
            if (refusal := _too_long(scope)) is not None:
                await refusal(scope, receive, reply)
                return
            await self.app(scope, receive, reply)
        except ClientDisconnect:
            reply.status = reply.status or CLIENT_LEFT
        except asyncio.CancelledError:
            # The server is shutting down. Unhandled, uvicorn would log a traceback and answer 500.
            if not reply.status:
                detail = "this gateway is stopping; ask again, the job continues"
                close = {"Connection": "close"}
                refusal = problem(scope, "not_ready", detail, retry_after=1.0, headers=close)
                await refusal(scope, receive, reply)
            elif reply.is_stream:
                await reply({"type": "http.response.body", "body": b""})
            else:
                raise
        except Exception:
            log.exception("unhandled error")
            if reply.status:
                raise
            detail = "an internal error; the service's log has it under this request id"
            await problem(scope, "internal_error", detail)(scope, receive, reply)


def _without_traceback(send: Send) -> Send:
    """Of a start that we refuse, which has said why: no traceback need follow."""

    async def told(message: Message) -> None:
        lines = str(message.get("message", "")).splitlines()
        if message["type"] == "lifespan.startup.failed" and _REFUSED in "".join(lines[-1:]):
            message = {"type": message["type"]}
        await send(message)

    return told


class _Reply:
    """Sends an answer with the headers that every answer has, and notes its status."""

    def __init__(self, send: Send, request_id: str, *, head: bool) -> None:
        self._send, self._request_id, self._head = send, request_id, head
        self.status = 0
        self.is_stream = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = message.get("headers", [])
            self.is_stream = not any(name == b"content-length" for name, _ in given)
            message["headers"] = _headers(given, self._request_id)
        elif self._head:
            message = {**message, "body": b""}
        await self._send(message)


def _too_long(scope: Scope) -> Response | None:
    """A refusal of a request whose address or header fields are too long, else None."""
    close = {"Connection": "close"}
    if len(scope["path"]) + len(scope["query_string"]) > MAX_TARGET:
        detail = f"the address exceeds {MAX_TARGET} bytes"
        return problem(scope, "address_too_long", detail, headers=close)
    if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADERS:
        detail = f"the header fields exceed {MAX_HEADERS} bytes"
        return problem(scope, "headers_too_large", detail, headers=close)
    return None


def _log_access(scope: Scope, method: str, status: int, seconds: float) -> None:
    # Answers from the cache are counted, but logged only for debugging: a line costs as much as
    # the answer.
    level = logging.DEBUG if "lacuna.route" in scope else logging.INFO
    if not log.isEnabledFor(level):
        return
    # Never the path or the query: they come from the caller and may hold anything.
    route = _route(scope)
    fields = {"method": method[:16], "route": route, "status": status}
    fields["milliseconds"] = round(seconds * 1e3, 3)
    if key := scope.get("lacuna.key"):
        fields["caller"] = key.name
    log.log(level, "%s %s %d", method[:16], route, status, extra=fields)


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value.decode())
    return secrets.token_hex(8)


def _prefix(scope: Scope) -> tuple[str, str]:
    """What a proxy has before our paths, and the path without it.

    The server's own `root_path` counts, else the header. A caller who makes the header up changes
    the addresses in the caller's own answers and nothing else.
    """
    root = str(scope.get("root_path") or "").rstrip("/")
    if root:
        return root, scope["path"].removeprefix(root) or "/"
    for name, value in scope["headers"]:
        if name == b"x-forwarded-prefix" and _PREFIX.fullmatch(value):
            return value.decode().rstrip("/"), scope["path"]
    return "", scope["path"]


def _headers(given: Sequence[tuple[bytes, bytes]], request_id: str) -> list[tuple[bytes, bytes]]:
    headers = [*given, (b"x-request-id", request_id.encode()), *_SECURITY]
    if not any(name == b"content-security-policy" for name, _ in given):
        headers.append(_POLICY)
    return headers


def _route(scope: Scope) -> str:
    """The template of the route that answered; templates are few, unlike paths."""
    known = scope.get("lacuna.route")
    if known is None:
        known = getattr(scope.get("route"), "path", None)
    return known or "unmatched"


class BodyBudget:
    """Bytes of long bodies in memory, over all requests, whether they have arrived in full or not.

    Args:
        most: bytes of all callers together; one caller may hold half.
        largest: bytes of the largest body, which always fits for one caller.
    """

    def __init__(self, most: int, largest: int) -> None:
        self._most = max(most, largest)
        self._share = max(self._most // 2, largest)
        self._held: Counter[str] = Counter()

    def take(self, whose: str, size: int) -> None:
        """Count `size` bytes more.

        Raises:
            QueueFull: too many bytes are held already; nothing was counted.
        """
        if self._held[whose] + size > self._share or self._held.total() + size > self._most:
            self.give(whose, 0)
            detail = "the bodies of other requests take the room for this one; try again"
            raise QueueFull(detail, retry_after=2.0)
        self._held[whose] += size

    def give(self, whose: str, size: int) -> None:
        """Count `size` bytes less."""
        self._held[whose] -= size
        if not self._held[whose]:
            del self._held[whose]


class BodyLimit:
    """Refuses bodies that are too large, at once when the length is declared, too slow, or too many
    at a time. Notes who asks, for everything behind it that shares out something (`pools`).

    Args:
        limit: bytes of one body.
        budget: bytes of all bodies; a body counts with what it has beyond `SMALL_BYTES`.
        larger: other limits of one body, by path.
        pause: seconds within which the next part has to arrive.
        seconds: seconds within which the whole body has to arrive.
    """

    def __init__(
        self,
        app: ASGIApp,
        limit: int,
        budget: int = 64_000_000,
        larger: Mapping[str, int] | None = None,
        pause: float = 10.0,
        seconds: float = 60.0,
    ) -> None:
        self.app = app
        self.limit = limit
        self.larger = larger or {}
        self.budget = BodyBudget(budget, max([limit, *self.larger.values()]))
        self.pause = pause
        self.seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass the request on and count what is read of its body."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        whose = caller_of(scope)
        pools.caller.set(whose)
        if scope["method"] == "GET":
            await self.app(scope, receive, send)
            return
        limit = self.larger.get(scope["path"], self.limit)
        detail = f"the body exceeds {limit} bytes"
        declared = next((v for n, v in scope["headers"] if n == b"content-length"), b"0")
        if declared.isdigit() and int(declared[:20]) > limit:
            refusal = problem(scope, "payload_too_large", detail, errors=[("body", detail)])
            await refusal(scope, receive, send)
            return
        read, held, more = 0, 0, True
        end = time.monotonic() + self.seconds

        async def counted() -> Message:
            nonlocal read, held, more
            # After the body, only the end of the connection can come, and may take its time.
            allowed = min(self.pause, max(0.0, end - time.monotonic())) if more else None
            try:
                async with asyncio.timeout(allowed):
                    message = await receive()
            except TimeoutError:
                raise BodyTooSlow from None
            if message["type"] == "http.request":
                more = message.get("more_body", False)
                read += len(message.get("body", b""))
                if read > limit:
                    raise PayloadTooLarge(detail, field="body")
                if (owed := max(0, read - SMALL_BYTES) - held) > 0:
                    self.budget.take(whose, owed)
                    held += owed
            return message

        try:
            await self.app(scope, counted, send)
        finally:
            # Only now: what was parsed of the body lives as long as its request.
            self.budget.give(whose, held)


class CachedProfiles:
    """Answers a profile from the cache of this process, before routing."""

    def __init__(self, app: ASGIApp, cache: RepresentationCache, metrics: Metrics) -> None:
        self.app = app
        self.cache = cache
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer from the cache, or pass the request on."""
        if scope["type"] == "http" and scope["method"] == "GET" and not scope["query_string"]:
            found = _PROFILE.fullmatch(scope["path"])
            if found is not None:
                conditions = Conditions.of(scope)
                form = found[2] or choose(conditions.accept)
                kept = self.cache.get((found[1], form, None, None)) if form else None
                if kept is not None:
                    scope["lacuna.route"] = PROFILE_ROUTE
                    self.metrics.cache_hits.inc()
                    await send_representation(scope, send, kept, conditions)
                    return
        await self.app(scope, receive, send)
