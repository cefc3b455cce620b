"""What the reorderers share."""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import httpx
import pytest

from lacuna import AsyncClient, Client, LacunaError, Reorderer, ServiceAway
from lacuna.client.reorder import estimate_tokens, relevances


def test_scores_are_taken_as_they_are_or_from_the_order() -> None:
    assert relevances([0.3, -1.0], 2) == [0.3, -1.0]
    ranked = relevances([None, None, None], 3)
    assert ranked == [1.0, 2.0, 3.0]
    assert relevances([], 0) == []


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([-1.2, None, -3.0, -0.5], r"\[1\] have no score"),
        ([1.0, float("nan")], "NaN"),
        ([1.0, "high"], "not a number"),
        ([1.0, [2.0]], "not a number"),
        ([1.0, 10**400], "not a number"),
    ],
)
def test_a_missing_score_among_others_is_an_error(scores: Any, message: str) -> None:
    with pytest.raises(LacunaError, match=message):
        relevances(scores, len(scores))


def test_each_text_has_a_score_or_none() -> None:
    with pytest.raises(LacunaError, match="2 documents and 3 scores"):
        relevances([1.0, 2.0, 3.0], 2)
    with pytest.raises(LacunaError, match="2 documents and 0 scores"):
        relevances([], 2)


def test_lengths_are_counted_or_estimated_also_without_spaces() -> None:
    assert estimate_tokens("x" * 400) == 100
    assert estimate_tokens("語" * 40) == 30
    assert estimate_tokens("") == 1
    assert estimate_tokens("half a pair \ud83d") == 4


def test_order_and_counts(client: Any, reversing: Any) -> None:
    seen: list[Any] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content))
        return reversing(request)

    reorderer = Reorderer(client(handler), model="gpt2", count_tokens=len, max_tokens=100)
    assert reorderer.order(["one", "three", "x"], [0.1, 0.9, 0.5], separator_tokens=2) == [2, 1, 0]
    assert [chunk["tokens"] for chunk in seen[0]["chunks"]] == [3, 5, 1]
    assert (seen[0]["model"], seen[0]["max_tokens"], seen[0]["separator_tokens"]) == (
        "gpt2",
        100,
        2,
    )


def test_without_scores_the_order_given_is_a_ranking(client: Any, reversing: Any) -> None:
    seen: list[Any] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content))
        return reversing(request)

    reorderer = Reorderer(client(handler), model="gpt2", relevance_scale="distance")
    with pytest.warns(RuntimeWarning, match="no document has a score: the given order counts"):
        reorderer.order(["a", "b", "c"], [None] * 3)
    assert seen[0]["relevance_scale"] == "rank"
    assert [chunk["relevance"] for chunk in seen[0]["chunks"]] == [1.0, 2.0, 3.0]
    reorderer.order(["a", "b", "c"], [0.1, 0.2, 0.3])
    assert seen[1]["relevance_scale"] == "distance"
    reorderer.order(["a", "b", "c"], [None] * 3)  # told once
    assert reorderer.counts == {"placed": 3, "unscored": 2}


async def test_it_is_told_once_without_blocking_too(async_client: Any, reversing: Any) -> None:
    reorderer = Reorderer(async_client(reversing), model="gpt2", timeout=30)
    with pytest.warns(RuntimeWarning, match="no document has a score"):
        await reorderer.aorder(["a", "b"], [None, None])
    await reorderer.aorder(["a", "b"], [None, None])
    assert reorderer.counts == {"placed": 2, "unscored": 2}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"relevance_scale": "cosine"}, "relevance_scale"),
        ({"strategy": "best"}, "strategy"),
        ({"relevance_scal": "rank"}, "relevance_scal"),
        ({"suffix_tokens": -1}, "suffix_tokens"),
        ({"chunks": []}, "chunks"),
        ({"on_error": "ignore"}, "on_error"),
    ],
)
def test_options_that_no_request_can_have_are_found_when_it_is_made(
    client: Any, reversing: Any, options: dict[str, Any], field: str
) -> None:
    for curve in ({"model": "gpt2"}, {}):  # an offline placer's curve is its own
        with pytest.raises(LacunaError, match=field) as refused:
            Reorderer(client(reversing), **curve, **options)
        assert refused.value.field == field


def test_what_a_call_adds_is_not_asked_for_when_it_is_made(client: Any, reversing: Any) -> None:
    reorderer = Reorderer(client(reversing), model="gpt2", strategy="cache_prefix")
    assert reorderer.order(["a", "b"], [0.1, 0.9], previous_order=["0", "1"]) == [1, 0]


def test_a_wrong_scale_of_one_call_is_refused_without_scores_too(
    client: Any, reversing: Any
) -> None:
    reorderer = Reorderer(client(reversing), model="gpt2", on_error="raise")
    with (
        pytest.warns(RuntimeWarning, match="no document has a score"),
        pytest.raises(LacunaError, match="relevance_scale"),
    ):
        reorderer.order(["a", "b"], [None, None], relevance_scale="cosine")


