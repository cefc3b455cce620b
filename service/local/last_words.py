"""Why a process ended, by what it wrote: one line out of its log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

_TEXT = re.compile(r"\d{4}-\d\d-\d\dT\S+ (debug|info|warning|error|critical) +(.*)")
_FIELDS = re.compile(r"\s\slogger=.*")
_MODULES = re.compile(r"(?:\w+\.)+(?=[A-Z]\w*(?::|$))")
_TRACEBACK = "Traceback (most recent call last):"
_SEVERE = {"error", "critical"}
_EMPTY_PHRASES = {"Application startup failed. Exiting."}
"""What uvicorn says after the reason."""


class _Entry(NamedTuple):
    """An event of the log; `level` is empty for what was not logged but printed."""

    level: str
    lines: list[str]


def last_words(written: str) -> str:
    """The reason in one line: the last error that was logged, else the last line that was printed;
    of a traceback the exception alone. Empty where nothing tells.

    Args:
        written: the process's log since its start, in either format of `service.logs`.
    """
    printed = ""
    for entry in reversed(list(_entries(written))):
        said = _line(entry.lines)
        if entry.level in _SEVERE and said and said not in _EMPTY_PHRASES:
            return said
        if not entry.level and not printed:
            printed = said
    return printed


def _entries(written: str) -> Iterator[_Entry]:
    current: _Entry | None = None
    for line in written.splitlines():
        begun = _json(line) or _text(line)
        if begun is None and current is not None and (current.level or _in_traceback(current)):
            current.lines.append(_FIELDS.sub("", line))
            continue
        if current is not None:
            yield current
        current = begun or _Entry("", [line])
    if current is not None:
        yield current


def _in_traceback(entry: _Entry) -> bool:
    """Whether what was printed is a traceback that has not come to its exception."""
    return entry.lines[0] == _TRACEBACK and (
        len(entry.lines) == 1 or entry.lines[-1].startswith((" ", _TRACEBACK))
    )


def _json(line: str) -> _Entry | None:
    try:
        fields = json.loads(line)
        message, trace = str(fields["message"]), str(fields.get("traceback", ""))
        why = f": {fields['why']}" if fields.get("why") else ""
        return _Entry(str(fields["level"]), [*f"{message}{why}".splitlines(), *trace.splitlines()])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _text(line: str) -> _Entry | None:
    found = _TEXT.match(line)
    return None if found is None else _Entry(found[1], [_FIELDS.sub("", found[2])])


def _line(lines: list[str]) -> str:
    """What a person should read of an event."""
    filled = [line for line in lines if line.strip()]
    traces = [number for number, line in enumerate(filled) if line == _TRACEBACK]
    if traces:
        rest = filled[traces[-1] + 1 :]
        raised = next((line for line in rest if not line.startswith(" ")), "")
        return _MODULES.sub("", raised, count=1)
    return filled[0].strip() if filled else ""
