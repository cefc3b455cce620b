from __future__ import annotations

import asyncio
import csv
import io
import json
import threading
from typing import Any

import httpx
import numpy as np
import pytest
import redis
import redis.asyncio

from lacuna.contract.errors import InvalidRequest
from lacuna.contract.profiles import Profile
from lacuna.contract.recall import RecallCurve
from service.gateway.representations import represent
from service.store import keys
from service.store.kinds import needs
from service.store.profiles import ProfileStore, StoredProfile

REQUEST = {"model": "preset:gpt2", "weights": "random", "sequence_length": 64}


async def test_a_new_request_is_queued_and_a_finished_one_answered(
    client: httpx.AsyncClient, worker: Any, profile: Profile
) -> None:
    first = await client.post("/v1/profiles", json=REQUEST)
    assert first.status_code == 202
    job = first.json()
    assert job["state"] == "queued"
    assert first.headers["location"] == f"/v1/jobs/{job['id']}"
    assert int(first.headers["retry-after"]) >= 1
    worker.finish(profile)
    job = (await client.get(first.headers["location"])).json()
    assert job["state"] == "done"
    assert job["profile"] == f"/v1/profiles/{profile.id}"
    again = await client.post("/v1/profiles", json=REQUEST)
    assert again.status_code == 200
    assert again.headers["content-location"] == job["profile"]
    assert Profile.model_validate_json(again.content) == profile
    assert worker.idle()


async def test_equal_requests_are_one_job(client: httpx.AsyncClient, worker: Any) -> None:
    defaults = {**REQUEST, "seed": 0, "documents": {"count": "auto"}, "priority": "high"}
    answers = await asyncio.gather(
        *(client.post("/v1/profiles", json=b) for b in [REQUEST, defaults] * 100)
    )
    assert {a.status_code for a in answers} == {202}
    assert len({a.json()["id"] for a in answers}) == 1
    worker.claim()
    assert worker.idle()


async def queued(store: redis.asyncio.Redis) -> None:
    """Returns once a job waits, however busy the machine."""
    async with asyncio.timeout(15):
        while not await store.zcard(keys.ready("cpu", needs("profile"))):
            await asyncio.sleep(0.01)


async def test_prefer_wait_answers_when_the_job_ends(
    client: httpx.AsyncClient, worker: Any, profile: Profile, redis_async: redis.asyncio.Redis
) -> None:
    waiting = asyncio.create_task(
        client.post("/v1/profiles", json=REQUEST, headers={"Prefer": "respond-async, wait=20"})
    )
    await queued(redis_async)
    assert not waiting.done()
    worker.finish(profile)
    answer = await asyncio.wait_for(waiting, 15)
    assert answer.status_code == 200
    assert answer.headers["preference-applied"] == "wait=20"


