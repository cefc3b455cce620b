"""Labelled scores from tables and JSON lines."""

from __future__ import annotations

import json

import pytest

from lacuna.client.labels import parse_labels
from lacuna.contract.errors import InvalidRequest

ROWS = [(0.8, 1, "q1"), (0.3, 0, "q1"), (0.5, 0, "q2")]
EXPECTED = {
    "scores": [0.8, 0.3, 0.5],
    "labels": [True, False, False],
    "questions": ["q1", "q1", "q2"],
}


def table(mark: str) -> str:
    lines = [mark.join(map(str, row)) for row in ROWS]
    return "\n".join([mark.join(("score", "label", "question")), *lines, ""])


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_tables_and_json_lines_are_the_same(mark: str) -> None:
    names = ("score", "label", "question")
    lines = "\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in ROWS)
    assert parse_labels(table(mark)) == parse_labels(lines) == EXPECTED
    reordered = "question,label,score\nq1,yes,0.8\nq1,no,0.3\n\nq2,false,0.5"
    assert parse_labels(reordered) == EXPECTED


BAD = {
    "no heading": ("0.8,1\n0.3,0", "line 1: unknown column '0.8'"),
    "no label": ("score,question\n0.8,q", "line 1: a heading names score, label and question"),
    "a word for a label": ("score,label\n0.8,maybe", "line 2: label: 'maybe' is none of 1, 0"),
    "no number": ("score,label\nhigh,1", "line 2: score: 'high' is not a finite number"),
    "a short row": ("score,label\n0.8", "line 2: 1 cells under 2 columns"),
    "nothing": ("score,label\n", "no labels"),
    "half the questions": ("score,label,question\n1,1,q\n2,0,", "line 3: no question"),
    "another field": ('{"score": 1, "label": 1, "id": 3}', "line 1: unknown column 'id'"),
    "no object": ('{"score": 1, "label": 1}\n[1]', "line 2: expected an object"),
}


@pytest.mark.parametrize(("text", "words"), BAD.values(), ids=BAD)
def test_what_cannot_be_meant_is_refused_by_line(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_labels(text, "labels.csv")
    assert words in caught.value.detail
