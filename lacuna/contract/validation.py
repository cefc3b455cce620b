"""Bad requests, before and after pydantic: bounds on the JSON, and clear messages.

`check_json_size` counts the values of a body before anything parses it. A native parser locks the
interpreter, so every other thread waits, the event loop's included; and its time grows with the
number of values rather than of bytes. Counting is as fast as memory. The bounds leave room for the
largest valid requests: a matrix of 1,024 x 1,024 numbers, or an experiment with 8,000 chunks.

`error_message`, `unknown_field` and `unknown_parameter` say what pydantic found: in words instead
of a regular expression, and with the name that was probably meant by a misspelt one.
"""

from __future__ import annotations

import math
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from lacuna.contract.base import PATTERN_WORDS
from lacuna.contract.errors import InvalidRequest

MAX_VALUES = 1_100_000
MAX_ARRAYS = 20_000
MAX_OBJECTS = 10_000
MAX_KEYS = 65_000
MAX_STRINGS = 120_000
"""Keys are strings as well."""
SMALL_BYTES = 65_536
"""A body up to this size is parsed within a few milliseconds, whatever it holds."""
_NUMBER = re.compile(r"[-+]?(?:\d{1,400}(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,9})?", re.ASCII)
NOT_A_NUMBER = "must be a number, written in the digits 0 to 9"
_NUMBERS = re.compile(rb"\[[-+0-9.eE,\s]*\]")

_MAX_NAME = 64
"""A longer name is not a typing error, and comparing it takes time."""
_MAX_LIST = 160
"""Characters up to which a message lists every valid name."""
_NEAREST = 3
_SIMILAR = 0.7
"""Similarity from which a name counts as misspelt; `weights` is not misspelt `lenght` (0.62)."""
_CHOICES = {"literal_error": "expected", "enum": "expected", "union_tag_invalid": "expected_tags"}
"""Errors of a value that must be one of some names, and where pydantic keeps these names."""
_QUOTED = re.compile(r"'([^']*)'")
_SYNONYMS = {
    "answer": ("answers",),
    "budget": ("max_tokens",),
    "chunk_id": ("id",),
    "content": ("text",),
    "contexts": ("chunks",),
    "context_length": ("sequence_length",),
    "doc_id": ("id",),
    "docs": ("documents",),
    "lambda": ("mixing", "value", "lambdas"),
    "length": ("sequence_length", "tokens"),
    "max_length": ("sequence_length", "max_tokens"),
    "model_id": ("model",),
    "name": ("id",),
    "num_heads": ("heads",),
    "num_layers": ("layers",),
    "page_content": ("text",),
    "passages": ("chunks",),
    "positions": ("positional_encoding", "kernel"),
    "query": ("question",),
    "relevance": ("score",),
    "score": ("relevance",),
    "seq_len": ("sequence_length",),
    "similarity": ("relevance",),
    "size": ("tokens", "sequence_length"),
    "token_count": ("tokens",),
    "tokens": ("sequence_length", "max_tokens"),
    "weight": ("weights", "relevance"),
}
"""What other libraries and the command line call a field. The first one that exists is meant."""


def is_number(text: str) -> bool:
    """Whether a text is a decimal number in ASCII digits.

    Python also reads 1_0, full-width digits, nan and infinity, and what others read there differs.
    """
    return _NUMBER.fullmatch(text) is not None


def whole_of(text: str) -> int:
    """The whole number that a text is, with blanks around it or not.

    Raises:
        ValueError: it is none.
    """
    if not is_number(text.strip()):
        raise ValueError("not a whole number")
    return int(text)


def number_of(text: str) -> float:
    """The finite number that a text is, with blanks around it or not.

    Raises:
        ValueError: it is none.
    """
    if not is_number(text.strip()) or math.isinf(value := float(text)):
        raise ValueError("not a finite number")
    return value


def text_of(raw: bytes) -> str:
    """A text without its byte order mark, in UTF-16 where the mark says so, else in UTF-8.

    Raises:
        UnicodeDecodeError: it is neither.
    """
    utf16 = raw.startswith((BOM_UTF16_LE, BOM_UTF16_BE))
    return raw.decode("utf-16" if utf16 else "utf-8-sig")


