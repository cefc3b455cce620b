"""POST /v1/placements over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
import redis
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from lacuna.contract.placements import PlacementResponse
from lacuna.contract.profiles import Profile
from service.store import keys
from service.store.profiles import publish_tokenizer

CHUNKS = [
    {"id": "a", "tokens": 16, "relevance": 0.2},
    {"id": "b", "tokens": 16, "relevance": 0.9},
    {"id": "c", "tokens": 16, "relevance": 0.5},
    {"id": "d", "tokens": 16, "relevance": 0.1},
]


async def test_by_profile_id(client: httpx.AsyncClient, stored: str, profile: Profile) -> None:
    answer = await client.post("/v1/placements", json={"profile_id": stored, "chunks": CHUNKS})
    assert answer.status_code == 200
    placed = PlacementResponse.model_validate_json(answer.content)
    assert placed.profile_id == stored
    assert placed.source == "measured"
    assert placed.advice.decision == "reorder"
    assert placed.gain.given is not None
    assert placed.gain.given.low is not None
    assert placed.gain.given.low > 0
    assert not placed.extrapolated
    quarters = np.array(profile.measured.influence).reshape(4, 16).sum(axis=1)
    assert placed.order[int(quarters.argmax())] == "b"
    masses = [one.mass for one in placed.placements]
    assert masses == pytest.approx(quarters.tolist(), abs=0.02)  # smoothed, without token 0


async def test_by_model_and_by_density(client: httpx.AsyncClient, stored: str) -> None:
    by_model = await client.post(
        "/v1/placements", json={"model": "preset:gpt2", "chunks": CHUNKS, "max_chunks": 2}
    )
    assert by_model.json()["profile_id"] == stored
    dropped = by_model.json()["dropped"]
    assert [(one["id"], one["reason"]) for one in dropped] == [
        ("a", "max_chunks"),
        ("d", "max_chunks"),
    ]
    by_density = await client.post(
        "/v1/placements", json={"density": [3, 1, 1, 2], "chunks": CHUNKS}
    )
    assert by_density.json()["order"] == ["b", "a", "d", "c"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"profile_id": "0" * 32, "chunks": CHUNKS}, 404, "profile_not_found"),
        ({"model": "owner/unknown", "chunks": CHUNKS}, 404, "profile_not_found"),
        ({"chunks": CHUNKS}, 422, "invalid_request"),
        ({"density": [1.0], "chunks": [{"id": "a", "tokens": 1}]}, 422, "invalid_request"),
        ({"density": [1.0], "chunks": [CHUNKS[0], CHUNKS[0]]}, 422, "invalid_request"),
        ({"density": [1.0], "chunks": [{"id": "a", "text": "x", "relevance": 1}]}, 422,
         "invalid_request"),
        ({"density": [1.0], "chunks": [{"id": str(i), "tokens": 10**6, "relevance": 1}
                                       for i in range(2)]}, 422, "too_long"),
    ],
)  # fmt: skip
async def test_refusals(
    client: httpx.AsyncClient, body: dict[str, Any], status: int, code: str
) -> None:
    answer = await client.post("/v1/placements", json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


async def test_a_byte_order_mark_and_a_whole_number_with_a_point_are_read(
    client: httpx.AsyncClient,
) -> None:
    text = (
        '{"density": [1], "max_tokens": 30.0, "top_k": 1.0, "prefix_tokens": 2.0,'
        ' "chunks": [{"id": "a", "tokens": 10.0, "relevance": 1, "pinned": 0.0}]}'
    )
    headers = {"Content-Type": "application/json"}
    for raw in (text.encode(), text.encode("utf-8-sig")):
        answer = await client.post("/v1/placements", content=raw, headers=headers)
        assert answer.status_code == 200
        (placed,) = answer.json()["placements"]
        assert (placed["tokens"], placed["offset"]) == (10, 2)
    for wrong in ("10.5", '"10"', "true", "[10]", "1e400"):
        answer = await client.post(
            "/v1/placements", content=text.replace("10.0", wrong), headers=headers
        )
        assert answer.status_code == 422


async def test_nan_is_refused(client: httpx.AsyncClient) -> None:
    text = '{"density": [1], "chunks": [{"id": "a", "tokens": 1, "relevance": NaN}]}'
    headers = {"Content-Type": "application/json"}
    answer = await client.post("/v1/placements", content=text, headers=headers)
    assert answer.status_code == 422


async def test_texts_are_counted_with_the_published_tokenizer(
    client: httpx.AsyncClient,
    worker: Any,
    profile: Profile,
    redis_sync: redis.Redis,
) -> None:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    name = publish_tokenizer(redis_sync, str(tokenizer.to_str()))
    described = profile.model.model_copy(update={"tokenizer_digest": name})
    body = {"model": "preset:gpt2", "weights": "random"}
    await client.post("/v1/profiles", json=body)
    stored = worker.finish(profile.model_copy(update={"model": described}))
    chunks = [
        {"id": "a", "text": "one two three", "relevance": 0.5},
        {"id": "b", "tokens": 7, "relevance": 0.4},
    ]
    answer = await client.post("/v1/placements", json={"profile_id": stored, "chunks": chunks})
    assert {one["id"]: one["tokens"] for one in answer.json()["placements"]} == {"a": 3, "b": 7}
    assert "one two three" not in answer.text


async def test_decisions_and_gains_are_counted(client: httpx.AsyncClient, stored: str) -> None:
    for strategy in ("advised", "optimal"):
        body = {"profile_id": stored, "chunks": CHUNKS, "strategy": strategy}
        await client.post("/v1/placements", json=body)
    await client.post("/v1/placements", json={"density": [1], "chunks": CHUNKS})
    text = (await client.get("/metrics")).text
    for line in (
        'lacuna_placements_total{decision="reorder",strategy="advised"} 1.0',
        'lacuna_placements_total{decision="reorder",strategy="optimal"} 1.0',
        'lacuna_placements_total{decision="keep",strategy="advised"} 1.0',
        'lacuna_placement_gain_count{decision="reorder"} 2.0',
    ):
        assert line in text


async def test_a_curve_is_used_for_a_while_without_asking_the_store(
    gateway: Any, client: httpx.AsyncClient, stored: str, redis_sync: redis.Redis
) -> None:
    """As profiles are: another gateway hears of a deletion within a minute, this one at once."""
    other = await gateway()
    body = {"profile_id": stored, "chunks": CHUNKS}
    for one in (client, other):
        assert (await one.post("/v1/placements", json=body)).status_code == 200
    assert (await client.delete(f"/v1/profiles/{stored}")).status_code == 204
    gone = await client.post("/v1/placements", json=body)
    assert (gone.status_code, gone.json()["code"]) == (404, "profile_not_found")
    assert (await other.post("/v1/placements", json=body)).status_code == 200
    assert redis_sync.exists(keys.profile(stored)) == 0


async def test_along_the_shipped_profile_before_anything_is_measured(
    client: httpx.AsyncClient,
) -> None:
    shipped = (await client.get("/assets/example.json")).json()
    assert (await client.get("/v1/profiles")).json()["items"] == []
    address = f"/v1/profiles/{shipped['id']}"
    assert (await client.get(address)).json() == shipped
    assert len((await client.get(f"{address}?bins=8")).json()["measured"]["influence"]) == 8
    body = {"profile_id": shipped["id"], "chunks": CHUNKS}
    placed = PlacementResponse.model_validate_json(
        (await client.post("/v1/placements", json=body)).content
    )
    assert placed.source == "recall"
    assert placed.gain.given is not None
    assert placed.gain.given.low is not None
    # It is nobody's to delete, and no model's own.
    assert (await client.delete(address)).status_code == 404
    named = {"model": shipped["model"]["id"], "chunks": CHUNKS}
    assert (await client.post("/v1/placements", json=named)).status_code == 404
