"""Pydantic's messages, in words for who made the request: what a pattern stands for, and which
field or name an unknown one was meant to be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from service.contract.base import PATTERN_WORDS

_MAX_NAME = 64
"""A longer name is no slip of the pen, and comparing it costs."""
_MAX_LIST = 160
"""Characters up to which a message lists every name that would do."""
_NEAREST = 3
_CHOICES = {"literal_error": "expected", "enum": "expected", "union_tag_invalid": "expected_tags"}
"""Faults of a value that must be one of some names, and where pydantic keeps these."""
_QUOTED = re.compile(r"'([^']*)'")


def message(item: Mapping[str, Any]) -> str:
    """One sentence for an item of pydantic's error list."""
    if item["type"] == "string_pattern_mismatch":
        words = PATTERN_WORDS.get(str(item.get("ctx", {}).get("pattern")))
        return words or "has characters, or a form, that are not allowed here"
    if item["type"] in _CHOICES:
        return _choice(item)
    return str(item["msg"]).removeprefix("Value error, ")


def is_choice(kind: str) -> bool:
    """Whether `message` words this kind of fault better with the item's `input`."""
    return kind in _CHOICES


def _choice(item: Mapping[str, Any]) -> str:
    """All names while they are few; the nearest ones of many. Echoes nothing of the input."""
    context = item.get("ctx", {})
    expected = str(context.get(_CHOICES[item["type"]], ""))
    names = _QUOTED.findall(expected)
    # In a union the name is a member of the object that stands at the location.
    given = context.get("tag", item.get("input"))
    near: list[str] = []
    if isinstance(given, str) and _fits(given):
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
    """What to say of a field that `model` does not have.

    Args:
        model: of the whole body.
        location: as pydantic gives it, with the tags of unions.
    """
    name = str(location[-1])
    near = get_close_matches(name, _names(model, location[:-1]), n=1) if _fits(name) else []
    return f"unknown field; did you mean `{near[0]}`?" if near else "unknown field"


def unknown_parameter(name: str, known: Sequence[str]) -> str:
    """What to say of a query parameter that an address does not have.

    Args:
        name: as it was given.
        known: those that it has.
    """
    if not known:
        return "unknown parameter; there are none here"
    near = get_close_matches(name, known, n=1) if _fits(name) else []
    if near:
        return f"unknown parameter; did you mean `{near[0]}`?"
    return f"unknown parameter; known here: {', '.join(f'`{k}`' for k in known)}"


def _fits(name: str) -> bool:
    return len(name) <= _MAX_NAME


def _names(kind: Any, location: Sequence[str | int]) -> list[str]:
    """Names of the fields of whatever stands at a location below an annotation."""
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
        else:  # the place in a list, or the tag of a union
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
    """Whether pydantic names this member of a union so."""
    kinds = [get_args(field.annotation) for field in model.model_fields.values()]
    return model.__name__ == tag or any(tag in values for values in kinds)
