"""Stored profiles: immutable, content-addressed, listed newest first. Tokenizers by digest, and
results of experiments by the id of their job.

A worker publishes the `tokenizer.json` of every model that it loads, compressed, so that the
gateway counts the tokens of a text without the hub. An unused tokenizer expires.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import re
import zlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, cast

import redis
import redis.asyncio

from lacuna.contract.errors import InvalidRequest, ProfileNotFound, StoreUnavailable
from lacuna.contract.profiles import ProfilePage, ProfileSummary
from service.store import keys
from service.store.claims import ExperimentOutcome
from service.store.connection import ROUTE, lua_arguments, lua_source, outages_translated
from service.store.queue import readable

TOKENIZER_TTL: Final = 30 * 86_400
"""Seconds after its last use that a tokenizer is stored."""
MAX_TOKENIZER_BYTES: Final = 64_000_000
"""Longest `tokenizer.json` that is stored or unpacked; the largest in use have about 20 MB."""
MAX_ROWS_BYTES: Final = 64_000_000
"""Longest table of an experiment's rows that is unpacked; 13,000 rows have about 1 MB."""
_PARTS: Final = ("body", "envelope", "summary")
_Rows = list[tuple[str, int]]


@dataclass(frozen=True)
class StoredProfile:
    """A profile as it is stored, each part as JSON bytes."""

    body: bytes
    envelope: bytes
    summary: bytes


def _stored(parts: list[bytes | None]) -> StoredProfile | None:
    body, envelope, summary = parts
    if body is None or envelope is None or summary is None:
        return None
    return StoredProfile(body, envelope, summary)


def read_profile(client: redis.Redis, profile_id: str) -> StoredProfile | None:
    """The profile, or None: a worker asks before it measures."""
    return _stored(cast(list[bytes | None], client.hmget(keys.profile(profile_id), list(_PARTS))))


class ProfileStore:
    """Profiles as the gateway sees them.

    Args:
        client: a client that returns bytes (`connection.connect_async`).
        job_ttl: seconds for which the jobs of a deleted profile are still remembered.

    Every method raises `StoreUnavailable` while Redis is away.
    """

    def __init__(self, client: redis.asyncio.Redis, *, job_ttl: float = 7 * 86_400.0) -> None:
        self._client = client
        self._script = client.register_script(lua_source("profiles"))
        self._job_ttl_ms = max(1, int(job_ttl * 1e3))

    async def _run(self, operation: str, **named: Any) -> Any:
        with outages_translated():
            return await self._script(keys=ROUTE, args=lua_arguments(operation, named))

    async def get(self, profile_id: str) -> StoredProfile | None:
        """The profile, or None."""
        with outages_translated():
            parts = await self._client.hmget(keys.profile(profile_id), list(_PARTS))
        return _stored(cast(list[bytes | None], parts))

    async def touch(self, profile_id: str) -> None:
        """Note that a profile was used, so that others are evicted first.

        Does nothing while the store is away or full, so that reading does not fail over this note.
        """
        with contextlib.suppress(StoreUnavailable), outages_translated():
            now, _ = await self._client.time()
            await self._client.zadd(keys.PROFILES_USED, {profile_id: now * 1_000_000}, xx=True)

    async def list(
        self, model: str | None = None, limit: int = 20, cursor: str | None = None
    ) -> ProfilePage:
        """Summaries, newest first.

        Args:
            model: only this model's.
            limit: at most this many.
            cursor: `next` of the page before.

        Raises:
            InvalidRequest: the cursor is not one of ours.
        """
        index = keys.PROFILES if model is None else f"{keys.PROFILES_MODEL}{model}"
        with outages_translated():
            found = await self._after(index, limit + 1, cursor)
            page = found[:limit]
            pipe = self._client.pipeline(transaction=False)
            for profile_id, _ in page:
                pipe.hmget(keys.profile(profile_id), ["summary", "pinned"])
            rows: list[tuple[bytes | None, bytes | None]] = await pipe.execute()
        items = [
            one.model_copy(update={"pinned": pinned == b"1"})
            for summary, pinned in rows
            for one in readable(ProfileSummary, [summary])
        ]
        more = len(found) > limit
        return ProfilePage(items=items, next=_cursor(page[-1][1], page[-1][0]) if more else None)

    async def _after(self, index: str, limit: int, cursor: str | None) -> _Rows:
        """The next ids with their times, in the order (newest, then largest id)."""
        top: int | str = "+inf"
        last = ""
        if cursor is not None:
            top, last = _position(cursor)
        found: _Rows = []
        offset = 0
        while len(found) < limit:
            reply = await self._client.zrevrangebyscore(
                index, top, "-inf", start=offset, num=limit, withscores=True
            )
            rows = cast("list[tuple[bytes, float]]", reply)
            if not rows:
                break
            offset += len(rows)
            for member, score in rows:
                # Only ids of the very same microsecond can lie on both sides of the cursor.
                if int(score) != top or member.decode() < last:
                    found.append((member.decode(), int(score)))
        return found[:limit]

    async def delete(self, profile_id: str) -> None:
        """Delete a profile; asking for it again measures again.

        Raises:
            ProfileNotFound: there is none.
        """
        if not await self._run("delete", id=profile_id, job_ttl=self._job_ttl_ms):
            raise profile_not_found(profile_id)

    async def pin(self, profile_id: str, pinned: bool) -> None:
        """Keep a profile from eviction, or let it go again.

        Raises:
            ProfileNotFound: there is none.
        """
        if not await self._run("pin", id=profile_id, pinned=pinned):
            raise profile_not_found(profile_id)

    async def evict(self, *, ttl: float = 0.0, max_bytes: int = 0, limit: int = 100) -> int:
        """Delete what was not used for `ttl` seconds, and the least recently used over `max_bytes`.

        Zero means no such bound. Pinned profiles stay. Returns how many went, at most `limit`.
        """
        ids = await self._run("evictable", ttl=int(ttl * 1e6), max_bytes=max_bytes, limit=limit)
        gone = 0
        for profile_id in map(bytes.decode, ids):
            gone += int(await self._run("delete", id=profile_id, job_ttl=self._job_ttl_ms))
        return gone


