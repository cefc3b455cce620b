"""Gateways and workers of different versions on one store."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import redis

from lacuna.contract import profile_requests
from lacuna.contract.profiles import Profile
from service.store import keys
from workers.health import alive

METHOD = profile_requests.METHOD_VERSION


def newer(client: redis.Redis, key: str, field: str | None = None) -> None:
    """As the next release might write it: with members that this one does not know."""
    stored = client.hget(key, field) if field else client.get(key)
    assert isinstance(stored, bytes)
    document = {**json.loads(stored), "of_the_next_release": {"x": 1}}
    if isinstance(document.get("model"), dict):
        document["model"]["of_the_next_release"] = 1
    if field:
        client.hset(key, field, json.dumps(document))
    else:
        client.set(key, json.dumps(document))


async def test_a_worker_that_says_more_is_a_worker(
    client: httpx.AsyncClient, worker: Any, redis_sync: redis.Redis
) -> None:
    worker.announce()
    newer(redis_sync, keys.worker("w1"))
    assert (await client.get("/readyz")).status_code == 200
    (listed,) = (await client.get("/v1/models")).json()["workers"]
    assert "of_the_next_release" not in listed
    body = {"model": "preset:gpt2", "weights": "random"}
    assert (await client.post("/v1/profiles", json=body)).status_code == 202
    redis_sync.set(keys.worker("w1"), "of another version")
    assert (await client.get("/readyz")).json()["workers"]["ok"] is False
    assert (await client.get("/v1/models")).json()["workers"] == []


async def test_the_probe_looks_at_names_alone(
    worker: Any, redis_sync: redis.Redis, redis_url: str
) -> None:
    worker.store.name = "box-1-a"
    worker.announce()
    redis_sync.set(keys.worker("box-1-a"), "of another version")
    assert await alive(redis_url, "box")


async def test_a_profile_that_says_more_is_read(
    client: httpx.AsyncClient, stored: str, profile: Profile, redis_sync: redis.Redis
) -> None:
    for part in ("body", "envelope", "summary"):
        newer(redis_sync, keys.profile(stored), part)
    for path in ("", ".csv", ".svg", "/series", "/dead-zone"):
        assert (await client.get(f"/v1/profiles/{stored}{path}")).status_code == 200, path
    chunks = [{"id": "a", "tokens": 10, "relevance": 1.0}]
    placed = await client.post("/v1/placements", json={"chunks": chunks, "profile_id": stored})
    assert placed.status_code == 200, placed.text
    (item,) = (await client.get("/v1/profiles")).json()["items"]
    assert item["id"] == stored


async def test_one_summary_that_cannot_be_read_does_not_hide_the_others(
    client: httpx.AsyncClient,
    stored: str,
    redis_sync: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = "f" * 32
    redis_sync.hset(keys.profile(other), "summary", json.dumps({"id": other, "secret": "text"}))
    redis_sync.zadd(keys.PROFILES, {other: 9e15})
    (item,) = (await client.get("/v1/profiles")).json()["items"]
    assert item["id"] == stored
    assert (await client.get("/metrics")).status_code == 200
    told = [vars(r) for r in caplog.records if r.name == "service.store.queue"]
    assert {line["kind"] for line in told} == {"ProfileSummary"}
    assert "text" not in str([line["field"] for line in told])


async def test_an_older_worker_does_not_answer_a_newer_gateway(
    client: httpx.AsyncClient,
    worker: Any,
    profile: Profile,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker.announce()
    monkeypatch.setattr(profile_requests, "METHOD_VERSION", "5")
    ready = await client.get("/readyz")
    assert ready.status_code == 503
    assert "1 of another version than this gateway's method version 5" in ready.json()["detail"]
    asked = await client.post("/v1/profiles", json={"model": "preset:gpt2", "weights": "random"})
    assert asked.status_code == 202
    assert "worker of method version 5" in asked.json()["message"]
    assert worker.idle()
    (listed,) = (await client.get("/v1/models")).json()["workers"]
    assert f"profile/{METHOD}/" in listed["knows"][0]
    monkeypatch.setattr(profile_requests, "METHOD_VERSION", METHOD)
    before = await client.post("/v1/profiles", json={"model": "preset:gpt2", "weights": "random"})
    assert before.json()["id"] != asked.json()["id"]
    worker.finish(profile)
    job = await client.get(asked.headers["location"])
    assert (job.json()["state"], job.json()["profile"]) == ("queued", None)
