"""Chunks as callers give them, and what is said of those that cannot be placed."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from lacuna import Chunk, LacunaError


def test_a_chunk_may_carry_its_text(client: Any) -> None:
    seen: list[Any] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content)["chunks"])
        return httpx.Response(422, json={"code": "invalid_request", "detail": "seen"})

    with pytest.raises(LacunaError, match="seen"):
        client(handler).place([Chunk("a", relevance=0.5, text="some words")], model="gpt2")
    assert seen == [[{"id": "a", "relevance": 0.5, "text": "some words"}]]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tokens": 3}, "'a' has no relevance"),
        ({"tokens": 3, "relevance": float("nan")}, "'a' has no relevance"),
        ({"relevance": 0.5}, "give tokens or text"),
    ],
)
def test_a_chunk_that_lacks_something_is_refused_where_it_is_made(
    fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(LacunaError, match=words):
        Chunk("a", **fields)


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([Chunk("a", 1, 1.0), ("b", 10, 0.5)], r"chunks\[1\] is of type tuple: give a Chunk"),
        (["a"], r"chunks\[0\] is of type str"),
        ([3], r"chunks\[0\] is of type int"),
        ({"id": "a", "tokens": 1, "relevance": 1.0}, r"chunks\[0\] is of type str"),
    ],
)
def test_what_is_no_chunk_is_named_by_its_place(
    client: Any, unreachable: Any, chunks: Any, words: str
) -> None:
    with pytest.raises(LacunaError, match=words):
        client(unreachable).place(chunks, model="gpt2")
