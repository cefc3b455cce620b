"""Requests from what a user gives: files, stdin, JSON and options.

`read_source` and `parse_object` get the JSON, `build_request` lays the options over it, and
`validated` checks the whole before anything is asked or computed. `in_options` says what is wrong
with a request in the words of the command line.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from lacuna.client.chunks import parse_json, parse_number
from lacuna.client.errors import Refused
from lacuna.contract import validation
from lacuna.contract.errors import InvalidRequest, LacunaError
from service.terminal.common import Status, fail

Model = TypeVar("Model", bound=BaseModel)
Part = str | int
"""Of a path into a request: a field's name, or an index."""

MAX_BYTES = 64_000_000
STDIN = "-"
_JSON = ("{", "[")


def read_source(source: str) -> tuple[str, str]:
    """The text that an argument names, and what to call it in messages.

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
    text, name = read_source(source)
    try:
        value = parse_json(text, name)
    except InvalidRequest as error:
        fail(error.detail, Status.USAGE)
    if not isinstance(value, dict):
        fail(f"{name}: the request must be a JSON object", Status.USAGE)
    return value


def parse_texts(sources: Sequence[str] | None) -> list[str] | None:
    """Texts of the user's own; None without a source.

    Args:
        sources: each a file or `-` for stdin. JSON: a list of texts, or a line for each, as a
            string or as an object with `text`. Anything else is one text.
    """
    if not sources:
        return None
    return [text for source in sources for text in _texts(*read_source(source))]


def _texts(text: str, name: str) -> list[str]:
    first = text.lstrip()[0]
    if first not in '[{"':
        return [text]
    try:
        # A text may begin with a bracket or a quotation mark and be no JSON.
        lines = [line for line in text.splitlines() if line.strip()]
        found = json.loads(text) if first == "[" else [json.loads(line) for line in lines]
    except (ValueError, RecursionError):
        return [text]
    texts: list[Any] = [one.get("text") if isinstance(one, dict) else one for one in found]
    wrong = next((at for at, one in enumerate(texts, 1) if not isinstance(one, str)), None)
    if wrong is not None:
        fail(f"{name}: text {wrong} is neither a string nor an object with `text`", Status.USAGE)
    return texts


def numbers(text: str | None, flag: str) -> list[float] | None:
    """Numbers from a list with commas between them; None without a list."""
    if text is None:
        return None
    try:
        return [parse_number(part, flag) for part in text.split(",")]
    except InvalidRequest as error:
        fail(error.detail, Status.USAGE)


def count(text: str) -> int | str:
    """A whole number where it is one; the check of the request refuses all else but `auto`."""
    try:
        return validation.whole_of(text)
    except ValueError:
        return text


def names(text: str | None) -> list[str] | None:
    """Names from a list with commas between them; None without a list."""
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
        text = validation.text_of(raw)
    except UnicodeDecodeError as error:
        fail(f"{name} is not text in UTF-8: byte {error.start:,} is wrong", Status.USAGE)
    if "\0" in text:
        fail(f"{name} is not text: byte {text.index(chr(0)):,} is 0", Status.USAGE)
    if not text.strip():
        fail(f"{name} is empty", Status.USAGE)
    return text


_QUOTED = re.compile(r"`([\w.]+)`")
_COMMANDS = {"POST /v1/profiles": "`lacuna profile`", "POST /v1/experiments": "`lacuna evaluate`"}
_ADVISED = {"allow_theory": "--allow-theory"}
"""Options that a message advises, whether or not the command was given them."""


class Option(NamedTuple):
    """An option and the field that it fills, as a dotted path; None leaves the field alone."""

    flag: str
    path: str
    value: Any


class Built(NamedTuple):
    """A request as JSON, and what its fields are called on the command line."""

    body: dict[str, Any]
    names: dict[str, str]


def build_request(fields: dict[str, Any], options: Sequence[Option]) -> Built:
    """Fields of a request with the options laid over them.

    A fault names the option where there is one, and else the field.
    """
    body = copy.deepcopy(fields)
    names: dict[str, str] = {}
    for option in options:
        if option.value is not None:
            _put(body, option.path.split("."), option.value)
        if option.value is not None or not fields:
            names[option.path] = option.flag
    return Built(body, names)


def validated(model: type[Model], built: Built, lines: Mapping[int, str] | None = None) -> Model:
    """The request, or the end of the command with its first fault.

    Args:
        lines: what to call the entries of `chunks` or `questions` by number, where they are lines
            of a file.
    """
    try:
        return model.model_validate_json(json.dumps(built.body))
    except ValidationError as error:
        _fail(error, model, built, lines or {})


def _fail(
    error: ValidationError, model: type[BaseModel], built: Built, lines: Mapping[int, str]
) -> NoReturn:
    errors = error.errors(include_url=False)
    # A misspelt field says more than that the right one is missing.
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    path = _path(first["loc"], built.body)
    if first["type"] == "extra_forbidden":
        message = validation.unknown_field(model, first["loc"])
    else:
        message = validation.error_message(first)
    message = _words(message, built.names)
    where = _called(path, built.names, lines)
    fail(f"{where}: {message}" if where else message, Status.USAGE)


def in_options(error: LacunaError, names: Mapping[str, str]) -> str:
    """What is wrong with a request, with options for fields and commands for addresses.

    Args:
        error: of a service or of local computation.
        names: what the fields are called on the command line.
    """
    if isinstance(error, Refused) and error.errors:
        sentences = [_sentence(field, message, names) for field, message in error.errors]
    elif error.field is not None:
        sentences = [_sentence(error.field, error.detail, names)]
    else:
        sentences = [_words(error.detail, names)]
    return f"{error.code}: {'; '.join(sentences)}"


def refuse(error: LacunaError, names: Mapping[str, str]) -> NoReturn:
    """End the command as a refusal of the service would."""
    fail(in_options(error, names), Status.REFUSED)


def _sentence(field: str, message: str, names: Mapping[str, str]) -> str:
    """What is wrong with a field, naming it once."""
    own = f"`{field}`"
    if message.startswith(own) and not message.startswith(f"{own}: "):
        return _words(message, names)
    flag, words = _flag(field, names), _words(message.removeprefix(f"{own}: "), names)
    return f"{flag}: {words.removeprefix(f'{flag}: ')}"  # several fields may be one option


def _words(message: str, names: Mapping[str, str]) -> str:
    """A message of the service with options for fields, and commands for addresses."""
    for address, command in _COMMANDS.items():
        message = message.replace(address, command)

    def word(found: re.Match[str]) -> str:
        flag = _flag(found[1], names)
        return flag if flag != found[1] else _ADVISED.get(found[1], found[0])

    return _QUOTED.sub(word, message)


def _flag(field: str, names: Mapping[str, str]) -> str:
    path: list[Part] = [int(part) if part.isdecimal() else part for part in field.split(".")]
    return _called(path, names, {})


def _put(body: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        inner = body.setdefault(part, {})
        if not isinstance(inner, dict):
            return  # the check of the whole will say so
        body = inner
    body[path[-1]] = value


def _path(location: Sequence[Part], body: Any) -> list[Part]:
    """Pydantic's location, without the members of unions that it names as well."""
    path: list[Part] = []
    last = len(location) - 1
    for number, part in enumerate(location):
        if isinstance(part, int):
            body = body[part] if isinstance(body, list) and part < len(body) else None
        elif isinstance(body, dict) and part in body:
            body = body[part]
        elif number < last or not isinstance(body, dict):
            continue
        path.append(part)
    return path


def _called(path: list[Part], names: Mapping[str, str], lines: Mapping[int, str]) -> str:
    if len(path) > 1 and path[0] in ("chunks", "questions") and path[1] in lines:
        rest = ".".join(str(part) for part in path[2:])
        return f"{lines[int(path[1])]}: {rest}" if rest else lines[int(path[1])]
    for end in range(len(path), 0, -1):
        flag = names.get(".".join(str(part) for part in path[:end]))
        if flag is not None:
            entries = [f" number {part + 1}" for part in path[end:] if isinstance(part, int)]
            return flag + "".join(entries)
    return ".".join(str(part) for part in path)
