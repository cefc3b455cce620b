"""What the reorderers share."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from lacuna import LacunaError, Refused, Reorderer
from lacuna.client.reorder import estimate_tokens, relevances


def test_scores_are_taken_as_they_are_or_from_the_order() -> None:
    assert relevances([0.3, -1.0], 2) == [0.3, -1.0]
    ranked = relevances([None, None, None], 3)
    assert ranked == sorted(ranked, reverse=True)
    assert len(set(ranked)) == 3
    assert relevances([], 0) == []


@pytest.mark.parametrize(
    ("scores", "message"),
    [([-1.2, None, -3.0, -0.5], r"\[1\] have no score"), ([1.0, float("nan")], "NaN")],
)
def test_a_missing_score_among_others_is_an_error(scores: Any, message: str) -> None:
    with pytest.raises(LacunaError, match=message):
        relevances(scores, len(scores))


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


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_made_up_scores_are_never_distances(
    client: Any, reversing: Any, higher_is_better: bool
) -> None:
    seen: list[Any] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content))
        return reversing(request)

    reorderer = Reorderer(client(handler), model="gpt2", higher_is_better=higher_is_better)
    reorderer.order(["a", "b", "c"], [None] * 3)
    assert seen[0].get("higher_is_better", True)
    reorderer.order(["a", "b", "c"], [0.1, 0.2, 0.3])
    assert seen[1]["higher_is_better"] is higher_is_better


def test_dropped_texts_are_missing(client: Any, reversing: Any) -> None:
    reorderer = Reorderer(client(reversing), model="gpt2", max_chunks=2)
    assert reorderer.order(["a", "b", "c"], [1, 2, 3]) == [2, 1]


async def test_the_given_order_is_kept_when_the_service_is_away(
    client: Any, async_client: Any, unreachable: Any, naps: list[float]
) -> None:
    blocking = Reorderer(client(unreachable, retries=1), model="gpt2")
    with pytest.warns(RuntimeWarning, match="Lacuna is away"):
        assert blocking.order(["a", "b"], [1.0, 2.0]) == [0, 1]
    with pytest.warns(RuntimeWarning, match="Lacuna is away"):
        assert await blocking.aorder(["a", "b"], [1.0, 2.0]) == [0, 1]
    asynchronous = Reorderer(async_client(unreachable, retries=0), model="gpt2")
    with pytest.warns(RuntimeWarning, match="Lacuna is away"):
        assert await asynchronous.aorder(["a", "b"], [1.0, 2.0]) == [0, 1]


def test_mistakes_are_raised_and_not_hidden(client: Any) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        return httpx.Response(404, json={"code": "profile_not_found", "detail": "no profile"})

    with pytest.raises(Refused, match="no profile"):
        Reorderer(client(refuse), model="gpt2").order(["a", "b"], [1.0, 2.0])


async def test_async_clients_serve_async_calls(async_client: Any, reversing: Any) -> None:
    reorderer = Reorderer(async_client(reversing), model="gpt2")
    assert await reorderer.aorder(["a", "b"], [1.0, 2.0]) == [1, 0]
    with pytest.raises(LacunaError, match="async calls only"):
        reorderer.order(["a", "b"], [1.0, 2.0])


async def test_none_and_one_need_no_service(
    client: Any, async_client: Any, unreachable: Any
) -> None:
    for reorderer in (Reorderer(client(unreachable)), Reorderer(async_client(unreachable))):
        assert await reorderer.aorder([], []) == []
        assert await reorderer.aorder(["a"], [None]) == [0]


def test_a_budget_needs_real_counts(client: Any, reversing: Any) -> None:
    with pytest.raises(LacunaError, match="count_tokens"):
        Reorderer(client(reversing), model="gpt2", max_tokens=10)
