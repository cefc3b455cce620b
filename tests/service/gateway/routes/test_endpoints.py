"""Models behind an API: requests, estimates, the list, and what is answered of recall alone."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
import redis

from lacuna.contract.endpoints import EndpointAbilities, EndpointEstimate
from lacuna.contract.models import ModelCatalogue
from lacuna.contract.profiles import Profile
from service.store import keys
from service.store.endpoints import publish_abilities
from tests.service.gateway.conftest import Gateway

TABLE = {
    "prod": {
        "base_url": "http://127.0.0.1:9/v1",
        "model": "m",
        "context_length": 4096,
        "key_variable": "PROD_KEY",
        "input_price": 0.15,
        "output_price": 0.6,
    }
}
REQUEST: dict[str, Any] = {"model": "endpoint:prod", "sequence_length": 1024}


@pytest.fixture
async def client(gateway: Gateway) -> httpx.AsyncClient:
    return await gateway(endpoints=json.dumps(TABLE))


async def test_a_request_waits_in_the_queue_of_endpoints(
    client: httpx.AsyncClient, worker: Any, served: Profile, redis_sync: redis.Redis
) -> None:
    first = await client.post("/v1/profiles", json=REQUEST)
    assert first.status_code == 202
    assert first.json()["message"] == "waits for an endpoint worker: none is running"
    assert redis_sync.keys(f"{keys.READY}endpoints*")
    assert not redis_sync.keys(f"{keys.READY}cpu*")
    same = await client.post("/v1/profiles", json={**REQUEST, "recall": {"probes": ["facts"]}})
    assert same.json()["id"] == first.json()["id"], "recall is all that there is"
    other = await client.post("/v1/profiles", json={**REQUEST, "budget": {"max_cost": 5.0}})
    assert other.json()["id"] != first.json()["id"], "a budget ends only its own job"
    worker.finish(served)
    answer = await client.post("/v1/profiles", json=REQUEST)
    assert answer.status_code == 200
    assert answer.json()["measured"] is None
    assert answer.json()["spending"]["cost"] == 1.25


async def test_a_dry_run_asks_nobody(client: httpx.AsyncClient, redis_sync: redis.Redis) -> None:
    asked = {**REQUEST, "dry_run": True, "budget": {"max_cost": 0.01}}
    answer = await client.post("/v1/profiles", json=asked)
    assert answer.status_code == 200
    found = EndpointEstimate.model_validate_json(answer.content)
    assert found.least.calls < found.most.calls
    assert 0.05 < found.least.cost < found.most.cost
    assert found.refused is not None
    assert "the limit is 0.01" in found.refused
    assert not redis_sync.keys(f"{keys.JOB}*")


@pytest.mark.parametrize(
    ("more", "status", "code", "words"),
    [
        ({"model": "endpoint:nobody"}, 404, "endpoint_unknown", "the settings name prod"),
        ({"model": "endpoint:http://evil/"}, 422, "invalid_request", "`endpoint:NAME`"),
        ({"sequence_length": 5000}, 422, "too_long", "4096"),
        ({"budget": {"max_calls": 10}}, 422, "budget_spent", "calls are needed"),
        ({"budget": {"max_calls": 0}}, 422, "invalid_request", ""),
        ({"documents": {"count": 20}}, 422, "invalid_request", "`documents`"),
        ({"weights": "random"}, 422, "invalid_request", "`weights`"),
        ({"model": "demo:smollm2-135m-instruct", "dry_run": True}, 422, "invalid_request", "dry_"),
        (
            {"model": "demo:smollm2-135m-instruct", "budget": {"max_cost": 1.0}},
            422, "invalid_request", "`budget`",
        ),
    ],
)  # fmt: skip
async def test_what_cannot_be_is_refused_at_once(
    client: httpx.AsyncClient, more: dict[str, Any], status: int, code: str, words: str
) -> None:
    answer = await client.post("/v1/profiles", json={**REQUEST, **more})
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert words in answer.text


async def test_the_list_names_endpoints_with_what_they_can(
    client: httpx.AsyncClient, redis_sync: redis.Redis
) -> None:
    found = ModelCatalogue.model_validate_json((await client.get("/v1/models")).content)
    assert [(one.name, one.abilities) for one in found.endpoints] == [("endpoint:prod", None)]
    told = EndpointAbilities(
        rung="answer", ways=["chat.grammar"], refused={"chat.top": "no"}, counts_by="tokenizer",
        served_model="m-1", found_at="2026-01-01T00:00:00Z",
    )  # fmt: skip
    publish_abilities(redis_sync, "prod", told)
    text = (await client.get("/v1/models")).text
    assert ModelCatalogue.model_validate_json(text).endpoints[0].abilities == told
    assert "127.0.0.1:9" not in text
    assert "PROD_KEY" not in text


async def stored(client: httpx.AsyncClient, worker: Any, profile: Profile, seed: int) -> str:
    answer = await client.post("/v1/profiles", json={**REQUEST, "seed": seed})
    assert answer.status_code == 202
    worker.finish(profile)
    return f"/v1/profiles/{profile.id}"


async def test_every_view_of_recall_alone(
    client: httpx.AsyncClient, worker: Any, served: Profile
) -> None:
    base = await stored(client, worker, served, 0)
    whole, binned = await client.get(base), await client.get(f"{base}?bins=10")
    assert whole.json() == binned.json()
    table = list(csv.DictReader(io.StringIO((await client.get(f"{base}.csv")).text)))
    assert [row["probe"] for row in table] == ["facts"] * 5
    assert "Recall by depth" in (await client.get(f"{base}.svg")).text
    assert (await client.get(f"{base}.png")).content[:4] == b"\x89PNG"
    for address in (
        f"{base}/series",
        f"{base}/dead-zone",
        f"{base}.csv?curve=influence",
        f"{base}.svg?curve=influence",
    ):
        answer = await client.get(address)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), address
        assert "recall alone" in answer.json()["detail"]
    listed = (await client.get("/v1/profiles")).json()["items"][0]
    assert (listed["shape"], listed["recall_verdict"]) == (None, "varies")
    metrics = (await client.get("/metrics")).text
    assert "lacuna_model_recall_spread{" in metrics
    assert 'lacuna_model_primacy_mass{documents="builtin",model="endpoint' not in metrics


async def test_a_placement_follows_recall(
    client: httpx.AsyncClient, worker: Any, served: Profile
) -> None:
    await stored(client, worker, served, 0)
    chunks = [{"id": f"c{i}", "tokens": 50, "relevance": 1 / (i + 1)} for i in range(4)]
    for named in ({"profile_id": served.id}, {"model": "endpoint:prod"}):
        answer = (await client.post("/v1/placements", json={**named, "chunks": chunks})).json()
        assert answer["confidence"]["basis"] == "recall"
        assert answer["order"][-1] == "c0", "the best stands last, where recall is best"
    refused = await client.post(
        "/v1/placements", json={"profile_id": served.id, "chunks": chunks, "source": "measured"}
    )
    assert refused.status_code == 422
    assert "it has recall" in refused.json()["detail"]
    theory = {"model": "endpoint:unmeasured", "chunks": chunks, "allow_theory": True}
    assert (await client.post("/v1/placements", json=theory)).status_code == 404


async def test_a_comparison_is_by_recall_in_pairs(
    client: httpx.AsyncClient, worker: Any, make_served: Callable[..., Profile]
) -> None:
    generator = np.random.default_rng(3)
    before = np.clip(generator.beta(2, 2, (40, 1)) + generator.normal(0, 0.03, (40, 5)), 0, 1)
    after = np.clip(before + generator.normal(0, 0.03, (40, 5)), 0, 1)
    after[:, 2] = np.clip(after[:, 2] - 0.2, 0, 1)
    for name, groups, number in (("a", before, 0), ("b", after, 1)):
        await stored(client, worker, make_served(name * 32, by_group=groups.tolist()), number)
    address = f"/v1/comparisons?a={'a' * 32}&b={'b' * 32}"
    found = (await client.get(address)).json()
    assert (found["source"], found["verdict"], found["paired"]) == ("recall", "difference", True)
    assert found["summary"].startswith("recall of facts is ")
    assert "lower at 45% of the prompt" in found["summary"]
    assert found["warnings"] == [], "both asked the same groups"
    change = found["recall"][0]
    certain = [one["p"] <= change["alpha"] for one in change["depths"]]
    assert certain == [False, False, True, False, False]
    refused = await client.get(f"{address}&source=measured")
    assert refused.status_code == 422
