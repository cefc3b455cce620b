from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import httpx
import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from lacuna.contract.errors import StoreUnavailable
from lacuna.contract.models import WorkerModels
from service.gateway import app as app_module
from service.store import keys
from service.store.claims import ClaimStore
from service.store.kinds import needs


async def test_ready_reports_redis_and_workers(client: httpx.AsyncClient, worker: Any) -> None:
    waiting = await client.get("/readyz")
    assert waiting.status_code == 503
    problem = waiting.json()
    assert problem["code"] == "not_ready"
    assert problem["redis"]["ok"] is True
    assert problem["workers"]["ok"] is False
    worker.announce()
    ready = await client.get("/readyz")
    assert ready.status_code == 200
    assert ready.json()["workers"] == {"ok": True, "detail": "1 live"}
    worker.store.farewell()
    assert (await client.get("/readyz")).status_code == 503


async def test_models_lists_workers(client: httpx.AsyncClient, worker: Any) -> None:
    worker.announce()
    catalogue = (await client.get("/v1/models")).json()
    assert "demo:smollm2-135m-instruct" in catalogue["demo"]
    assert [w["worker"] for w in catalogue["workers"]] == ["w1"]


async def test_jobs_go_to_the_gpu_while_there_is_one(
    client: httpx.AsyncClient, worker: Any, redis_sync: Any
) -> None:
    worker.announce(queue="gpu")
    # The announcement names the queue it serves.
    redis_sync.zadd(keys.workers("gpu"), {"w1": 9e15})
    await client.post("/v1/profiles", json={"model": "gpt2"})
    assert redis_sync.zcard(keys.ready("gpu", needs("profile"))) == 1
    assert redis_sync.zcard("{lacuna}:ready:cpu") == 0


async def test_a_large_request_waits_for_the_gpu_worker_that_starts_anew(
    gateway: Any, redis_sync: redis.Redis
) -> None:
    client = await gateway(max_cost=1.0)
    body = {"model": "preset:gpt2", "weights": "random"}
    assert (await client.post("/v1/profiles", json=body)).json()["code"] == "too_large"
    gpu = ClaimStore(redis_sync, name="g", queues=["gpu", "cpu"])
    facts = WorkerModels(worker="g", device="cuda", queue="gpu", warm=[], local=[])
    gpu.announce(facts, 30)
    gpu.farewell()
    await client.get("/readyz")  # asks anew who works
    assert (await client.post("/v1/profiles", json=body)).status_code == 202
    assert redis_sync.zcard(keys.ready("gpu", needs("profile"))) == 1


async def test_metrics_have_bounded_labels(client: httpx.AsyncClient, stored: str) -> None:
    for path in (f"/v1/profiles/{stored}", f"/v1/profiles/{'b' * 32}", "/x/../../etc", "/a%00b"):
        await client.get(path)
    await client.request("BREW", "/healthz")
    await client.request("X" * 50, "/healthz")
    text = (await client.get("/metrics")).text
    routes = set(re.findall(r'route="([^"]*)"', text))
    assert routes <= {
        "/v1/profiles", "/v1/profiles/{profile_id}", "unmatched", "/healthz", "/metrics",
    }  # fmt: skip
    methods = set(re.findall(r'method="([^"]*)"', text))
    assert methods <= {"GET", "POST", "other"}
    assert 'lacuna_submissions_total{outcome="created"} 1.0' in text


async def test_metrics_show_the_queue(client: httpx.AsyncClient, worker: Any, profile: Any) -> None:
    for seed in range(3):
        await client.post("/v1/profiles", json={"model": "gpt2", "seed": seed})
    worker.claim()
    worker.finish(profile)
    families = {
        f.name: f for f in text_string_to_metric_families((await client.get("/metrics")).text)
    }

    def value(name: str, **labels: str) -> float:
        family = families[name.removesuffix("_total").removesuffix("_count")]
        (sample,) = (s for s in family.samples if s.name == name and s.labels == labels)
        return float(sample.value)

    assert value("lacuna_store_up") == 1
    assert value("lacuna_queue_depth", queue="cpu") == 1
    assert value("lacuna_queue_running", queue="cpu") == 1
    assert value("lacuna_jobs_submitted_total") == 3
    assert value("lacuna_jobs_ended_done_total") == 1
    assert value("lacuna_profiles") == 1
    assert value("lacuna_job_run_seconds_count") == 1


async def test_metrics_without_the_store(gateway: Any, tmp_path: Any) -> None:
    client = await gateway(redis_url=f"unix://{tmp_path}/nothing.sock")
    text = (await client.get("/metrics")).text
    assert "lacuna_store_up 0.0" in text
    assert "lacuna_queue_depth" not in text


