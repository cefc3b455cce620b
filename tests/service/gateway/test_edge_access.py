from __future__ import annotations

import hashlib
import json
import logging
from typing import Any

import httpx
import pytest

from service.gateway.edge import PUBLIC, RateLimiter

ALICE, BOB = "alice-key-0123456789", "bob-key-0123456789ab"
DIGEST = hashlib.sha256(BOB.encode()).hexdigest()
REQUEST = {"model": "preset:gpt2", "weights": "random", "sequence_length": 64}
ME = {"Authorization": f"Bearer {ALICE}"}
OTHER = {"X-API-Key": BOB}


@pytest.fixture
async def guarded(gateway: Any) -> httpx.AsyncClient:
    client: httpx.AsyncClient = await gateway(api_keys=f"{ALICE},{DIGEST}")
    return client


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong-key-0123456789"},
        {"Authorization": f"Basic {ALICE}"},
        {"Authorization": "Bearer "},
        {"Authorization": ALICE},
        {"X-API-Key": ""},
        {"X-API-Key": DIGEST},
        {"X-API-Key": "ключ-с-нелатинскими".encode()},
        {"Authorization": b"Bearer \xff\xfe\x80"},
    ],
)
async def test_without_a_known_key_nothing_is_answered(
    guarded: httpx.AsyncClient, headers: dict[str, Any]
) -> None:
    for method, path in (("POST", "/v1/profiles"), ("GET", "/metrics"), ("GET", "/nothing")):
        answer = await guarded.request(method, path, headers=headers)
        assert answer.status_code == 401
        assert answer.json()["code"] == "unauthorized"
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "headers", [ME, OTHER, {"authorization": f"bearer  {BOB} "}, {"X-API-Key": "", **ME}]
)
async def test_keys_come_plain_or_hashed_and_in_either_header(
    guarded: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    assert (await guarded.get("/v1/profiles", headers=headers)).status_code == 200


async def test_what_is_public_needs_no_key(guarded: httpx.AsyncClient) -> None:
    for path in [*PUBLIC, "/problems/unauthorized"]:
        assert (await guarded.get(path)).status_code != 401


async def test_a_job_belongs_to_the_keys_that_asked_for_it(
    guarded: httpx.AsyncClient, worker: Any, profile: Any
) -> None:
    address = (await guarded.post("/v1/profiles", json=REQUEST, headers=ME)).headers["location"]
    assert (await guarded.get(address, headers=ME)).status_code == 200
    for path in (address, f"{address}/events"):
        assert (await guarded.get(path, headers=OTHER)).json()["code"] == "job_not_found"
    assert (await guarded.delete(address, headers=OTHER)).status_code == 404
    joined = await guarded.post("/v1/profiles", json=REQUEST, headers=OTHER)
    assert joined.headers["location"] == address
    assert (await guarded.delete(address, headers=ME)).json()["state"] == "queued"
    worker.finish(profile)
    found = await guarded.get(f"/v1/profiles/{profile.id}", headers=OTHER)
    assert found.headers["cache-control"] == "private, max-age=31536000, immutable"


async def test_a_profile_in_memory_needs_a_key_as_well(
    guarded: httpx.AsyncClient, worker: Any, profile: Any
) -> None:
    await guarded.post("/v1/profiles", json=REQUEST, headers=ME)
    worker.finish(profile)
    address = f"/v1/profiles/{profile.id}"
    for _ in range(2):
        assert (await guarded.get(address, headers=ME)).status_code == 200
        assert (await guarded.get(address)).status_code == 401
    metrics = (await guarded.get("/metrics", headers=ME)).text
    assert "lacuna_profile_memory_hits_total 1.0" in metrics


async def test_the_rate_is_limited_per_key(gateway: Any) -> None:
    client = await gateway(api_keys=f"{ALICE},{DIGEST}", rate_limit_per_minute=3)
    for _ in range(3):
        assert (await client.get("/v1/models", headers=ME)).status_code == 200
    limited = await client.get("/v1/models", headers=ME)
    assert limited.status_code == 429
    assert limited.json()["code"] == "rate_limited"
    assert 1 <= int(limited.headers["retry-after"]) <= 20
    assert (await client.get("/v1/models", headers=OTHER)).status_code == 200
    assert (await client.get("/healthz")).status_code == 200


def test_a_bucket_fills_again_and_the_number_of_buckets_is_bounded() -> None:
    limiter = RateLimiter(60)
    assert all(limiter.take("a", now=0.0) == 0 for _ in range(60))
    assert limiter.take("a", now=0.0) == pytest.approx(1.0)
    assert limiter.take("a", now=0.5) == pytest.approx(0.5)
    assert limiter.take("a", now=1.0) == 0
    for number in range(20_000):
        limiter.take(str(number), now=2.0)
    assert len(limiter._buckets) <= 10_000


async def test_security_headers_are_on_every_answer(client: httpx.AsyncClient) -> None:
    for path in ("/healthz", "/nothing", "/v1/models", "/docs"):
        headers = (await client.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers.get_list("content-security-policy", split_commas=False).__len__() == 1


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("abc.DEF_1-2", True),
        ("x" * 64, True),
        ("x" * 65, False),
        ("a b", False),
        ("a\tb", False),
        ("é", False),
        ("", False),
        ('{"a":1}', False),
    ],
)
async def test_request_ids_are_kept_when_harmless(
    client: httpx.AsyncClient, given: str, kept: bool
) -> None:
    answer = await client.get("/healthz", headers={"X-Request-ID": given.encode()})
    assert (answer.headers["x-request-id"] == given) is kept
    assert answer.headers["x-request-id"].isascii()
    assert len(answer.headers["x-request-id"]) >= 8


async def test_nothing_secret_is_logged(gateway: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="lacuna")
    client = await gateway(api_keys=ALICE)
    text = "a very private sentence"
    texts = {"source": "inline", "texts": [text], "count": 1}
    body = {"model": "local:tiny", "documents": texts}
    await client.post("/v1/profiles", json=body, headers=ME)
    await client.post("/v1/profiles", json=body, headers={"X-API-Key": "wrong-but-still-secret"})
    await client.get(f"/v1/profiles?model={ALICE}", headers=ME)
    assert caplog.records
    logged = json.dumps([[r.getMessage(), r.args and str(r.args)] for r in caplog.records])
    for secret in (text, ALICE, "wrong-but-still-secret"):
        assert secret not in logged


async def test_the_callers_texts_are_not_returned(client: httpx.AsyncClient, worker: Any) -> None:
    text = "a very private sentence"
    texts = {"source": "inline", "texts": [text], "count": 1}
    body = {"model": "local:tiny", "documents": texts}
    answer = await client.post("/v1/profiles", json=body)
    assert text not in answer.text
    assert text not in (await client.get(answer.headers["location"])).text
    assert text.encode() in worker.claim().request
