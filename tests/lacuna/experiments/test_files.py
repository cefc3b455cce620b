from __future__ import annotations

import json

import pytest

from lacuna.client.chunks import parse_json
from lacuna.contract.errors import InvalidRequest
from lacuna.experiments.files import questions_of

ONE, TWO = {"question": "a", "chunks": [{"id": "x"}]}, {"question": "b", "chunks": []}


@pytest.mark.parametrize(
    ("text", "found", "second"),
    [
        (f"{json.dumps(ONE)}\n\n{json.dumps(TWO)}\n", [ONE, TWO], "q line 3"),
        (json.dumps(ONE, indent=2), [ONE], None),
        (json.dumps([ONE, TWO], indent=2), [ONE, TWO], "q question 2"),
        (json.dumps([ONE, TWO]), [ONE, TWO], "q question 2"),
        ("\n", [], None),
    ],
)
def test_questions_are_lines_or_one_value(
    text: str, found: list[object], second: str | None
) -> None:
    read, called = questions_of(text, "q", parse_json)
    assert read == found
    assert called.get(1) == second


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (json.dumps(ONE) + "\n{", 2),
        (json.dumps(ONE, indent=2) + "\n" + json.dumps(TWO, indent=2), 1),
        ("Which river?", 1),
    ],
)
def test_what_is_neither_is_refused_with_what_would_do(text: str, line: int) -> None:
    with pytest.raises(InvalidRequest, match=f"q line {line}: not JSON.*one question a line"):
        questions_of(text, "q", parse_json)