async def test_a_store_that_evicts_keys_is_refused(
    gateway: Any, redis_sync: Any, caplog: Any
) -> None:
    redis_sync.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(StoreUnavailable, match="allkeys-lru"):
            await gateway()
        client = await gateway(eviction_policy_check="warn")
        assert (await client.get("/healthz")).status_code == 200
        assert "allkeys-lru" in caplog.text
    finally:
        redis_sync.config_set("maxmemory-policy", "noeviction")


async def until_redis(client: httpx.AsyncClient, *, ok: bool) -> str:
    """Waits until /readyz says so of the store, and returns its words."""
    async with asyncio.timeout(20):
        while True:
            answer = await client.get("/readyz")
            found = answer.json()["redis"]
            if found["ok"] == ok:
                assert answer.status_code == (200 if ok else 503)
                return str(found["detail"])
            await asyncio.sleep(0.05)


async def test_a_store_that_takes_no_writes_is_not_ready(
    gateway: Any, worker: Any, redis_sync: redis.Redis
) -> None:
    worker.announce(seconds=50)
    client = await gateway(lease_seconds=0.2)  # looks every 50 ms
    assert await until_redis(client, ok=True) == "answers"
    redis_sync.config_set("maxmemory", 1)
    assert "out of memory and refuses writes" in await until_redis(client, ok=False)
    redis_sync.config_set("maxmemory", 0)
    await until_redis(client, ok=True)
    redis_sync.execute_command("ACL", "SETUSER", "default", "resetchannels")
    try:
        assert "may not use the channel" in await until_redis(client, ok=False)
        answer = await client.post("/v1/profiles", json={"model": "gpt2"})
        assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    finally:
        redis_sync.execute_command("ACL", "SETUSER", "default", "&*")
    await until_redis(client, ok=True)


async def test_a_store_that_forbids_what_jobs_need_is_refused_at_the_start(
    gateway: Any, redis_sync: redis.Redis, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    for missing, rules in {
        "may not use the channel": ["~{lacuna}:*", "+@all"],
        "may not use the command info": ["~{lacuna}:*", "&*", "+@all", "-info"],
    }.items():
        redis_sync.execute_command("ACL", "SETUSER", "lac", "reset", "on", ">pw", *rules)
        with pytest.raises(StoreUnavailable, match=missing):
            await gateway(redis_url=redis_url.replace("unix://", "unix://lac:pw@"))
        assert missing in caplog.text
    redis_sync.execute_command("ACL", "DELUSER", "lac")


async def test_docs_need_no_other_host(client: httpx.AsyncClient) -> None:
    page = await client.get("/docs")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "http" not in policy
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", page.text)
    links = re.findall(r"(?:src|href)=\"([^\"]+)\"", page.text)
    assert "docs/swagger-ui-bundle.js" in links
    for link in links:
        asset = await client.get(f"/{link}")
        assert asset.status_code == 200
        assert len(asset.content) > 50


async def test_head_is_get_without_a_body(client: httpx.AsyncClient, stored: str) -> None:
    for path in ("/healthz", "/v1/models", f"/v1/profiles/{stored}.svg", "/openapi.json", "/no"):
        head, full = await client.head(path), await client.get(path)
        assert head.status_code == full.status_code
        assert head.content == b""
        assert head.headers["content-length"] == str(len(full.content)) or "gzip" in str(
            full.headers.get("content-encoding")
        )


async def test_what_no_worker_could_measure_is_refused_before_it_waits(
    client: httpx.AsyncClient, worker: Any
) -> None:
    body = {"model": "demo:smollm2-135m-instruct", "sequence_length": 9_000}
    refusal = (await client.post("/v1/profiles", json=body)).json()
    assert refusal["code"] == "too_long", "what would fit the limit of cost would be too long still"
    assert [error["field"] for error in refusal["errors"]] == ["sequence_length"]
    assert worker.idle()


async def test_the_document_is_made_beside_the_event_loop(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a quarter of a second, and nobody needs a key to ask for it."""
    threads: list[str] = []
    whole = app_module.Gateway.openapi

    def noted(app: app_module.Gateway) -> dict[str, Any]:
        threads.append(threading.current_thread().name)
        return whole(app)

    monkeypatch.setattr(app_module.Gateway, "openapi", noted)
    answers = await asyncio.gather(*(client.get("/openapi.json") for _ in range(4)))
    assert {answer.status_code for answer in answers} == {200}
    assert answers[0].json()["paths"]
    assert len(threads) == 1
    assert threads[0] != threading.main_thread().name
