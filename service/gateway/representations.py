"""Profiles as bytes: which format a request asks for, how it is made, and how long it is kept.

A profile never changes under its id. So each format of a profile is built once, compressed once and
then answered without parsing, validation or Redis (`RepresentationCache`). Entries leave when space
or time is up. The time bounds how long this process still answers a profile that another gateway
deleted.

Headers: Accept, Accept-Encoding and If-None-Match as in RFC 9110.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any, Literal

from pydantic import BaseModel
from starlette.background import BackgroundTask
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from lacuna import views
from lacuna.contract.errors import InvalidRequest
from lacuna.contract.validation import is_number
from lacuna.pictures import profile_png, profile_svg, recall_png, recall_svg

FORMATS: dict[str, str] = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
}
MEDIA = {**FORMATS, "series": FORMATS["json"], "view": FORMATS["json"]}
"""Media types of the formats of a profile, of its rows, and of what is computed from profiles."""
ETAG = {"ETag": {"schema": {"type": "string"}}}
REVALIDATED: dict[int | str, dict[str, Any]] = {
    200: {"headers": ETAG},
    304: {"description": "`If-None-Match` names what you have."},
}
"""OpenAPI `responses` of a route whose answer may be kept and revalidated."""
_CACHE_BYTES = 128 * 2**20
_CACHE_SECONDS = 60.0
_COMPRESS_FROM = 512
_DRAWN_POSITIONS = 1_024
"""A picture has no more points than that; more than its pixels would only enlarge the file."""
_PARSED_HEADERS = 64
"""How many header values are remembered with their meaning: clients send few different ones."""
_TAG = re.compile(rb'("[\x21\x23-\x7e\x80-\xff]*")')
_ONE = rb'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"'
_TAGS = re.compile(rb"[ \t,]*" + _ONE + rb"(?:[ \t]*,[ \t,]*" + _ONE + rb")*[ \t,]*")
# An SVG that is opened as a page of its own needs its own style element.
_SVG_POLICY = (
    b"content-security-policy",
    b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
)
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


@lru_cache(maxsize=_PARSED_HEADERS)
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


@lru_cache(maxsize=_PARSED_HEADERS)
def takes_gzip(accept_encoding: bytes) -> bool:
    """Whether the client accepts gzip (RFC 9110, 12.5.3)."""
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
            value = parameter[2:]
            return min(max(float(value), 0.0), 1.0) if is_number(value) else 0.0
    return 1.0


def matches(if_none_match: bytes, etag: bytes) -> bool:
    """Weak comparison, as If-None-Match has it (RFC 9110, 13.1.2).

    A malformed list matches nothing.
    """
    if if_none_match.strip() == b"*":
        return True
    return bool(_TAGS.fullmatch(if_none_match)) and etag in _TAG.findall(if_none_match)


Header = tuple[bytes, bytes]
Curve = Literal["influence", "recall"]
"""What a CSV or a picture shows of a profile."""
Key = tuple[str, str, int | None, Curve | None]
"""Profile, format, bins, curve; None: influence where it was measured, else recall."""


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


def represent(body: bytes, form: str, *, private: bool) -> Representation:
    """Wrap and compress one representation; 100 kB take milliseconds, so call it in a thread.

    Args:
        body: the bytes.
        form: a key of MEDIA.
        private: only the client may keep it, and no shared cache.
    """
    tag = hashlib.sha256(body).hexdigest()[:32]
    vary = b"Accept, Accept-Encoding" if form in FORMATS else b"Accept-Encoding"
    # What is computed from a profile may change with the next release; the profile never does.
    age = b"max-age=3600" if form == "view" else b"max-age=31536000, immutable"
    control = (b"private, " if private else b"public, ") + age
    shared: list[Header] = [(b"cache-control", control), (b"vary", vary)]
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


class RepresentationCache:
    """Representations in memory by profile, format and bins; the least recently used go first.

    Args:
        limit: bytes.
        seconds: after which an entry goes.
    """

    def __init__(self, limit: int = _CACHE_BYTES, seconds: float = _CACHE_SECONDS) -> None:
        self._limit = limit
        self._seconds = seconds
        self._entries: OrderedDict[Key, tuple[float, Representation]] = OrderedDict()
        self._size = 0

    def get(self, key: Key) -> Representation | None:
        """The entry, unless there is none or it is too old."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry[0] < time.monotonic():
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return entry[1]

    def put(self, key: Key, made: Representation) -> None:
        """Add an entry, making room for it."""
        self._drop(key)
        if made.size > self._limit:
            return
        self._entries[key] = (time.monotonic() + self._seconds, made)
        self._size += made.size
        while self._size > self._limit:
            self._drop(next(iter(self._entries)))

    def forget(self, profile: str) -> None:
        """Drop every entry of one profile."""
        for key in [key for key in self._entries if key[0] == profile]:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._size -= entry[1].size


