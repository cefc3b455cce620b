from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
import redis

from lacuna.contract.jobs import Job
from lacuna.contract.profiles import Profile
from service.store import keys
from service.store.kinds import needs

REQUEST = {"model": "preset:gpt2", "weights": "random", "sequence_length": 64}


async def submitted(client: httpx.AsyncClient, **changes: Any) -> str:
    answer = await client.post("/v1/profiles", json=REQUEST | changes)
    assert answer.status_code == 202
    return str(answer.headers["location"])


def events_of(text: str) -> list[tuple[str, Job]]:
    found = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line[0] != ":")
        if fields:
            found.append((fields["event"], Job.model_validate(json.loads(fields["data"]))))
    return found


async def test_a_job_tells_its_place_and_progress(client: httpx.AsyncClient, worker: Any) -> None:
    first, second = await submitted(client), await submitted(client, seed=1)
    assert (await client.get(first)).json()["position"] == 0
    assert (await client.get(second)).json()["position"] == 1
    claim = worker.claim()
    worker.store.beat(claim, 0.5, "measuring")
    running = await client.get(first)
    assert running.headers["cache-control"] == "no-store"
    job = running.json()
    assert (job["state"], job["progress"], job["message"]) == ("running", 0.5, "measuring")


@pytest.mark.parametrize(
    ("prefix", "kept"),
    [
        ("/lacuna", "/lacuna"),
        ("/a/b.c/", "/a/b.c"),
        ("//evil.example", ""),
        ("https://evil.example", ""),
        ("/a b", ""),
        ("/a?b", ""),
        ("/..%2f", ""),
        ("", ""),
    ],
)
async def test_addresses_begin_with_the_prefix_of_the_proxy(
    client: httpx.AsyncClient, worker: Any, profile: Profile, prefix: str, kept: str
) -> None:
    proxied = {"X-Forwarded-Prefix": prefix}
    asked = await client.post("/v1/profiles", json=REQUEST, headers=proxied)
    job = asked.headers["location"]
    assert job == f"{kept}/v1/jobs/{asked.json()['id']}"
    worker.finish(profile)
    path = job.removeprefix(kept)
    done = await client.get(path, headers=proxied)
    assert done.json()["profile"] == f"{kept}/v1/profiles/{profile.id}"
    events = events_of((await client.get(f"{path}/events", headers=proxied)).text)
    assert events[-1][1].profile == f"{kept}/v1/profiles/{profile.id}"
    again = await client.post("/v1/profiles", json=REQUEST, headers=proxied)
    assert again.headers["content-location"] == f"{kept}/v1/profiles/{profile.id}"
    assert (await client.get(path)).json()["profile"] == f"/v1/profiles/{profile.id}"


async def test_a_failed_job_is_addressed_with_the_prefix_too(
    client: httpx.AsyncClient, worker: Any
) -> None:
    headers = {"X-Forwarded-Prefix": "/lacuna", "Prefer": "wait=10"}
    asked = asyncio.create_task(client.post("/v1/profiles", json=REQUEST, headers=headers))
    while (claim := worker.store.claim()) is None:
        await asyncio.sleep(0.05)
    worker.fail_claim(claim)
    assert (await asked).json()["job"].startswith("/lacuna/v1/jobs/")


async def test_a_queued_job_is_withdrawn_at_once_and_a_running_one_stops(
    client: httpx.AsyncClient, worker: Any
) -> None:
    queued = await submitted(client)
    gone = await client.delete(queued)
    assert (gone.status_code, gone.json()["state"]) == (200, "cancelled")
    assert worker.idle()
    running = await submitted(client, seed=1)
    claim = worker.claim()
    stopping = await client.delete(running)
    assert (stopping.status_code, stopping.json()["state"]) == (202, "running")
    assert worker.store.beat(claim, 0.1, "") == "cancel"
    worker.store.cancelled(claim)
    job = (await client.get(running)).json()
    assert (job["state"], job["failure"]["code"]) == ("cancelled", "cancelled")


async def test_a_finished_job_stays_finished(
    client: httpx.AsyncClient, worker: Any, profile: Profile
) -> None:
    address = await submitted(client)
    worker.finish(profile)
    answer = await client.delete(address)
    assert (answer.status_code, answer.json()["state"]) == (200, "done")


async def test_events_follow_a_job_to_its_end(
    client: httpx.AsyncClient, worker: Any, profile: Profile
) -> None:
    address = await submitted(client)
    following = asyncio.create_task(client.get(f"{address}/events"))
    await asyncio.sleep(1)  # the answer arrives as a whole here, so each event must have its time
    claim = worker.claim()
    await asyncio.sleep(1)
    worker.store.beat(claim, 0.5, "measuring")
    await asyncio.sleep(1)
    worker.fail_claim(claim)
    answer = await asyncio.wait_for(following, 20)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    seen = events_of(answer.text)
    assert seen[0][0] == "queued"
    assert ("running", 0.5) in [(state, job.progress) for state, job in seen]
    assert seen[-1][0] == "failed"
    assert all(state == job.state for state, job in seen)


async def test_events_of_a_finished_job_are_one(
    client: httpx.AsyncClient, worker: Any, profile: Profile
) -> None:
    address = await submitted(client)
    worker.finish(profile)
    answer = await client.get(f"{address}/events")
    assert [state for state, _ in events_of(answer.text)] == ["done"]
    assert (await client.head(f"{address}/events")).status_code == 405


async def test_a_job_can_be_waited_for(
    client: httpx.AsyncClient, worker: Any, profile: Profile
) -> None:
    address = await submitted(client)
    waiting = asyncio.create_task(client.get(address, headers={"Prefer": "wait=20"}))
    await asyncio.sleep(0.2)
    worker.finish(profile)
    answer = await asyncio.wait_for(waiting, 15)
    assert answer.json()["state"] == "done"
    assert answer.headers["preference-applied"] == "wait=20"


async def test_a_hundred_waits_end_together(
    client: httpx.AsyncClient, worker: Any, profile: Profile, redis_sync: redis.Redis
) -> None:
    waits = [
        asyncio.create_task(
            client.post("/v1/profiles", json=REQUEST, headers={"Prefer": "wait=20"})
        )
        for _ in range(100)
    ]
    while not redis_sync.zcard(keys.ready("cpu", needs("profile"))):
        await asyncio.sleep(0.05)
    worker.finish(profile)
    answers = await asyncio.wait_for(asyncio.gather(*waits), 15)
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
