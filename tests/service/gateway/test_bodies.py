from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from lacuna.contract.errors import InvalidRequest
from lacuna.contract.placements import PlacementRequest
from lacuna.contract.rollouts import RolloutRequest
from lacuna.contract.validation import SMALL_BYTES
from service.gateway.bodies import REQUEST_MODELS, BodyInvalid, parse
from service.gateway.problems import field_errors

LIMIT = 8_000_000
JSON = {"Content-Type": "application/json"}
MEASURED = '{"layers":2,"kernel":{"type":"measured","matrices":%s}}'
BY_TOKEN = '{"layers":2,"mixing":{"type":"by_token","lambdas":[%s]}}'


def many(item: str, template: str = "%s", count: int | None = None) -> bytes:
    """As many items as the largest body holds."""
    count = count or (LIMIT - 100) // (len(item) + 1)
    return (template % ",".join([item] * count)).encode()


def keyed(count: int) -> bytes:
    """An object of so many unknown keys."""
    return many("%s", "{%s}", 1) % b",".join(b'"key%d":1' % n for n in range(count))


HOSTILE: dict[str, Callable[[], bytes]] = {
    "strings in a matrix": lambda: many('"a"', MEASURED % "[[%s]]"),
    "a row too long": lambda: many("0", MEASURED % "[[%s]]", 1_000_000),
    "rows of numbers out of range": lambda: many(f"[{'7,' * 999}7]", MEASURED % "[[%s]]", 1_000),
    "rows of nothing": lambda: many("[]", MEASURED % "[[%s]]"),
    "matrices of nothing": lambda: many("[]", MEASURED % "[%s]"),
    "lambdas of nothing": lambda: many("[]", BY_TOKEN),
    "lambdas out of range": lambda: many("7", BY_TOKEN, 1_000_000),
    "bias of nothing": lambda: many("[]", '{"kernel":{"type":"distance","bias":[%s]}}'),
    "slopes too steep": lambda: many("7e9", '{"kernel":{"slopes":[%s]}}', 1_000_000),
    "chunks of nothing": lambda: many("{}", '{"density":[1],"chunks":[%s]}'),
    "chunks of numbers": lambda: many("1", '{"density":[1],"chunks":[%s]}', 1_000_000),
    "unknown keys": lambda: keyed(500_000),
    "as many unknown keys as pass": lambda: keyed(34_000),
    "one key again and again": lambda: many('"layers":1', "{%s}"),
    "open brackets": lambda: b"[" * LIMIT,
    "quotation marks": lambda: b'"' * LIMIT,
    "an escape without end": lambda: b'"' + b"\\" * (LIMIT - 1),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("model", [RolloutRequest, PlacementRequest])
def test_no_body_takes_long_to_refuse(model: type[BaseModel], name: str) -> None:
    body = HOSTILE[name]()
    started = time.process_time()
    with pytest.raises((InvalidRequest, BodyInvalid)):
        parse(model, body)
    assert time.process_time() - started < 1.0


def _lists(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema of a list below this one."""
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            yield schema
        for inner in schema.values():
            yield from _lists(inner)
    elif isinstance(schema, (list, tuple)):
        for inner in schema:
            yield from _lists(inner)


def test_every_list_of_a_request_is_bounded_and_reports_one_fault() -> None:
    found = 0
    for model in REQUEST_MODELS:
        for schema in _lists(model.__pydantic_core_schema__):
            found += 1
            assert schema.get("max_length"), (model, schema)
            assert schema.get("fail_fast"), (model, schema)
    assert found > 10


async def test_a_long_body_leaves_the_loop_to_others(client: httpx.AsyncClient) -> None:
    body = HOSTILE["rows of numbers out of range"]()
    asked = asyncio.create_task(client.post("/v1/rollouts", content=body, headers=JSON))
    longest, last = 0.0, time.perf_counter()
    while not asked.done():
        await asyncio.sleep(0)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    answer = asked.result()
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "kernel.matrices.0.0.0"
    assert longest < 1.0


@pytest.mark.parametrize(
    ("body", "field", "told"),
    [
        ({"layers": 2, "predictions": [1]}, "predictions.0", "attention_only"),
        ({"layers": 2, "predictions": ["residul"]}, "predictions.0", "residual"),
        ({"layers": 2, "content": {"diagonal": [[0.5, "x"]]}}, "content.diagonal.0.1", "number"),
        ({"mixing": {"type": "list", "lambdas": [0.1, 0.2, 7]}}, "mixing.lambdas.2", "less than"),
        ({"mixing": {"type": "lst"}}, "mixing", "list"),
    ],
)
def test_a_long_body_is_refused_in_the_words_of_a_short_one(
    body: dict[str, Any], field: str, told: str
) -> None:
    padded = json.dumps(body) + " " * SMALL_BYTES
    found = []
    for raw in (json.dumps(body), padded):
        with pytest.raises(BodyInvalid) as caught:
            parse(RolloutRequest, raw.encode())
        found.append(field_errors(caught.value.errors))
    assert found[0] == found[1]
    assert any(told in message for name, message in found[0] if name == field), found[0]


async def test_a_long_valid_body_is_answered(client: httpx.AsyncClient) -> None:
    n = 256
    rows = [[1 / (i + 1)] * (i + 1) + [0.0] * (n - i - 1) for i in range(n)]
    body: dict[str, Any] = {
        "layers": 2,
        "sequence_length": n,
        "kernel": {"type": "measured", "matrices": [rows]},
    }
    raw = json.dumps(body).encode()
    assert len(raw) > SMALL_BYTES
    answer = await client.post("/v1/rollouts", content=raw, headers=JSON)
    assert answer.status_code == 200, answer.text[:300]
    twice = raw[:-1] + b', "layers": 3}'
    refused = await client.post("/v1/rollouts", content=twice, headers=JSON)
    assert refused.status_code == 422
    assert refused.json()["detail"] == "the key layers is given twice"


@pytest.mark.parametrize("encoding", ["gzip", "br", "identity, gzip", "x"])
async def test_encoded_bodies_are_refused(client: httpx.AsyncClient, encoding: str) -> None:
    headers = {**JSON, "Content-Encoding": encoding}
    answer = await client.post("/v1/rollouts", content=b'{"layers": 2}', headers=headers)
    assert answer.status_code == 415
    assert answer.headers["accept-encoding"] == "identity"
    assert answer.json()["errors"][0]["field"] == "content-encoding"


@pytest.mark.parametrize("encoding", ["identity", "Identity", ""])
async def test_identity_is_no_encoding(client: httpx.AsyncClient, encoding: str) -> None:
    headers = {**JSON, "Content-Encoding": encoding}
    answer = await client.post("/v1/rollouts", content=b'{"layers": 2}', headers=headers)
    assert answer.status_code == 200