@pytest.mark.parametrize("wrong", ["http://127.0.0.1:8080", Path("profile.json"), None, Client])
def test_what_cannot_place_is_found_when_it_is_made(
    client: Any, wrong: Any, reversing: Any
) -> None:
    with pytest.raises(LacunaError, match=r"placer is .*give an object that places"):
        Reorderer(wrong, model="gpt2")
    if wrong is not None:
        with pytest.raises(LacunaError, match="fallback is "):
            Reorderer(client(reversing), model="gpt2", fallback=wrong)


async def test_a_service_that_is_down_is_named_before_the_time_is_over(
    client: Any, async_client: Any, unreachable: Any
) -> None:
    for placer in (client(unreachable), async_client(unreachable)):  # both retry for seconds
        reorderer = Reorderer(placer, model="gpt2", timeout=1, on_error="raise")
        with pytest.raises(ServiceAway, match="connection refused"):
            await reorderer.aorder(["a", "b"], [1.0, 2.0])


def hanging(client: Any) -> list[Any]:
    """Clients of a service that takes seconds to answer, longer than anybody waits."""

    def hang(request: httpx.Request) -> httpx.Response:
        time.sleep(3)
        return httpx.Response(503)

    class Hanging(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await asyncio.sleep(10)
            return httpx.Response(503)

    return [client(hang), AsyncClient("http://test", transport=Hanging())]


async def test_no_answer_in_time_is_an_error_of_lacuna(client: Any, async_client: Any) -> None:
    for placer in hanging(client):
        reorderer = Reorderer(placer, model="gpt2", timeout=0.2, on_error="raise")
        with pytest.raises(ServiceAway, match=r"no answer within 0\.2 s") as raised:
            await reorderer.aorder(["a", "b"], [1.0, 2.0])
        assert raised.value.retryable


def test_dropped_texts_are_missing(client: Any, reversing: Any) -> None:
    reorderer = Reorderer(client(reversing), model="gpt2", max_chunks=2)
    assert reorderer.order(["a", "b", "c"], [1, 2, 3]) == [2, 1]


async def test_the_given_order_is_kept_when_the_service_is_away(
    client: Any, async_client: Any, unreachable: Any, naps: list[float]
) -> None:
    blocking = Reorderer(client(unreachable, retries=1), model="gpt2", timeout=30)
    with pytest.warns(RuntimeWarning, match="keeps the given order"):
        assert blocking.order(["a", "b"], [1.0, 2.0]) == [0, 1]
    with pytest.warns(RuntimeWarning, match="keeps the given order"):
        assert await blocking.aorder(["a", "b"], [1.0, 2.0]) == [0, 1]
    asynchronous = Reorderer(async_client(unreachable, retries=0), model="gpt2", timeout=30)
    with pytest.warns(RuntimeWarning, match="keeps the given order"):
        assert await asynchronous.aorder(["a", "b"], [1.0, 2.0]) == [0, 1]


def refused(status: int, code: str) -> Any:
    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, json={"code": code, "detail": f"{code} it is"})

    return handler


def proxy_page(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, text="<html>sign in</html>")


FAULTS = {
    "a missing profile": (refused(404, "profile_not_found"), "profile_not_found"),
    "a key that changed": (refused(401, "unauthorized"), "unauthorized"),
    "the page of a proxy": (proxy_page, "unexpected_answer"),
    "a full queue": (refused(503, "store_unavailable"), "service_away"),
}


@pytest.mark.parametrize(("handler", "code"), FAULTS.values(), ids=FAULTS)
async def test_by_default_nothing_is_raised(
    client: Any, async_client: Any, handler: Any, code: str
) -> None:
    for placer in (client(handler, retries=0), async_client(handler, retries=0)):
        reorderer = Reorderer(placer, model="gpt2", timeout=30)
        with pytest.warns(RuntimeWarning, match="keeps the given order"):
            assert await reorderer.aorder(["a", "b"], [1.0, 2.0]) == [0, 1]
        assert reorderer.counts == {code: 1, "kept": 1}
        strict = Reorderer(placer, model="gpt2", on_error="raise", timeout=30)
        with pytest.raises(LacunaError):
            await strict.aorder(["a", "b"], [1.0, 2.0])


async def test_a_missing_score_is_no_fault_of_the_service(client: Any, reversing: Any) -> None:
    reorderer = Reorderer(client(reversing), model="gpt2", timeout=30)
    for _ in range(5):
        with pytest.warns(RuntimeWarning, match="have no score"):
            assert reorderer.order(["a", "b"], [1.0, None]) == [0, 1]
    assert reorderer.order(["a", "b"], [1.0, 2.0]) == [1, 0]
    assert reorderer.counts == {"invalid_request": 5, "kept": 5, "placed": 1}


