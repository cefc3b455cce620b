"""Tokenizers by digest, so that the gateway counts a text's tokens without the hub.

A worker publishes the `tokenizer.json` of every model that it loads, compressed; what nobody uses
for a while expires.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from typing import Final, cast

import redis
import redis.asyncio

from service.store import keys
from service.store.connection import translated

KEPT_SECONDS: Final = 30 * 86_400
MAX_BYTES: Final = 64_000_000
"""Longest `tokenizer.json` that is stored or unpacked; the largest in use have about 20 MB."""


def digest(document: str) -> str:
    """SHA-256 of a `tokenizer.json`, first 32 hex characters: how profiles name it."""
    return hashlib.sha256(document.encode()).hexdigest()[:32]


def publish_tokenizer(client: redis.Redis, document: str) -> str | None:
    """Store a `tokenizer.json`, or prolong its stay; returns its digest, None if it is too long.

    Raises:
        redis.RedisError: the store is away or full; the caller decides whether that matters.
    """
    packed = document.encode()
    if len(packed) > MAX_BYTES:
        return None
    name = digest(document)
    if not client.expire(keys.tokenizer(name), KEPT_SECONDS):
        client.set(keys.tokenizer(name), zlib.compress(packed), ex=KEPT_SECONDS)
    return name


class TokenizerStore:
    """Tokenizers as the gateway sees them.

    Args:
        client: a client that returns bytes (`connection.connect_async`).
    """

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client

    async def get(self, name: str) -> str | None:
        """The `tokenizer.json` of a digest, or None; using it prolongs its stay.

        Raises:
            StoreUnavailable: Redis is away.
        """
        with translated():
            found = await self._client.getex(keys.tokenizer(name), ex=KEPT_SECONDS)
        packed = cast("bytes | None", found)
        if packed is None:
            return None
        # In a thread: those of 20 MB would keep everybody else waiting.
        return await asyncio.to_thread(_unpacked, packed, name)


def _unpacked(packed: bytes, name: str) -> str | None:
    document = zlib.decompressobj().decompress(packed, MAX_BYTES).decode()
    return document if digest(document) == name else None