async def test_prefer_wait_is_bounded_and_gives_up(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/profiles", json=REQUEST, headers={"Prefer": "wait=1"})
    assert answer.status_code == 202
    assert answer.headers["preference-applied"] == "wait=1"


@pytest.mark.parametrize("prefer", ["wait", "wait=", "wait=-1", "wait=x", ";;;", "wait=1e9"])
async def test_a_malformed_preference_is_ignored(client: httpx.AsyncClient, prefer: str) -> None:
    answer = await client.post("/v1/profiles", json=REQUEST, headers={"Prefer": prefer})
    assert answer.status_code == 202


async def test_waiting_for_a_job_that_fails_answers_its_problem(
    client: httpx.AsyncClient, worker: Any, redis_async: redis.asyncio.Redis
) -> None:
    waiting = asyncio.create_task(
        client.post("/v1/profiles", json=REQUEST, headers={"Prefer": "wait=20"})
    )
    await queued(redis_async)
    detail = "encoder-decoder models have no causal last token"
    worker.fail("model_unsupported", detail, field="model")
    answer = await asyncio.wait_for(waiting, 15)
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["code"] == "model_unsupported"
    assert problem["detail"] == detail
    assert problem["errors"] == [{"field": "model", "message": detail}]
    job = (await client.get(problem["job"])).json()
    assert job["state"] == "failed"
    assert job["failure"]["field"] == "model"


async def test_every_format_by_suffix_and_by_accept(client: httpx.AsyncClient, stored: str) -> None:
    address = f"/v1/profiles/{stored}"
    wanted = {
        "json": "application/json",
        "csv": "text/csv",
        "svg": "image/svg+xml",
        "png": "image/png",
    }
    tags = set()
    for suffix, media in wanted.items():
        by_suffix = await client.get(f"{address}.{suffix}")
        by_accept = await client.get(address, headers={"Accept": f"{media}, */*;q=0.1"})
        assert by_suffix.status_code == by_accept.status_code == 200
        assert by_suffix.headers["content-type"].startswith(media)
        assert by_suffix.content == by_accept.content
        assert "Accept" in by_accept.headers["vary"]
        assert by_suffix.headers["cache-control"] == "public, max-age=31536000, immutable"
        tags.add(by_suffix.headers["etag"])
    assert len(tags) == 4
    refused = await client.get(address, headers={"Accept": "text/html"})
    assert refused.status_code == 406
    assert refused.headers["content-type"] == "application/problem+json"


async def test_conditional_requests_and_head(client: httpx.AsyncClient, stored: str) -> None:
    address = f"/v1/profiles/{stored}"
    for encoding in ("gzip", "identity"):
        # The first answer is made by the route, the second comes from memory: the same bytes.
        for _ in range(2):
            headers = {"Accept-Encoding": encoding}
            full = await client.get(address, headers=headers)
            tag = full.headers["etag"]
            assert not tag.startswith("W/")
            for condition in (tag, f'"x", W/{tag}', "*"):
                same = await client.get(address, headers={**headers, "If-None-Match": condition})
                assert (same.status_code, same.content) == (304, b"")
                assert same.headers["etag"] == tag
            other = await client.get(address, headers={**headers, "If-None-Match": '"x"'})
            assert other.status_code == 200
            head = await client.head(address, headers=headers)
            assert head.content == b""
            assert head.headers["content-length"] == full.headers["content-length"]
            assert head.headers["etag"] == tag


async def test_bytes_that_many_want_at_once_are_made_once(
    client: httpx.AsyncClient, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = []
    get = ProfileStore.get

    async def counted(self: ProfileStore, profile_id: str) -> StoredProfile | None:
        loads.append(profile_id)
        return await get(self, profile_id)

    monkeypatch.setattr(ProfileStore, "get", counted)
    for suffix in ("", ".csv"):
        answers = await asyncio.gather(
            *(client.get(f"/v1/profiles/{stored}{suffix}") for _ in range(100))
        )
        assert {answer.status_code for answer in answers} == {200}
    assert loads == [stored, stored]
    missing = f"/v1/profiles/{'f' * 32}"
    answers = await asyncio.gather(*(client.get(missing) for _ in range(10)))
    assert {answer.status_code for answer in answers} == {404}


async def test_encodings_have_their_own_tags(client: httpx.AsyncClient, stored: str) -> None:
    address = f"/v1/profiles/{stored}"
    packed = await client.get(address, headers={"Accept-Encoding": "br;q=1, gzip;q=0.5"})
    plain = await client.get(address, headers={"Accept-Encoding": "gzip;q=0, *;q=0"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.content == plain.content  # httpx unpacks
    assert packed.headers["etag"] != plain.headers["etag"]
    assert int(packed.headers["content-length"]) < int(plain.headers["content-length"])


async def test_bins_keep_the_mass(client: httpx.AsyncClient, stored: str, profile: Profile) -> None:
    full = profile.measured.influence
    for bins in (1, 7, 63, 64):
        answer = await client.get(f"/v1/profiles/{stored}?bins={bins}")
        binned = Profile.model_validate_json(answer.content)
        for curve, whole in (
            (binned.measured.influence, full),
            (binned.measured.low, profile.measured.low),
            (binned.predictions["residual"].influence, full),
        ):
            assert len(curve) == bins
            assert sum(curve) == pytest.approx(sum(whole), rel=1e-4)
    halves = (await client.get(f"/v1/profiles/{stored}?bins=2")).json()["measured"]["influence"]
    assert halves[0] == pytest.approx(sum(full[:32]), rel=1e-5)


@pytest.mark.parametrize("bins", ["0", "-1", "65", "16385", "x", "1.5", "1e3", "", "9" * 400])
async def test_bins_are_bounded(client: httpx.AsyncClient, stored: str, bins: str) -> None:
    answer = await client.get(f"/v1/profiles/{stored}?bins={bins}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "bins"


async def test_csv_holds_the_curves(
    client: httpx.AsyncClient, stored: str, profile: Profile
) -> None:
    text = (await client.get(f"/v1/profiles/{stored}.csv")).text
    table = list(csv.DictReader(io.StringIO(text)))
    assert [float(row["position"]) for row in table] == list(range(64))
    assert [float(row["measured"]) for row in table] == profile.measured.influence
    assert [float(row["residual"]) for row in table] == profile.predictions["residual"].influence
    binned = (await client.get(f"/v1/profiles/{stored}.csv?bins=4")).text
    assert [row["position"] for row in csv.DictReader(io.StringIO(binned))] == [
        "7.5", "23.5", "39.5", "55.5",
    ]  # fmt: skip


async def test_recall_is_a_curve_of_its_own(
    client: httpx.AsyncClient, worker: Any, profile: Profile, recall_curve: RecallCurve
) -> None:
    curves = {"facts": recall_curve, "pairs": recall_curve.model_copy(update={"p": 0.5})}
    await client.post("/v1/profiles", json=REQUEST)
    stored = worker.finish(profile.model_copy(update={"recall": curves}))
    address = f"/v1/profiles/{stored}"
    table = list(
        csv.DictReader(io.StringIO((await client.get(f"{address}.csv?curve=recall")).text))
    )
    assert [row["probe"] for row in table] == ["facts"] * 5 + ["pairs"] * 5
    assert [float(row["probability"]) for row in table[:5]] == recall_curve.probability
    assert [float(row["simultaneous_low"]) for row in table[:5]] == recall_curve.simultaneous_low
    picture = await client.get(f"{address}.svg?curve=recall")
    assert picture.headers["content-type"] == "image/svg+xml"
    assert "Recall by depth" in picture.text
    png = await client.get(f"{address}.png?curve=recall")
    assert png.content.startswith(b"\x89PNG")
    # The curve of influence stays what it was, also from the cache.
    assert (await client.get(f"{address}.csv")).text.startswith("position,measured")
    assert (await client.get(address)).json()["recall"]["facts"]["verdict"] == "varies"


@pytest.mark.parametrize(
    ("query", "field"),
    [(".csv?curve=recall", "curve"), ("?curve=recall", "curve"), (".csv?curve=needle", "curve"),
     (".svg?curve=recall&bins=4", "bins")],
)  # fmt: skip
async def test_recall_that_is_not_there_is_refused(
    client: httpx.AsyncClient, stored: str, query: str, field: str
) -> None:
    answer = await client.get(f"/v1/profiles/{stored}{query}")
    assert answer.status_code == 422
    problem = answer.json()
    assert field in (problem.get("field"), problem.get("errors", [{}])[0].get("field"))


async def test_series_are_the_rows_of_the_csv(client: httpx.AsyncClient, stored: str) -> None:
    series = (await client.get(f"/v1/profiles/{stored}/series?bins=10")).json()
    text = (await client.get(f"/v1/profiles/{stored}.csv?bins=10")).text
    rows = [
        {key: float(value) for key, value in row.items()}
        for row in csv.DictReader(io.StringIO(text))
    ]
    assert series == rows


async def test_dead_zone_at_another_threshold(
    client: httpx.AsyncClient, stored: str, profile: Profile
) -> None:
    address = f"/v1/profiles/{stored}/dead-zone"
    assert profile.dead_zone is not None
    stored_zone = (await client.get(address)).json()["dead_zone"]
    assert stored_zone == json.loads(profile.dead_zone.model_dump_json())
    widths = []
    for threshold in (0.4, 0.6, 0.75, 1.0, 2.0):
        answer = (await client.get(f"{address}?threshold={threshold}")).json()
        assert answer["threshold"] == threshold
        zone = answer["dead_zone"]
        widths.append(0.0 if zone is None else zone["fraction"])
    assert widths == sorted(widths)
    predicted = (await client.get(f"{address}?source=residual")).json()
    assert predicted["source"] == "residual"
    assert predicted["dead_zone"]["start_band"] is None
    missing = await client.get(f"{address}?source=cesaro")
    assert missing.status_code == 422
    assert missing.json()["errors"][0]["field"] == "source"
    assert "residual" in missing.json()["detail"]


@pytest.mark.parametrize("threshold", ["0", "-1", "nan", "inf", "x", "1e400"])
async def test_thresholds_are_bounded(
    client: httpx.AsyncClient, stored: str, threshold: str
) -> None:
    answer = await client.get(f"/v1/profiles/{stored}/dead-zone?threshold={threshold}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "threshold"


async def test_list_is_newest_first_in_pages(
    client: httpx.AsyncClient, worker: Any, make_profile: Any
) -> None:
    for number in range(5):
        model = "preset:gpt2" if number % 2 else "preset:bloom-560m"
        body = {"model": model, "weights": "random", "seed": number}
        assert (await client.post("/v1/profiles", json=body)).status_code == 202
        worker.finish(make_profile(identifier=f"{number:032x}", tokens=8, model=model))
    seen, cursor = [], None
    while True:
        query = {"limit": 2, **({"cursor": cursor} if cursor else {})}
        page = (await client.get("/v1/profiles", params=query)).json()
        assert len(page["items"]) <= 2
        seen += [item["id"] for item in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == [f"{number:032x}" for number in (4, 3, 2, 1, 0)]
    mine = (await client.get("/v1/profiles", params={"model": "preset:gpt2"})).json()["items"]
    assert [item["id"][-1] for item in mine] == ["3", "1"]


@pytest.mark.parametrize(
    ("query", "field"),
    [("limit=0", "limit"), ("limit=101", "limit"), ("cursor=%00", "cursor"),
     ("cursor=abc", "cursor"), ("cursor=OTk6", "cursor"), ("model=../x", "model")],
)  # fmt: skip
async def test_list_refuses_bad_queries(client: httpx.AsyncClient, query: str, field: str) -> None:
    answer = await client.get(f"/v1/profiles?{query}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field


async def test_a_deleted_profile_is_gone_from_memory_too(
    client: httpx.AsyncClient, stored: str, redis_sync: redis.Redis
) -> None:
    address = f"/v1/profiles/{stored}"
    for suffix in ("", ".csv", "?bins=3"):
        assert (await client.get(address + suffix)).status_code == 200
    gone = await client.delete(address)
    assert gone.status_code == 204
    assert gone.content == b""
    assert "content-type" not in gone.headers
    for suffix in ("", ".csv", "?bins=3", "/dead-zone", "/series"):
        gone = await client.get(address + suffix)
        assert gone.status_code == 404
        assert gone.json()["code"] == "profile_not_found"
    assert (await client.delete(address)).status_code == 404
    assert not redis_sync.exists(keys.profile(stored))
    assert (await client.post("/v1/profiles", json={**REQUEST})).status_code == 202


async def test_a_pinned_profile_outlives_every_bound(
    client: httpx.AsyncClient, stored: str, redis_async: redis.asyncio.Redis
) -> None:
    store, pin = ProfileStore(redis_async), f"/v1/profiles/{stored}/pin"
    for _ in range(2):  # once more changes nothing
        pinned = await client.put(pin)
        assert (pinned.status_code, pinned.content) == (204, b"")
        assert "content-type" not in pinned.headers
    await redis_async.zadd(keys.PROFILES_USED, {stored: 1})
    assert await store.evict(ttl=60, max_bytes=1) == 0
    for _ in range(2):
        assert (await client.delete(pin)).status_code == 204
    assert await store.evict(max_bytes=1) == 1
    for gone in (await client.put(pin), await client.delete(pin)):
        assert (gone.status_code, gone.json()["code"]) == (404, "profile_not_found")
    assert not await redis_async.exists(keys.profile(stored))
    assert (await client.put("/v1/profiles/x/pin")).status_code == 422
    assert (await client.post(pin)).headers["allow"] == "PUT, DELETE"


async def test_comparison(
    client: httpx.AsyncClient, stored: str, worker: Any, make_profile: Any
) -> None:
    other = make_profile(identifier="b" * 32, tokens=128, seed=1)
    assert (await client.post("/v1/profiles", json=REQUEST)).status_code == 202
    worker.finish(other)
    query = {"a": stored, "b": other.id, "bins": 10}
    there = (await client.get("/v1/comparisons", params=query)).json()
    back = (await client.get("/v1/comparisons", params=query | {"a": other.id, "b": stored})).json()
    assert there["wasserstein"] == back["wasserstein"] < 0.1
    assert there["primacy_change"] == -back["primacy_change"]
    assert there["difference"] == [-x for x in back["difference"]]
    assert sum(there["difference"]) == pytest.approx(0, abs=1e-5)
    same = (await client.get("/v1/comparisons", params={"a": stored, "b": stored})).json()
    assert same["wasserstein"] == 0
    assert same["spearman"] == 1
    assert set(same["difference"]) == {0.0}
    assert same["verdict"] == "no_difference"
    assert (same["paired"], same["shared_documents"]) == (True, 32)
    missing = await client.get("/v1/comparisons", params={"a": stored, "b": "f" * 32})
    assert missing.json()["code"] == "profile_not_found"


async def test_two_versions_that_read_the_same_documents_are_compared_in_pairs(
    client: httpx.AsyncClient, worker: Any, profile_of_norms: Any
) -> None:
    """Influence of tokens 1 to 229 falls to 0.8: found in pairs, and lost between documents."""
    generator = np.random.default_rng(0)
    at, knots = np.linspace(0, 1, 256), np.linspace(0, 1, 12)
    slow = np.stack([np.interp(at, knots, one) for one in generator.normal(size=(16, 12))])
    norms = (0.7 + 2 * np.exp((at - 1) / 0.08)) * np.exp(0.5 * slow)
    lower = norms * generator.lognormal(0, 0.05, norms.shape)
    lower[:, 1:230] *= 0.8
    for number, (rows, first) in enumerate(((norms, 0), (lower, 0), (lower, 100))):
        asked = {**REQUEST, "seed": 50 + number}
        assert (await client.post("/v1/profiles", json=asked)).status_code == 202
        worker.finish(profile_of_norms(rows, f"{number:032x}", first))

    async def compared(second: int) -> Any:
        pair = {"a": f"{0:032x}", "b": f"{second:032x}"}
        return (await client.get("/v1/comparisons", params=pair)).json()

    paired, apart = await compared(1), await compared(2)
    assert (paired["verdict"], paired["paired"], paired["shared_documents"]) == (
        "difference", True, 16,
    )  # fmt: skip
    assert paired["summary"].startswith("influence on the last tenth is ")
    band = paired["recency_change_band"]
    assert 0 < band["low"] <= paired["recency_change"] <= band["high"]
    assert paired["masses"][9]["p"] <= paired["alpha"]
    assert (apart["paired"], apart["shared_documents"]) == (False, 0)
    assert apart["verdict"] != "difference"
    assert apart["recency_change"] == pytest.approx(paired["recency_change"], abs=1e-5)


async def test_a_profile_deleted_while_it_is_drawn_stays_away(
    client: httpx.AsyncClient, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawing, go = threading.Event(), threading.Event()

    def slow(*arguments: Any, **named: Any) -> Any:
        drawing.set()
        assert go.wait(10)
        return represent(*arguments, **named)

    monkeypatch.setattr("service.gateway.representations.represent", slow)
    address = f"/v1/profiles/{stored}"
    asked = asyncio.create_task(client.get(address))
    assert await asyncio.to_thread(drawing.wait, 10)
    assert (await client.delete(address)).status_code == 204
    go.set()
    assert (await asked).status_code == 200
    assert (await client.get(address)).status_code == 404


async def test_reads_and_placements_do_not_wait_for_rollouts(
    client: httpx.AsyncClient, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, running = threading.Event(), threading.Semaphore(0)

    def long(request: Any, given_up: Any) -> Any:
        running.release()
        assert go.wait(20)
        raise InvalidRequest("enough")

    monkeypatch.setattr("service.answers.rollouts.compute", long)
    asked = [asyncio.create_task(client.post("/v1/rollouts", json={})) for _ in range(2)]
    for _ in asked:
        assert await asyncio.to_thread(running.acquire, timeout=10)
    address = f"/v1/profiles/{stored}"
    for path in (address, f"{address}.svg", f"{address}/series", f"{address}/dead-zone"):
        assert (await asyncio.wait_for(client.get(path), 10)).status_code == 200
    body = {"architecture": {"layers": 2, "heads": 2}, "chunks": []}
    chunks = [{"id": "a", "tokens": 9, "relevance": 1}]
    placing = client.post("/v1/placements", json=body | {"chunks": chunks})
    assert (await asyncio.wait_for(placing, 10)).status_code == 200
    go.set()
    assert {answer.status_code for answer in await asyncio.gather(*asked)} == {422}


async def test_accept_is_one_list_however_it_is_sent(
    client: httpx.AsyncClient, stored: str
) -> None:
    address = f"/v1/profiles/{stored}"
    twice = [("Accept", "text/html"), ("Accept", "text/csv")]
    for _ in range(2):  # from the route, then from memory
        answer = await client.get(address, headers=httpx.Headers(twice))
        assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    refused = await client.get(address, headers={"Accept": "text/html"})
    assert refused.status_code == 406
    assert refused.headers["vary"] == "Accept"


async def test_preferences_are_one_list_however_they_are_sent(client: httpx.AsyncClient) -> None:
    job = (await client.post("/v1/profiles", json=REQUEST)).headers["location"]
    twice = [("Prefer", "respond-async"), ("Prefer", "wait=1")]
    answer = await client.get(job, headers=httpx.Headers(twice))
    assert answer.headers["preference-applied"] == "wait=1"
    other = await client.get(job, headers={"Prefer": "handling=lenient; wait=1"})
    assert "preference-applied" not in other.headers