class Representations:
    """Makes representations, each once however many callers want it, and keeps them.

    Args:
        load: reads the JSON document of a profile; raises ProfileNotFound.
        run: calls a function in a thread.
        cache: where they are kept.
        private: only clients may keep them; so while reading needs an API key.
    """

    def __init__(
        self,
        load: Callable[[str], Awaitable[bytes]],
        run: Callable[..., Awaitable[Representation]],
        cache: RepresentationCache,
        *,
        private: bool,
    ) -> None:
        self._load, self._run, self._cache, self._private = load, run, cache, private
        self._in_progress: dict[Key, asyncio.Future[Representation]] = {}

    async def get(
        self,
        profile_id: str,
        form: str = "json",
        bins: int | None = None,
        curve: Curve | None = None,
    ) -> Representation:
        """One format of a profile, or its rows ("series"), from the cache or made now.

        Raises:
            ProfileNotFound: there is none.
            InvalidRequest: recall of a profile that has none, or in a format that has no such view.
        """
        key: Key = (profile_id, form, bins, curve)
        kept = self._cache.get(key)
        if kept is not None:
            return kept
        # A thousand waits end at the same moment and want the same bytes: make them once.
        making = self._in_progress.get(key)
        if making is None:
            making = self._in_progress[key] = asyncio.ensure_future(self._make(key))
            making.add_done_callback(partial(self._made, key))
        # A caller who leaves must not take the bytes from the others.
        return await asyncio.shield(making)

    async def _make(self, key: Key) -> Representation:
        profile_id, form, bins, curve = key
        document = await self._load(profile_id)
        if curve == "recall":
            return await self._run(_render_recall, document, form, bins, self._private)
        return await self._run(_render, document, form, bins, self._private, curve is None)

    def _made(self, key: Key, done: asyncio.Future[Representation]) -> None:
        """Keep what was made, unless the profile was deleted meanwhile."""
        succeeded = not done.cancelled() and done.exception() is None
        if self._in_progress.get(key) is done:
            del self._in_progress[key]
            if succeeded:
                self._cache.put(key, done.result())

    async def computed(self, compute: Callable[[], BaseModel]) -> Representation:
        """What `compute` returns, as JSON; computed in a thread, and not kept."""

        def made() -> Representation:
            body = compute().model_dump_json().encode()
            return represent(body, "view", private=self._private)

        return await self._run(made)

    def forget(self, profile_id: str) -> None:
        """Drop every representation of a profile, made or in progress."""
        self._cache.forget(profile_id)
        for key in [key for key in self._in_progress if key[0] == profile_id]:
            del self._in_progress[key]


def _render(
    document: bytes, form: str, bins: int | None, private: bool, either: bool
) -> Representation:
    """Influence; with `either`, recall where no influence was measured."""
    if form == "json" and bins is None:
        return represent(document, form, private=private)
    profile = views.parse(document)
    if either and profile.measured is None and form in ("csv", "svg", "png"):
        return _render_recall(document, form, None, private)
    if form == "series":
        body = json.dumps(views.rows(profile, bins), separators=(",", ":")).encode()
    elif form == "csv":
        body = views.csv(profile, bins)
    elif form == "json":
        body = views.binned(profile, bins or 1).model_dump_json().encode()
    else:
        if bins is None and len(profile.influence.influence) > _DRAWN_POSITIONS:
            bins = _DRAWN_POSITIONS
        shown = profile if bins is None else views.binned(profile, bins)
        body = profile_svg(shown) if form == "svg" else profile_png(shown)
    return represent(body, form, private=private)


def _render_recall(document: bytes, form: str, bins: int | None, private: bool) -> Representation:
    if bins is not None:
        raise InvalidRequest("`bins`: a recall curve has its depths; leave it out", field="bins")
    if form == "json":
        raise InvalidRequest(
            "`curve`: JSON holds all curves; ask for CSV, SVG or PNG, or leave `curve` out",
            field="curve",
        )
    profile = views.parse(document)
    if form == "csv":
        body = views.recall_csv(profile)
    else:
        body = recall_svg(profile) if form == "svg" else recall_png(profile)
    return represent(body, form, private=private)


async def send_representation(
    scope: Scope, send: Send, kept: Representation, conditions: Conditions, status: int = 200
) -> None:
    """Answer with a representation: 304, HEAD, and the encoding that the client accepts."""
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
