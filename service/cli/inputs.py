"""What a user hands over: files, stdin, JSON on the command line."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import IO, Any, NoReturn

from service.api import json_bounds
from service.cli.terminal import Status, fail
from service.contract.errors import InvalidRequest

MAX_BYTES = 64_000_000
STDIN = "-"
_JSON = ("{", "[")


def read(source: str) -> tuple[str, str]:
    """The text that an argument stands for, and what to call it in messages.

    Args:
        source: JSON itself; `-` for stdin; a file, with or without `@` before its name.
    """
    if source.lstrip().startswith(_JSON):
        return source, "the JSON given"
    if source == STDIN:
        return _decoded(_read_stdin(), "stdin"), "stdin"
    path = source.removeprefix("@")
    return _decoded(read_file(path), path), path


def read_file(path: str) -> bytes:
    """A file's bytes."""
    try:
        with Path(path).open("rb") as file:
            return _bounded(file, path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        fail(f"cannot read {path or repr(path)}: {reason}", Status.USAGE)


def parse_object(source: str | None) -> dict[str, Any]:
    """Fields of a request; none without a source."""
    if source is None:
        return {}
    text, name = read(source)
    value = parse_json(text, name)
    if not isinstance(value, dict):
        fail(f"{name}: the request must be a JSON object", Status.USAGE)
    return value


def parse_json(text: str, name: str) -> Any:
    """JSON as RFC 8259 has it: no NaN, no number beyond float64, no key twice in one object."""
    try:
        json_bounds.check(text.encode("utf-8", "replace"))
        return json.loads(
            text, parse_constant=_constant, parse_float=_finite, object_pairs_hook=_unique
        )
    except InvalidRequest as error:
        fail(f"{name}: {error.detail}", Status.USAGE)
    except (ValueError, RecursionError) as error:
        reason = "too deeply nested" if isinstance(error, RecursionError) else error
        fail(f"{name}: not JSON: {reason}", Status.USAGE)


def numbers(text: str | None, flag: str) -> list[float] | None:
    """Numbers from a list with commas between them."""
    return None if text is None else [number(part, flag) for part in text.split(",")]


def number(text: str, where: str) -> float:
    """A finite number, or the end of the command."""
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        fail(f"{where}: {text.strip()!r:.80} is not a finite number", Status.USAGE)
    return value


def names(text: str | None) -> list[str] | None:
    """Names from a list with commas between them."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _read_stdin() -> bytes:
    if sys.stdin is None:
        fail("stdin is closed", Status.USAGE)
    try:
        return _bounded(sys.stdin.buffer, "stdin")
    except OSError as error:
        fail(f"cannot read stdin: {error.strerror}", Status.USAGE)


def _bounded(file: IO[bytes], name: str) -> bytes:
    raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        fail(f"{name} is longer than {MAX_BYTES:,} bytes", Status.USAGE)
    return raw


def _decoded(raw: bytes, name: str) -> str:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        fail(f"{name} is not text in UTF-8: byte {error.start:,} is wrong", Status.USAGE)
    if "\0" in text:
        fail(f"{name} is not text: byte {text.index(chr(0)):,} is 0", Status.USAGE)
    if not text.strip():
        fail(f"{name} is empty", Status.USAGE)
    return text


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits:.40} is too large a number")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r:.80} is given twice")
        found[key] = value
    return found
