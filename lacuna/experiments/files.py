"""Files of questions: JSON lines, or one JSON value that holds them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lacuna.contract.errors import InvalidRequest

_FORMS = "write one question a line, or the whole file as one JSON object or array"


def questions_of(
    text: str, name: str, parse: Callable[[str, str], Any]
) -> tuple[list[Any], dict[int, str]]:
    """The questions of a file, unchecked, and what to call each of them in messages.

    Args:
        text: of the file. One object over several lines is one question; an array holds several.
        name: of the file.
        parse: reads one JSON value; its second argument is what to call it.

    Raises:
        InvalidRequest: a line is not JSON; names it.
    """
    lines = [(at, line) for at, line in enumerate(text.splitlines(), 1) if line.strip()]
    found: list[Any] = []
    called: dict[int, str] = {}
    for at, line in lines:
        where = f"{name} line {at}"
        try:
            value = parse(line, where)
        except InvalidRequest as error:
            if not found and (whole := _whole(text, name, parse)) is not None:
                return whole
            raise InvalidRequest(f"{error.detail}; {_FORMS}") from None
        if len(lines) == 1 and isinstance(value, list):
            return value, _numbered(value, name)
        called[len(found)] = where
        found.append(value)
    return found, called


def _whole(
    text: str, name: str, parse: Callable[[str, str], Any]
) -> tuple[list[Any], dict[int, str]] | None:
    """The questions of a file that is one JSON value; None if it is not."""
    try:
        value = parse(text, name)
    except InvalidRequest:
        return None
    found = value if isinstance(value, list) else [value]
    return found, _numbered(found, name)


def _numbered(found: list[Any], name: str) -> dict[int, str]:
    return {at: f"{name} question {at + 1}" for at in range(len(found))}
