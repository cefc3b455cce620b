from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacuna.contract import validation
from lacuna.contract.errors import InvalidRequest
from lacuna.contract.validation import (
    MAX_ARRAYS,
    MAX_KEYS,
    MAX_OBJECTS,
    MAX_STRINGS,
    MAX_VALUES,
    SMALL_BYTES,
    check_json_size,
    without_numbers,
)

PADDING = {"padding": "x" * SMALL_BYTES}
EXPERIMENT_CHUNK = {
    "id": "a", "text": "b", "score": 1, "document": "c", "position": 1, "pinned": None, "gold": True
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("values", [1] * (MAX_VALUES + 2)),
        ("values", [None] * (MAX_VALUES + 2)),
        ("arrays", [[]] * (MAX_ARRAYS + 1)),
        ("objects", [{}] * (MAX_OBJECTS + 1) + ["x" * SMALL_BYTES]),
        ("keys", {str(number): 1 for number in range(MAX_KEYS + 1)}),
        ("strings", ["a"] * (MAX_STRINGS + 1)),
        ("strings", ['"'] * (MAX_STRINGS + 1)),
    ],
)
def test_each_kind_of_value_is_bounded(kind: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"more than [0-9,]+ {kind}$") as caught:
        check_json_size(json.dumps(value).encode())
    assert caught.value.field == "body"


@pytest.mark.parametrize(
    "value",
    [
        [[0.1] * 1_024] * 1_024,
        ['[{"a": 1, "b": [2]}]\\' * 80_000],
        ["\\" * SMALL_BYTES, '"' * SMALL_BYTES, '\\"' * SMALL_BYTES],
        [{"id": "a", "tokens": 1, "relevance": 1, "group": "b", "pinned": None}] * 5_000,
        [{"id": "1", "question": "q", "answers": ["a"] * 5, "chunks": [EXPERIMENT_CHUNK] * 8}]
        * 1_000,
    ],
)
def test_the_largest_valid_requests_and_any_text_pass(value: Any) -> None:
    check_json_size(json.dumps(value).encode())


@given(st.binary())
def test_no_bytes_break_it(raw: bytes) -> None:
    check_json_size(raw)
    without_numbers(raw)


# A key that holds brackets around digits would lose them; no field of ours does.
_KEYS = st.text(st.characters(exclude_characters="["))
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_KEYS, inner, max_size=5),
    max_leaves=20,
)


def keys(value: Any) -> Any:
    """The keys of every object, in order."""
    if isinstance(value, dict):
        return [(key, keys(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return [found for inner in value if (found := keys(inner))]
    return []


@given(_JSON)
def test_objects_keep_their_keys_without_the_numbers(value: Any) -> None:
    raw = json.dumps([PADDING, value]).encode()
    assert keys(json.loads(without_numbers(raw))) == keys(json.loads(raw))


def test_numbers_are_left_out() -> None:
    raw = json.dumps([PADDING, [[1, -2.5e-3], [3]]]).encode()
    assert len(without_numbers(raw)) < len(raw)
    assert json.loads(without_numbers(raw))[1] == [[], []]


@pytest.mark.parametrize("text", ["1_0", "１０", "٣", "0x10", "1e", "nan", "inf", "--1", "1 0", ""])
def test_only_what_everybody_reads_alike_is_a_number(text: str) -> None:
    assert not validation.is_number(text)
    for read in (validation.number_of, validation.whole_of):
        with pytest.raises(ValueError, match="number"):
            read(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("10", 10), ("+10", 10), ("-0.5", -0.5), (".5", 0.5), ("5.", 5), ("1e3", 1000), (" 7\n", 7)],
)
def test_numbers_are_read(text: str, value: float) -> None:
    assert validation.number_of(text) == value
    assert validation.is_number(text.strip())


def test_a_number_too_large_for_a_float_is_none() -> None:
    for text in ("1e400", "9" * 400):
        with pytest.raises(ValueError, match="finite"):
            validation.number_of(text)
