"""Chunks as callers give them, and what is said of those that cannot be placed."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from lacuna import Chunk, LacunaError
from lacuna.client.chunks import parse_chunks
from lacuna.client.offline import parse_request
from lacuna.contract.errors import InvalidRequest
from lacuna.contract.validation import text_of

ONE = Chunk(id="a", tokens=1, relevance=1.0)


def test_a_chunk_may_carry_its_text(client: Any) -> None:
    seen: list[Any] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content)["chunks"])
        return httpx.Response(422, json={"code": "invalid_request", "detail": "seen"})

    with pytest.raises(LacunaError, match="seen"):
        client(handler).place([Chunk(id="a", relevance=0.5, text="some words")], model="gpt2")
    assert seen == [[{"id": "a", "relevance": 0.5, "text": "some words"}]]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tokens": 3}, "relevance\n  Field required"),
        ({"tokens": 3, "relevance": float("nan")}, "relevance\n"),
        ({"relevance": 0.5}, "give `tokens` or `text`"),
    ],
)
def test_a_chunk_that_lacks_something_is_refused_where_it_is_made(
    fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        Chunk(id="a", **fields)


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([ONE, ("b", 10, 0.5)], r"chunks\[1\] is of type tuple: give a Chunk"),
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


def test_a_table_is_read_into_the_fields_of_a_request() -> None:
    text = "id; relevance; tokens; pinned\na; 0,9; 120; first\nb c; 1; 7;\n"
    parsed = parse_chunks(text, "mine.csv")
    assert parsed.fields == {
        "chunks": [
            {"id": "a", "relevance": 0.9, "tokens": 120, "pinned": "first"},
            {"id": "b c", "relevance": 1.0, "tokens": 7},
        ]
    }
    assert parsed.lines == {0: "mine.csv, line 2", 1: "mine.csv, line 3"}
    for wrong, words in (("a, 1, nan", "line 1: relevance"), ("[{]", "not JSON")):
        with pytest.raises(InvalidRequest, match=f"mine.csv.*{words}"):
            parse_chunks(wrong, "mine.csv")


@pytest.mark.parametrize(
    "text",
    ["a,10,0.5", "id,tokens,relevance\na,10.0,0.5", '[{"id":"a","tokens":10.0,"relevance":0.5}]'],
)
def test_a_byte_order_mark_and_a_whole_number_with_a_point_are_read(text: str) -> None:
    for raw in (text.encode("utf-8-sig"), text.encode("utf-16"), text.encode()):
        for read in (text_of(raw), "\ufeff" + text):
            request = parse_request(parse_chunks(read).fields["chunks"], {"density": [1.0]})
            assert [(chunk.id, chunk.tokens) for chunk in request.chunks] == [("a", 10)]


def test_documents_and_positions_are_columns_too() -> None:
    text = "id,tokens,relevance,document,position\na,10,0.5,book,2.5\nb,10,0.4,,\n"
    assert parse_chunks(text).fields["chunks"] == [
        {"id": "a", "tokens": 10, "relevance": 0.5, "document": "book", "position": 2.5},
        {"id": "b", "tokens": 10, "relevance": 0.4},
    ]
    with pytest.raises(InvalidRequest, match="line 2: position: 'x' is not a finite number"):
        parse_chunks("id,tokens,relevance,document,position\na,10,0.5,book,x\n")


def test_a_place_is_written_as_everybody_reads_it() -> None:
    text = "id,tokens,relevance,pinned\na,3,1,2\nb,3,1,２\nc,3,1,0_1\n"
    pinned = [chunk["pinned"] for chunk in parse_chunks(text, "x").fields["chunks"]]
    assert pinned == [2, "２", "0_1"]  # the check of the request refuses the texts


@pytest.mark.parametrize("text", ["", " ", "\ufeff", "\r\n\x0b", "\x85\n"])
def test_nothing_at_all_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"mine\.csv is empty"):
        parse_chunks(text, "mine.csv")