async def test_a_service_that_hangs_costs_the_timeout_and_no_more(
    client: Any, async_client: Any
) -> None:
    placers = hanging(client)
    for placer in placers:
        reorderer = Reorderer(placer, model="gpt2", timeout=0.2)
        began = time.monotonic()
        with pytest.warns(RuntimeWarning, match="no answer within 0.2 s"):
            assert await reorderer.aorder(["a", "b"], [1.0, 2.0]) == [0, 1]
        assert time.monotonic() - began < 2
        assert reorderer.counts["timeout"] == 1


def test_after_three_failures_the_service_is_left_alone(client: Any) -> None:
    asked = []

    def fail(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(503)

    reorderer = Reorderer(client(fail, retries=0), model="gpt2", timeout=30)
    for _ in range(6):
        with pytest.warns(RuntimeWarning, match="keeps the given order"):
            reorderer.order(["a", "b"], [1.0, 2.0])
    assert len(asked) == 3
    assert reorderer.counts == {"service_away": 3, "breaker_open": 3, "kept": 6}


def test_a_fallback_places_when_the_service_does_not(
    client: Any, unreachable: Any, reversing: Any
) -> None:
    reorderer = Reorderer(
        client(unreachable, retries=0), fallback=client(reversing), density=[1.0, 2.0], top_k=2
    )
    with pytest.warns(RuntimeWarning, match="give profile_id, model"):
        assert reorderer.order(["a", "b"], [1.0, 2.0]) == [0, 1]  # no curve of its own

    class Fallback:
        def place(self, chunks: Any, **options: Any) -> Any:
            assert "density" not in options
            assert options["top_k"] == 2
            return client(reversing).place(chunks, model="gpt2", timeout=30)

    reorderer = Reorderer(
        client(unreachable, retries=0), fallback=Fallback(), density=[1.0, 2.0], top_k=2
    )
    assert reorderer.order(["a", "b"], [1.0, 2.0]) == [1, 0]
    assert reorderer.counts == {"service_away": 1, "fallback": 1}


async def test_copies_share_the_client_and_not_the_counts(
    client: Any, async_client: Any, reversing: Any
) -> None:
    for placer in (client(reversing), async_client(reversing)):
        reorderer = Reorderer(placer, model="gpt2", timeout=30)
        twin = copy.deepcopy(reorderer)
        assert await twin.aorder(["a", "b"], [1.0, 2.0]) == [1, 0]
        assert (twin.counts["placed"], reorderer.counts["placed"]) == (1, 0)


async def test_async_clients_serve_async_calls(async_client: Any, reversing: Any) -> None:
    reorderer = Reorderer(async_client(reversing), model="gpt2", timeout=30)
    assert await reorderer.aorder(["a", "b"], [1.0, 2.0]) == [1, 0]
    with pytest.warns(RuntimeWarning, match="async calls only"):
        assert reorderer.order(["a", "b"], [1.0, 2.0]) == [0, 1]


async def test_none_and_one_need_no_service(
    client: Any, async_client: Any, unreachable: Any
) -> None:
    for reorderer in (Reorderer(client(unreachable)), Reorderer(async_client(unreachable))):
        assert await reorderer.aorder([], []) == []
        assert await reorderer.aorder(["a"], [None]) == [0]


async def _maybe(order: list[int] | Awaitable[list[int]]) -> list[int]:
    return order if isinstance(order, list) else await order


@pytest.mark.parametrize(
    ("scores", "options", "kept"),
    [
        ([0.1, 0.9, 0.5], {"max_chunks": 2}, [1, 2]),
        ([0.1, 0.9, 0.5], {"max_chunks": 2, "relevance_scale": "distance"}, [0, 2]),
        ([None, None, None], {"max_chunks": 2}, [0, 1]),
        ([None, None, None], {"max_chunks": 2, "relevance_scale": "score"}, [0, 1]),
        ([0.1, float("nan"), 0.5], {"max_chunks": 2}, [0, 1]),
        ([0.1, 0.9, 0.5], {"max_chunks": 9}, [0, 1, 2]),
        ([0.1, 0.9, 0.5], {"max_chunks": "auto"}, [0, 1, 2]),
        ([0.1, 0.9, 0.5], {"max_tokens": 8}, [1, 2]),
        ([0.1, 0.9, 0.5], {"max_tokens": 8, "suffix_tokens": 3}, [1]),
    ],
)
async def test_a_budget_holds_when_the_given_order_is_kept(
    client: Any, unreachable: Any, scores: Any, options: Any, kept: list[int]
) -> None:
    away = client(unreachable, retries=0)
    reorderer = Reorderer(away, model="gpt2", timeout=30, count_tokens=len)
    with pytest.warns(RuntimeWarning, match="told: the given order counts"):
        reorderer.warn_unscored("told")
    for order in (reorderer.order, reorderer.aorder):
        with pytest.warns(RuntimeWarning, match="keeps the given order"):
            assert await _maybe(order(["three", "four", "one"], scores, **options)) == kept


def test_a_budget_needs_real_counts(client: Any, reversing: Any) -> None:
    with pytest.raises(LacunaError, match="count_tokens"):
        Reorderer(client(reversing), model="gpt2", max_tokens=10)
