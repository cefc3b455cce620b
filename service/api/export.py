"""Representations of a profile: immutable bytes with a strong ETag each, kept in memory.

One format of one profile is built once, compressed once, and then answered without parsing,
validation or Redis. Bytes leave memory when space or time is up: the time bounds how long a
profile that another gateway process deleted is still answered here.
"""

from __future__ import annotations

import gzip
import hashlib
import time
from collections import OrderedDict
from dataclasses import dataclass
from http import HTTPStatus

from starlette.background import BackgroundTask
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from service.api.negotiation import FORMATS, Conditions, matches, takes_gzip

_MEMORY_BYTES = 128 * 2**20
_MEMORY_SECONDS = 60.0
_COMPRESS_FROM = 512
# An SVG opened as a page of its own needs its own style element.
_SVG_POLICY = (
    b"content-security-policy",
    b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
)
MEDIA = {**FORMATS, "series": FORMATS["json"], "view": FORMATS["json"]}
"""Media types of the formats of a profile, of its rows, and of what is computed from profiles."""
Header = tuple[bytes, bytes]
Key = tuple[str, str, int | None]
"""Profile, format, bins."""


@dataclass(frozen=True)
class _Variant:
    """One encoding of one representation, ready to send."""

    etag: bytes
    body: bytes
    headers: list[Header]
    not_modified: list[Header]


@dataclass(frozen=True)
class Representation:
    """One format of one profile, plain and, where that is smaller, compressed."""

    plain: _Variant
    packed: _Variant | None

    @property
    def size(self) -> int:
        """Bytes held."""
        return len(self.plain.body) + (len(self.packed.body) if self.packed else 0)


@dataclass(frozen=True)
class Caching:
    """What intermediaries may do with profiles."""

    private: bool

    def control(self, form: str) -> bytes:
        """The Cache-Control header.

        A profile never changes under its id; what is computed from it may with the next release.
        """
        who = b"private" if self.private else b"public"
        return who + (b", max-age=3600" if form == "view" else b", max-age=31536000, immutable")


def represent(body: bytes, form: str, caching: Caching) -> Representation:
    """Wrap and compress one representation; takes milliseconds for 100 kB, so not on the loop.

    Args:
        body: the bytes.
        form: a key of MEDIA.
        caching: who may keep it.
    """
    tag = hashlib.sha256(body).hexdigest()[:32]
    vary = b"Accept, Accept-Encoding" if form in FORMATS else b"Accept-Encoding"
    shared: list[Header] = [(b"cache-control", caching.control(form)), (b"vary", vary)]
    shared += [_SVG_POLICY] if form == "svg" else []
    kind: list[Header] = [(b"content-type", MEDIA[form].encode())]
    plain = _variant(body, f'"{tag}"', shared, kind)
    packed = None
    if form != "png" and len(body) >= _COMPRESS_FROM:
        small = gzip.compress(body, compresslevel=6, mtime=0)
        if len(small) < 0.9 * len(body):
            encoding = (b"content-encoding", b"gzip")
            packed = _variant(small, f'"{tag}-gzip"', shared, [*kind, encoding])
    return Representation(plain, packed)


def _variant(body: bytes, etag: str, shared: list[Header], own: list[Header]) -> _Variant:
    tag = (b"etag", etag.encode())
    length = (b"content-length", str(len(body)).encode())
    return _Variant(etag.encode(), body, [*own, length, tag, *shared], [tag, *shared])


class Memory:
    """Representations by profile, format and bins; least recently used ones leave first."""

    def __init__(self, limit: int = _MEMORY_BYTES, seconds: float = _MEMORY_SECONDS) -> None:
        self._limit = limit
        self._seconds = seconds
        self._held: OrderedDict[Key, tuple[float, Representation]] = OrderedDict()
        self._size = 0

    def get(self, key: Key) -> Representation | None:
        """What is held, unless it is too old."""
        entry = self._held.get(key)
        if entry is None:
            return None
        if entry[0] < time.monotonic():
            self._drop(key)
            return None
        self._held.move_to_end(key)
        return entry[1]

    def put(self, key: Key, kept: Representation) -> None:
        """Hold a representation, making room for it."""
        self._drop(key)
        if kept.size > self._limit:
            return
        self._held[key] = (time.monotonic() + self._seconds, kept)
        self._size += kept.size
        while self._size > self._limit:
            self._drop(next(iter(self._held)))

    def forget(self, profile: str) -> None:
        """Drop everything about one profile."""
        for key in [key for key in self._held if key[0] == profile]:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        entry = self._held.pop(key, None)
        if entry is not None:
            self._size -= entry[1].size


async def send_representation(
    scope: Scope, send: Send, kept: Representation, conditions: Conditions, status: int = 200
) -> None:
    """Answer with a representation: 304, HEAD and the encoding that the client prefers."""
    variant = kept.plain
    if kept.packed is not None and conditions.encoding and takes_gzip(conditions.encoding):
        variant = kept.packed
    if conditions.if_none_match and matches(conditions.if_none_match, variant.etag):
        await send(
            {"type": "http.response.start", "status": 304, "headers": list(variant.not_modified)}
        )
        await send({"type": "http.response.body", "body": b""})
        return
    await send({"type": "http.response.start", "status": status, "headers": list(variant.headers)})
    body = b"" if scope["method"] == "HEAD" else variant.body
    await send({"type": "http.response.body", "body": body})


class RepresentationResponse(Response):
    """`send_representation` as what a route returns."""

    def __init__(
        self, kept: Representation, extra: list[Header] | None = None, *, conditional: bool = True
    ) -> None:
        self.kept = kept
        self.extra = extra or []
        self.conditional = conditional
        self.status_code = HTTPStatus.OK
        self.background: BackgroundTask | None = None
        self.raw_headers = [*kept.plain.headers, *self.extra]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; a POST's answer is never 304."""
        conditions = Conditions.of(scope)
        if not self.conditional:
            conditions.if_none_match = b""

        async def with_extra(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"].extend(self.extra)
            await send(message)

        await send_representation(scope, with_extra if self.extra else send, self.kept, conditions)
