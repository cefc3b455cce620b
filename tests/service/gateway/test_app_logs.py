"""What a gateway process writes: JSON lines with ids, the reason of a fault, and no secret."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import redis

from service.store import keys

KEY, PASSWORD = "a-key-of-a-caller-0123", "p@ss/word 9"
SECRETS = (KEY, PASSWORD, quote(PASSWORD, safe=""))
ID = "e" * 32


@pytest.fixture
def guarded_url(redis_url: str, redis_sync: redis.Redis) -> Iterator[str]:
    """Address of the store with a user and a password."""
    redis_sync.execute_command(
        "ACL", "SETUSER", "lacuna", "on", f">{PASSWORD}", "~*", "&*", "+@all"
    )
    yield redis_url.replace("unix://", f"unix://lacuna:{quote(PASSWORD, safe='')}@")
    redis_sync.execute_command("ACL", "DELUSER", "lacuna")


@pytest.mark.parametrize(
    "command",
    ["service.terminal gateway", "uvicorn --factory service.gateway.app:factory --port {port}"],
)
def test_a_gateway_writes_json_with_ids_and_no_secret(
    start_process: Any, guarded_url: str, redis_sync: redis.Redis, command: str
) -> None:
    # A stored profile that is damaged, and holds what must not be shown.
    broken = json.dumps({"id": KEY, "model": PASSWORD})
    redis_sync.hset(keys.profile(ID), mapping={"body": broken, "envelope": "{}", "summary": "{}"})
    request = {"model": "preset:gpt2", "weights": "random"}
    settings = {"LACUNA_API_KEYS": KEY, "LACUNA_REDIS_URL": guarded_url}
    with (
        start_process(command, **settings) as process,
        httpx.Client(base_url=process.base, headers={"X-API-Key": KEY}) as client,
    ):
        made = client.post("/v1/profiles", json=request, headers={"X-Request-ID": "made"})
        job = made.json()["id"]
        client.get(f"/v1/jobs/{job}", headers={"X-Request-ID": "read"})
        client.get("/v1/profiles", headers={"X-API-Key": "no" * 9, "X-Request-ID": "stranger"})
        client.get(f"/v1/profiles?model={KEY}", headers={"X-Request-ID": "list"})
        failed = client.get(f"/v1/profiles/{ID}/series", headers={"X-Request-ID": "failed"})
        assert (failed.status_code, failed.json()["request_id"]) == (500, "failed")
        redis_sync.execute_command("ACL", "SETUSER", "lacuna", "off")
        redis_sync.execute_command("CLIENT", "KILL", "USER", "lacuna")
        assert client.get("/v1/profiles", headers={"X-Request-ID": "away"}).status_code == 503
    text = process.log.read_text()
    for secret in SECRETS:
        assert secret not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    access = {line["request_id"]: line for line in lines if "milliseconds" in line}
    assert {name: access[name]["status"] for name in access if len(name) < 10} == {
        "made": 202, "read": 200, "stranger": 401, "list": 200, "failed": 500, "away": 503,
    }  # fmt: skip
    assert access["made"]["job_id"] == access["read"]["job_id"] == job
    assert (access["read"]["method"], access["read"]["route"]) == ("GET", "/v1/jobs/{job_id}")
    assert access["read"]["milliseconds"] > 0
    assert access["made"]["caller"] == access["read"]["caller"]
    assert "caller" not in access["stranger"]
    (fault,) = [line for line in lines if line["level"] == "error"]
    assert (fault["request_id"], fault["message"]) == ("failed", "unhandled error")
    assert "ValidationError" in fault["traceback"]


def test_the_level_is_the_settings(start_process: Any) -> None:
    with start_process(LACUNA_LOG_LEVEL="warning") as process:
        httpx.get(f"{process.base}/healthz")
    assert process.log.read_text() == ""


def test_text_is_for_people(start_process: Any) -> None:
    with start_process(LACUNA_LOG_FORMAT="text") as process:
        httpx.get(f"{process.base}/healthz", headers={"X-Request-ID": "mine"})
    (line,) = [line for line in process.log.read_text().splitlines() if "mine" in line]
    assert " GET /healthz 200 " in line
