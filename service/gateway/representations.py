"""Representations of a profile: immutable bytes with a strong ETag each, kept in memory.

One format of one profile is built once, compressed once, and then answered without parsing,
validation or Redis. Bytes leave memory when space or time is up: the time bounds how long a
profile that another gateway process deleted is still answered here.

What headers ask for: Accept, Accept-Encoding, If-None-Match (RFC 9110), Prefer (RFC 7240).
"""

from __future__ import annotations

import gzip
import hashlib
import re
import time
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus

from starlette.background import BackgroundTask
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

FORMATS: dict[str, str] = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
}
_KEPT = 64
"""Headers whose meaning is remembered: clients send few different ones, but may be long."""
_TYPES = {media.partition(";")[0]: name for name, media in FORMATS.items()}


@dataclass
class Conditions:
    """The request headers that choose between representations."""

    accept: bytes = b""
    encoding: bytes = b""
    if_none_match: bytes = b""

    @classmethod
    def of(cls, scope: Scope) -> Conditions:
        """Read them from a request; repeated fields are one list (RFC 9110)."""
        found: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in (b"accept", b"accept-encoding", b"if-none-match"):
                found[name] = found[name] + b"," + value if name in found else value
        return cls(
            found.get(b"accept", b""),
            found.get(b"accept-encoding", b""),
            found.get(b"if-none-match", b""),
        )


def choose(accept: bytes) -> str | None:
    """The format that an Accept header asks for: JSON by default, None when none fits."""
    if accept in (b"", b"*/*", b"application/json"):
        return "json"
    return _choose(accept)


@lru_cache(maxsize=_KEPT)
def _choose(accept: bytes) -> str | None:
    """By the weight of each format: that of its most specific range (RFC 9110, 12.5.1)."""
    weights = _weights(accept)
    best, chosen = 0.0, None
    for media, name in _TYPES.items():
        ranges = (media, media.partition("/")[0] + "/*", "*/*")
        weight = next((weights[key] for key in ranges if key in weights), 0.0)
        if weight > best:
            best, chosen = weight, name
    return chosen


@lru_cache(maxsize=_KEPT)
def takes_gzip(accept_encoding: bytes) -> bool:
    """Whether gzip is welcome (RFC 9110, 12.5.3)."""
    weights = _weights(accept_encoding)
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def _weights(field: bytes) -> dict[str, float]:
    """The members of a list, each with its weight; the largest when one is named twice."""
    weights: dict[str, float] = {}
    for part in field.decode("latin-1").lower().split(","):
        name, _, parameters = part.partition(";")
        if name := name.strip():
            weights[name] = max(weights.get(name, 0.0), _quality(parameters))
    return weights


def _quality(parameters: str) -> float:
    for parameter in map(str.strip, parameters.split(";")):
        if parameter.startswith("q="):
            try:
                return min(max(float(parameter[2:]), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0


_TAG = re.compile(rb'("[\x21\x23-\x7e\x80-\xff]*")')
_ONE = rb'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"'
_TAGS = re.compile(rb"[ \t,]*" + _ONE + rb"(?:[ \t]*,[ \t,]*" + _ONE + rb")*[ \t,]*")


def matches(if_none_match: bytes, etag: bytes) -> bool:
    """Weak comparison, as If-None-Match has it (RFC 9110, 13.1.2).

    A malformed list matches nothing.
    """
    if if_none_match.strip() == b"*":
        return True
    return bool(_TAGS.fullmatch(if_none_match)) and etag in _TAG.findall(if_none_match)


# A quoted string that never ends runs to the end, a lone backslash included: where every character
# has one way to match, there is no other way to try, and the time stays linear.
_PREFERENCE = re.compile(r"""(?:[^,"]|"(?:[^"\\]|\\.)*(?:"|\\?\Z))+""", re.DOTALL)
_WAIT = re.compile(r"""\s*wait\s*=\s*(?:(\d{1,18})|"(\d{1,18})")\s*""", re.IGNORECASE | re.ASCII)


def wait_of(prefer: str) -> float:
    """Seconds of the first `wait` among the preferences; 0 without one.

    A parameter of another preference, as in `handling=lenient; wait=2`, is none.
    """
    for preference in _PREFERENCE.findall(prefer):
        found = _WAIT.fullmatch(preference.partition(";")[0])
        if found is not None:
            return float(found[1] or found[2])
    return 0.0


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
