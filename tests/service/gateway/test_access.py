from __future__ import annotations

import hashlib
import json
import logging
from typing import Any

import httpx
import pytest

from service.gateway.access import PUBLIC, ROLE_MEMBER, RateLimiter, network, role_of
from service.gateway.app import create_app
from service.settings import ROLES, Settings

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
        assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    "headers", [ME, OTHER, {"authorization": f"bearer  {BOB} "}, {"X-API-Key": "", **ME}]
)
async def test_keys_come_plain_or_hashed_and_in_either_header(
    guarded: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    assert (await guarded.get("/v1/profiles", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("headers", "said", "challenge"),
    [
        ({}, "an API key is required", "Bearer"),
        ({"Authorization": "Bearer "}, "must be `Bearer KEY`", "Bearer"),
        ({"Authorization": ALICE}, "must be `Bearer KEY`", "Bearer"),
        ({"X-API-Key": ""}, "an API key is required", "Bearer"),
        ({"X-API-Key": ALICE + "x"}, "the API key is wrong", 'Bearer error="invalid_token"'),
        ({"X-API-Key": DIGEST}, "the API key is wrong", 'Bearer error="invalid_token"'),
    ],
)
async def test_a_refusal_says_whether_the_key_is_missing_or_wrong(
    guarded: httpx.AsyncClient, headers: dict[str, str], said: str, challenge: str
) -> None:
    answer = await guarded.get("/v1/profiles", headers=headers)
    assert said in answer.json()["detail"]
    assert answer.headers["www-authenticate"] == challenge
    assert ALICE not in answer.text


@pytest.fixture
async def roles(gateway: Any) -> httpx.AsyncClient:
    """A gateway with a key of each role: its name, its role and the key are the same word."""
    entries = [f"{role}:{role}:{hashlib.sha256(key_of(role)).hexdigest()}" for role in ROLES]
    client: httpx.AsyncClient = await gateway(api_keys=",".join(entries))
    return client


def key_of(role: str) -> bytes:
    return f"the-key-of-{role}".encode()


def as_role(role: str) -> dict[str, bytes]:
    return {"X-API-Key": key_of(role)}


CHUNKS = [{"id": "a", "tokens": 9, "relevance": 1.0}, {"id": "b", "tokens": 9, "relevance": 0.5}]
MISSING = "/v1/profiles/" + "0" * 32
NEEDED = [
    ("read", "GET", "/v1/profiles", None),
    ("read", "GET", "/metrics", None),
    ("read", "GET", "/v1/models", None),
    ("read", "GET", MISSING, None),
    ("place", "POST", "/v1/placements", {"density": [1, 2], "chunks": CHUNKS}),
    ("place", "POST", "/v1/rollouts", {"layers": 2, "sequence_length": 64}),
    ("place", "POST", "/v1/calibrations", {}),
    ("measure", "POST", "/v1/profiles", REQUEST),
    ("measure", "POST", "/v1/experiments", {}),
    ("measure", "DELETE", "/v1/experiments/" + "0" * 32, None),
    ("read", "GET", "/v1/experiments/" + "0" * 32, None),
    ("measure", "DELETE", "/v1/jobs/" + "0" * 32, None),
    ("admin", "DELETE", MISSING, None),
    ("admin", "PUT", f"{MISSING}/pin", None),
    ("admin", "DELETE", f"{MISSING}/pin", None),
]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("needed", "method", "path", "body"), NEEDED)
async def test_a_role_allows_what_the_roles_before_it_allow_and_no_more(
    roles: httpx.AsyncClient, role: str, needed: str, method: str, path: str, body: Any
) -> None:
    answer = await roles.request(method, path, json=body, headers=as_role(role))
    if list(ROLES).index(role) >= list(ROLES).index(needed):
        assert answer.status_code not in (401, 403)
        return
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert answer.json()["detail"] == f"this needs a key with the role {needed}; {role} has {role}"
    metrics = (await roles.get("/metrics", headers=as_role("read"))).text
    assert 'lacuna_requests_refused_total{reason="forbidden"} 1.0' in metrics


async def test_a_role_too_low_is_refused_before_the_body_is_looked_at(
    roles: httpx.AsyncClient,
) -> None:
    answer = await roles.post("/v1/profiles", content=b"{", headers=as_role("read"))
    assert answer.status_code == 403


async def test_a_metrics_key_deletes_no_profile(
    roles: httpx.AsyncClient, worker: Any, profile: Any
) -> None:
    await roles.post("/v1/profiles", json=REQUEST, headers=as_role("measure"))
    worker.finish(profile)
    address = f"/v1/profiles/{profile.id}"
    assert (await roles.delete(address, headers=as_role("read"))).status_code == 403
    assert (await roles.delete(address, headers=as_role("measure"))).status_code == 403
    assert (await roles.get(address, headers=as_role("read"))).status_code == 200
    assert (await roles.delete(address, headers=as_role("admin"))).status_code == 204


async def test_a_key_of_the_old_form_measures(guarded: httpx.AsyncClient) -> None:
    for headers in (ME, OTHER):
        asked = await guarded.post("/v1/profiles", json=REQUEST, headers=headers)
        assert asked.status_code == 202
        assert (await guarded.delete(MISSING, headers=headers)).status_code == 403


def test_every_route_that_changes_something_declares_its_role() -> None:
    app = create_app(Settings())
    operations = {
        (method.upper(), path): operation
        for path, item in app.openapi()["paths"].items()
        for method, operation in item.items()
        if path not in PUBLIC
    }
    assert {operations[key][ROLE_MEMBER] for key in operations} <= set(ROLES)
    for (method, path), operation in operations.items():
        if method != "GET":
            assert "403" in operation["responses"], (method, path)
    undeclared = type("Route", (), {"openapi_extra": None, "methods": {"POST"}})
    assert role_of(undeclared) == "admin"


async def test_metrics_and_logs_name_the_caller(
    roles: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="lacuna.api")
    await roles.get("/v1/models", headers=as_role("place"))
    await roles.delete(MISSING, headers=as_role("place"))
    assert [getattr(record, "caller", None) for record in caplog.records] == ["place", "place"]
    metrics = (await roles.get("/metrics", headers=as_role("read"))).text
    assert 'lacuna_caller_requests_total{caller="place",status="2xx"} 1.0' in metrics
    assert 'lacuna_caller_requests_total{caller="place",status="4xx"} 1.0' in metrics
    digest = hashlib.sha256(key_of("place")).hexdigest()
    assert digest[:12] not in metrics + caplog.text


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


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("", ""),
        ("not:an:address", "not:an:address"),
    ],
)
def test_a_network_of_ipv6_is_one_caller(address: str, expected: str) -> None:
    assert network(address) == expected