def check_json_size(raw: bytes) -> None:
    """Refuse a body that takes long to parse.

    Args:
        raw: the body; need not be valid JSON.

    Raises:
        InvalidRequest: it holds too many values of one kind; names the kind and the limit.
    """
    if len(raw) <= SMALL_BYTES:
        return
    # Without escapes, every second piece between quotation marks is outside of strings.
    bare = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    _bound("strings", bare.count(b'"') // 2, MAX_STRINGS)
    outside = b"".join(bare.split(b'"')[::2])
    arrays, objects = outside.count(b"["), outside.count(b"{")
    _bound("arrays", arrays, MAX_ARRAYS)
    _bound("objects", objects, MAX_OBJECTS)
    _bound("keys", outside.count(b":"), MAX_KEYS)
    _bound("values", outside.count(b",") + arrays + objects, MAX_VALUES)


def without_numbers(raw: bytes) -> bytes:
    """The same keys in the same objects, with arrays of numbers left empty.

    Args:
        raw: valid JSON.
    """
    return raw if len(raw) <= SMALL_BYTES else _NUMBERS.sub(b"[]", raw)


def _bound(kind: str, found: int, limit: int) -> None:
    if found > limit:
        raise InvalidRequest(f"the body holds more than {limit:,} {kind}", field="body")


def error_message(item: Mapping[str, Any]) -> str:
    """One sentence for an item of pydantic's error list."""
    if item["type"] == "string_pattern_mismatch":
        words = PATTERN_WORDS.get(str(item.get("ctx", {}).get("pattern")))
        return words or "has characters, or a form, that are not allowed here"
    if item["type"] in _CHOICES:
        return _choice(item)
    return str(item["msg"]).removeprefix("Value error, ")


def is_choice(kind: str) -> bool:
    """Whether `error_message` needs the item's `input` for this type of error."""
    return kind in _CHOICES


def _choice(item: Mapping[str, Any]) -> str:
    """Every valid name if they are few, else the nearest ones. Repeats nothing of the input."""
    context = item.get("ctx", {})
    expected = str(context.get(_CHOICES[item["type"]], ""))
    names = _QUOTED.findall(expected)
    # In a union the name is a member of the object that stands at the location.
    given = context.get("tag", item.get("input"))
    near: list[str] = []
    if isinstance(given, str) and len(given) <= _MAX_NAME:
        near = get_close_matches(given.lower(), names, n=_NEAREST, cutoff=0.5)
    where = f"{context['discriminator']} ".replace("'", "`") if "discriminator" in context else ""
    if len(expected) <= _MAX_LIST:
        words = f"{where}must be {expected}"
        return f"{words}; did you mean '{near[0]}'?" if near else words
    words = f"{where}must be one of {len(names)} names"
    if near:
        return f"{words}; the nearest: {', '.join(near)}"
    return f"{words}, such as {', '.join(names[:_NEAREST])}; /openapi.json has them all"


def unknown_field(model: type[BaseModel], location: Sequence[str | int]) -> str:
    """The message for a field that `model` does not have.

    Args:
        model: of the whole body.
        location: pydantic's `loc`, which includes the tags of unions.
    """
    return _unknown("field", str(location[-1]), _names(model, location[:-1]))


def unknown_parameter(name: str, known: Sequence[str]) -> str:
    """The message for a query parameter that an address does not have.

    Args:
        name: as the caller wrote it.
        known: the parameters that exist.
    """
    return _unknown("parameter", name, known)


def _unknown(what: str, name: str, known: Sequence[str]) -> str:
    if not known:
        return f"unknown {what}; there are none here"
    meant = _meant(name.lower().replace("-", "_"), known) if len(name) <= _MAX_NAME else None
    if meant is not None:
        return f"unknown {what}; did you mean `{meant}`?"
    return f"unknown {what}; known here: {', '.join(f'`{k}`' for k in known)}"


def _meant(name: str, known: Iterable[str]) -> str | None:
    """The known name that was meant: spelt alike, a synonym, or one of its words."""
    if name in _SYNONYMS:
        return next((one for one in _SYNONYMS[name] if one in known), None)
    words = Counter(word for one in known for word in one.split("_"))
    called = {word: one for one in known for word in one.split("_") if words[word] == 1}
    for other, fields in _SYNONYMS.items():
        if (field := next((one for one in fields if one in known), None)) is not None:
            called[other] = field
    called |= {one: one for one in known}
    near = get_close_matches(name, called, n=1, cutoff=_SIMILAR)
    return called[near[0]] if near else None


def _names(kind: Any, location: Sequence[str | int]) -> list[str]:
    """Field names of the models at a location below an annotation."""
    found: dict[str, None] = {}
    models = list(_models(kind))
    if location and isinstance(location[0], str):
        models = [m for m in models if location[0] in m.model_fields or _tagged(m, location[0])]
    for model in models:
        if not location:
            found |= dict.fromkeys(f.alias or name for name, f in model.model_fields.items())
        elif location[0] in model.model_fields:
            field = model.model_fields[str(location[0])]
            found |= dict.fromkeys(_names(field.annotation, location[1:]))
        else:  # an index in a list, or the tag of a union
            found |= dict.fromkeys(_names(model, location[1:]))
    return list(found)


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    """The models that an annotation mentions."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    elif get_origin(kind) is not Literal:
        for part in get_args(kind):
            yield from _models(part)


def _tagged(model: type[BaseModel], tag: str) -> bool:
    """Whether pydantic writes this tag for the model in an error's location."""
    kinds = [get_args(field.annotation) for field in model.model_fields.values()]
    return model.__name__ == tag or any(tag in values for values in kinds)