def profile_not_found(profile_id: str) -> ProfileNotFound:
    """The error for an id that is not stored."""
    return ProfileNotFound(f"no profile {profile_id}; it may have been deleted or evicted")


def _cursor(score: int, profile_id: str) -> str:
    return base64.urlsafe_b64encode(f"{score}:{profile_id}".encode()).decode().rstrip("=")


def _position(cursor: str) -> tuple[int, str]:
    text = b""
    with contextlib.suppress(binascii.Error, ValueError):
        padded = cursor + "=" * (-len(cursor) % 4)
        text = base64.b64decode(padded, altchars=b"-_", validate=True)
    found = re.fullmatch(rb"(\d{1,16}):([0-9a-f]{32})", text)
    if found is None:
        raise InvalidRequest("`cursor` is not one that this list returned", field="cursor")
    return int(found[1]), found[2].decode()


def digest(document: str) -> str:
    """SHA-256 of a `tokenizer.json`, first 32 hex characters: how profiles name it."""
    return hashlib.sha256(document.encode()).hexdigest()[:32]


def publish_tokenizer(client: redis.Redis, document: str) -> str | None:
    """Store a `tokenizer.json`, or renew its TTL; returns its digest, None if it is too long.

    Raises:
        redis.RedisError: the store is away or full; the caller decides whether that matters.
    """
    packed = document.encode()
    if len(packed) > MAX_TOKENIZER_BYTES:
        return None
    name = digest(document)
    if not client.expire(keys.tokenizer(name), TOKENIZER_TTL):
        client.set(keys.tokenizer(name), zlib.compress(packed), ex=TOKENIZER_TTL)
    return name


class TokenizerStore:
    """Tokenizers as the gateway sees them.

    Args:
        client: a client that returns bytes (`connection.connect_async`).
        run: awaits a call of its first argument with the others, in another thread.
    """

    def __init__(
        self, client: redis.asyncio.Redis, run: Callable[..., Awaitable[Any]] = asyncio.to_thread
    ) -> None:
        self._client = client
        self._run = run

    async def get(self, name: str) -> str | None:
        """The `tokenizer.json` of a digest, or None; renews its TTL.

        Raises:
            StoreUnavailable: Redis is away.
        """
        with outages_translated():
            found = await self._client.getex(keys.tokenizer(name), ex=TOKENIZER_TTL)
        packed = cast("bytes | None", found)
        if packed is None:
            return None
        # In a thread: unpacking 20 MB would hold up every other request.
        document: str | None = await self._run(_unpacked, packed, name)
        return document


def _unpacked(packed: bytes, name: str) -> str | None:
    document = zlib.decompressobj().decompress(packed, MAX_TOKENIZER_BYTES).decode()
    return document if digest(document) == name else None


async def read_experiment(client: redis.asyncio.Redis, job_id: str) -> ExperimentOutcome | None:
    """The result of a job, or None.

    Raises:
        StoreUnavailable: Redis is away.
    """
    with outages_translated():
        reply = await client.hmget(keys.experiment(job_id), ["result", "rows"])
    result, rows = cast("list[bytes | None]", reply)
    return None if result is None or rows is None else ExperimentOutcome(result, rows)


def packed(lines: Iterable[str]) -> bytes:
    """Lines of a table as they are stored."""
    return zlib.compress("".join(lines).encode())


def unpacked(rows: bytes) -> bytes:
    """The table as UTF-8, cut at `MAX_ROWS_BYTES`.

    Raises:
        zlib.error: we did not write these rows.
    """
    return zlib.decompressobj().decompress(rows, MAX_ROWS_BYTES)
