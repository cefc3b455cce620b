"""Finished profiles: immutable, content-addressed, newest first."""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
from dataclasses import dataclass
from typing import Any, cast

import redis
import redis.asyncio
from redis.commands.core import AsyncScript

from service.contract.errors import InvalidRequest, ProfileNotFound, StoreUnavailable
from service.contract.profiles import ProfilePage, ProfileSummary
from service.store import keys
from service.store.connection import translated
from service.store.records import readable
from service.store.scripts import ROUTE, ScriptName, source

_PARTS = ("body", "envelope", "summary")
_Rows = list[tuple[str, int]]


@dataclass(frozen=True)
class StoredProfile:
    """A profile as it lies in the store, each part as JSON bytes."""

    body: bytes
    envelope: bytes
    summary: bytes


def _stored(parts: list[bytes | None]) -> StoredProfile | None:
    body, envelope, summary = parts
    if body is None or envelope is None or summary is None:
        return None
    return StoredProfile(body, envelope, summary)


def read_profile(client: redis.Redis, profile_id: str) -> StoredProfile | None:
    """What a worker asks before it measures: is it there already?"""
    return _stored(cast(list[bytes | None], client.hmget(keys.profile(profile_id), list(_PARTS))))


def _cursor(score: int, profile_id: str) -> str:
    return base64.urlsafe_b64encode(f"{score}:{profile_id}".encode()).decode().rstrip("=")


def _position(cursor: str) -> tuple[int, str]:
    text = b""
    with contextlib.suppress(binascii.Error, ValueError):
        padded = cursor + "=" * (-len(cursor) % 4)
        text = base64.b64decode(padded, altchars=b"-_", validate=True)
    found = re.fullmatch(rb"(\d{1,16}):([0-9a-f]{32})", text)
    if found is None:
        raise InvalidRequest("cursor: not one of this list", field="cursor")
    return int(found[1]), found[2].decode()


class ProfileStore:
    """Profiles as the gateway sees them.

    Args:
        client: a client that returns bytes (`connection.connect_async`).
        job_ttl: seconds for which the jobs of a deleted profile are still remembered.

    Every method raises `StoreUnavailable` while Redis is away.
    """

    def __init__(self, client: redis.asyncio.Redis, *, job_ttl: float = 7 * 86_400.0) -> None:
        self._client = client
        self._scripts: dict[ScriptName, AsyncScript] = {}
        self._ttl_ms = max(1, int(job_ttl * 1e3))

    async def _run(self, name: ScriptName, *arguments: str | int) -> Any:
        with translated():
            script = self._scripts.get(name)
            if script is None:
                script = self._scripts[name] = self._client.register_script(source(name))
            return await script(keys=ROUTE, args=list(arguments))

    async def get(self, profile_id: str) -> StoredProfile | None:
        """The profile, or None."""
        with translated():
            parts = await self._client.hmget(keys.profile(profile_id), list(_PARTS))
        return _stored(cast(list[bytes | None], parts))

    async def touch(self, profile_id: str) -> None:
        """Note that a profile was used, so that others are evicted first. Call it sparingly.

        Does nothing while the store is away or full: reading must not fail for the sake of a note.
        """
        with contextlib.suppress(StoreUnavailable), translated():
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
        with translated():
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
        """Forget a profile; asking for it again measures again.

        Raises:
            ProfileNotFound: there is none.
        """
        if not await self._run("profile_delete", profile_id, self._ttl_ms):
            raise ProfileNotFound(f"no profile {profile_id}, or it was evicted")

    async def pin(self, profile_id: str, pinned: bool) -> None:
        """Keep a profile from eviction, or let it go again.

        Raises:
            ProfileNotFound: there is none.
        """
        if not await self._run("profile_pin", profile_id, int(pinned)):
            raise ProfileNotFound(f"no profile {profile_id}, or it was evicted")

    async def evict(self, *, ttl: float = 0.0, max_bytes: int = 0, limit: int = 100) -> int:
        """Drop what was not used for `ttl` seconds, and the least recently used beyond `max_bytes`.

        Zero means no such bound. Pinned profiles stay. Returns how many went, at most `limit`.
        """
        ids = await self._run("profile_evict", int(ttl * 1e6), max_bytes, limit)
        gone = 0
        for profile_id in ids:
            gone += int(await self._run("profile_delete", profile_id.decode(), self._ttl_ms))
        return gone
