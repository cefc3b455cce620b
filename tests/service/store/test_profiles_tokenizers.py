"""Tokenizers by digest: published by workers, read by gateways."""

from __future__ import annotations

import threading

import pytest
import redis
import redis.asyncio

from service.store import keys, profiles
from service.store.profiles import TokenizerStore, digest, publish_tokenizer

DOCUMENT = '{"version": "1.0", "model": "ü"}'


async def test_a_published_tokenizer_is_read_by_its_digest(
    redis_sync: redis.Redis, redis_async: redis.asyncio.Redis
) -> None:
    assert publish_tokenizer(redis_sync, DOCUMENT) == digest(DOCUMENT)
    store = TokenizerStore(redis_async)
    assert await store.get(digest(DOCUMENT)) == DOCUMENT
    assert await store.get("0" * 32) is None


async def test_it_expires_unless_it_is_used(
    redis_sync: redis.Redis, redis_async: redis.asyncio.Redis
) -> None:
    name = publish_tokenizer(redis_sync, DOCUMENT)
    assert name is not None
    key = keys.tokenizer(name)
    redis_sync.expire(key, 100)
    await TokenizerStore(redis_async).get(name)
    assert redis_sync.ttl(key) > 100
    redis_sync.expire(key, 100)
    publish_tokenizer(redis_sync, DOCUMENT)
    assert redis_sync.ttl(key) > 100


async def test_what_does_not_match_its_digest_is_not_served(
    redis_sync: redis.Redis, redis_async: redis.asyncio.Redis
) -> None:
    name = publish_tokenizer(redis_sync, DOCUMENT)
    assert name is not None
    packed = redis_sync.get(keys.tokenizer(name))
    redis_sync.set(keys.tokenizer("1" * 32), packed)
    assert await TokenizerStore(redis_async).get("1" * 32) is None


def test_a_monstrous_tokenizer_is_not_stored(redis_sync: redis.Redis) -> None:
    assert publish_tokenizer(redis_sync, "x" * (profiles.MAX_TOKENIZER_BYTES + 1)) is None
    assert list(redis_sync.scan_iter("*tokenizer*")) == []


async def test_it_is_unpacked_beside_the_event_loop(
    redis_sync: redis.Redis, redis_async: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = publish_tokenizer(redis_sync, DOCUMENT)
    assert name is not None
    where, digest = [], profiles.digest

    def noted(document: str) -> str:
        where.append(threading.current_thread())
        return digest(document)

    monkeypatch.setattr(profiles, "digest", noted)
    assert await TokenizerStore(redis_async).get(name) == DOCUMENT
    assert where
    assert threading.main_thread() not in where
