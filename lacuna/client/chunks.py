"""Placement requests from chunks as people have them: objects, JSON, JSON lines, or tables.

`placement_request` takes objects and mappings, for the clients. `parse_chunks` reads a text, for
`lacuna place` and for `client.place(parse_chunks(text).fields["chunks"], ...)`. JSON and numbers
are read strictly: what would silently become another value is an error.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

from lacuna.client.errors import Refused
from lacuna.contract import validation
from lacuna.contract.base import plain
from lacuna.contract.errors import InvalidRequest
from lacuna.contract.placements import MAX_CHUNK_CHARACTERS, MAX_CHUNKS, Chunk

_COLUMNS = tuple(Chunk.model_fields)
_SEPARATORS = "\t;,"
_EXPECTED = (
    "a header names the columns id, tokens (or text) and relevance, and may name group, "
    "pinned, document and position; without a header a line is id, tokens, relevance"
)


class ParsedChunks(NamedTuple):
    """What a text holds.

    Args:
        fields: of a placement request; `chunks` alone unless the text is a whole request.
        lines: what to call each chunk in messages, by its index, where it was a line.
    """

    fields: dict[str, Any]
    lines: dict[int, str]


def parse_chunks(text: str, name: str = "the text") -> ParsedChunks:
    """Chunks, or a whole request, in any of the forms.

    Args:
        text: not blank. JSON if it begins with a bracket or a brace, else a table.
        name: of the source, for messages.

    Returns:
        A named tuple `(fields, lines)`; the chunks are `fields["chunks"]`, and any other fields are
        options of `place`.

    Raises:
        InvalidRequest: names the source, the line and the column at fault.

    >>> parse_chunks("a, 120, 0.9").fields
    {'chunks': [{'id': 'a', 'tokens': 120, 'relevance': 0.9}]}
    """
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise InvalidRequest(f"{name} is empty")
    first = text.lstrip()[0]
    if first == "[":
        return ParsedChunks({"chunks": parse_json(text, name)}, {})
    if first == "{":
        return _objects(text, name)
    return _table(text, name)


def placement_request(
    chunks: Iterable[Chunk | Mapping[str, Any]], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The body of POST /v1/placements; nothing of the caller's is changed.

    Raises:
        Refused: no curve is named, or a chunk is neither a Chunk nor a mapping.
    """
    listed = [_chunk(at, one) for at, one in enumerate(chunks)]
    given = {name: plain(value) for name, value in options.items() if value is not None}
    if not {"profile_id", "model", "density", "architecture"} & given.keys():
        raise Refused("give profile_id, model, density or architecture")
    return {**given, "chunks": listed}


def _chunk(at: int, given: object) -> dict[str, Any]:
    if isinstance(given, Chunk):
        return given.model_dump(exclude_none=True)
    if isinstance(given, Mapping):
        fields: dict[str, Any] = plain(given)
        return fields
    raise Refused(
        f"chunks[{at}] is of type {type(given).__name__}: give a Chunk, or a mapping with id, "
        "tokens (or text) and relevance",
        field=f"chunks.{at}",
    )


def parse_json(text: str, name: str) -> Any:
    """JSON as RFC 8259 has it: no NaN, no number beyond float64, no key twice in one object.

    Args:
        name: of the source, for messages.

    Raises:
        InvalidRequest: it is not JSON, or holds more values than any request may.
    """
    try:
        validation.check_json_size(text.encode("utf-8", "replace"))
        return json.loads(
            text, parse_constant=_constant, parse_float=_finite, object_pairs_hook=_unique
        )
    except InvalidRequest as error:
        raise InvalidRequest(f"{name}: {error.detail}") from error
    except (ValueError, RecursionError) as error:
        reason = "too deeply nested" if isinstance(error, RecursionError) else error
        raise InvalidRequest(f"{name}: not JSON: {reason}") from error


def parse_number(text: str, name: str) -> float:
    """A finite number in ASCII digits.

    Raises:
        InvalidRequest: begins with `name`.
    """
    try:
        return validation.number_of(text)
    except ValueError:
        detail = f"{name}: {text.strip()!r:.80} is not a finite number"
        raise InvalidRequest(detail) from None


class _Row(NamedTuple):
    """A line of a table.

    Args:
        at: its number, from 1.
        separator: between its cells; None for spaces.
        where: what to call it in messages.
    """

    cells: list[str]
    at: int
    separator: str | None
    where: str

    @property
    def name(self) -> str:
        """The id of a chunk that has none."""
        return f"chunk-{self.at}"

    def tokens(self, cell: str) -> int:
        """A whole number from 1: an empty chunk in a table is a mistake."""
        value = parse_number(cell, f"{self.where}: tokens")
        if not value.is_integer() or value < 1:
            self.refuse(f"tokens: {cell!r:.80} is not a whole number from 1")
        return int(value)

    def relevance(self, cell: str) -> float:
        """A number. Its decimals may follow a comma, unless commas separate the cells."""
        if self.separator in (";", "\t") and "." not in cell:
            cell = cell.replace(",", ".", 1)
        return parse_number(cell, f"{self.where}: relevance")

    def refuse(self, message: str) -> NoReturn:
        """Raise InvalidRequest that names the line."""
        raise InvalidRequest(f"{self.where}: {message}")


def _objects(text: str, name: str) -> ParsedChunks:
    """One request or chunk, or a chunk on each line."""
    lines = [(at, line) for at, line in enumerate(text.splitlines(), 1) if line.strip()]
    if len(lines) == 1 or not all(line.strip()[-1] == "}" for _, line in lines):
        value = parse_json(text, name)
        return ParsedChunks(
            {"chunks": [value]} if {"relevance", "score"} & value.keys() else value, {}
        )
    _bound(len(lines), name)
    where = [f"{name}, line {at}" for at, _ in lines]
    chunks = [parse_json(line, at) for at, (_, line) in zip(where, lines, strict=True)]
    return ParsedChunks({"chunks": chunks}, dict(enumerate(where)))


def _table(text: str, name: str) -> ParsedChunks:
    first = next(line for line in text.splitlines() if line.strip())
    separator = next((mark for mark in _SEPARATORS if mark in first), None)
    chunks: list[dict[str, Any]] = []
    lines: dict[int, str] = {}
    header: list[str] | None = None
    for at, cells in _rows(text, separator, name):
        row = _Row(cells, at, separator, f"{name}, line {at}")
        if not chunks and header is None and _is_header(cells):
            header = _header(row)
            continue
        _bound(len(chunks) + 1, name)
        lines[len(chunks)] = row.where
        chunks.append(_by_position(row) if header is None else _by_column(row, header))
    return ParsedChunks({"chunks": chunks}, lines)


def _rows(text: str, separator: str | None, name: str) -> Iterator[tuple[int, list[str]]]:
    """Number and cells of each line that is not blank."""
    if separator is None:
        for at, line in enumerate(text.splitlines(), 1):
            if line.strip():
                yield at, line.split()
        return
    csv.field_size_limit(MAX_CHUNK_CHARACTERS)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise InvalidRequest(f"{name}, line {reader.line_num}: {error}") from error


def _is_header(cells: list[str]) -> bool:
    """A chunk has at least one number that can be read among its last two cells."""
    return len(cells) > 1 and not any(map(_is_number, cells[-2:]))


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", ".", 1))
    except ValueError:
        return False
    return True


def _header(row: _Row) -> list[str]:
    header = [cell.lower() for cell in row.cells]
    for cell in header:
        if cell not in _COLUMNS:
            meant = validation.unknown_field(Chunk, (cell,)).partition("; did you mean ")[2]
            hint = f" (did you mean {meant})" if meant else ""
            row.refuse(f"unknown column {cell!r:.80}{hint}; {_EXPECTED}")
        if header.count(cell) > 1:
            row.refuse(f"the column {cell} is there twice")
    if "relevance" not in header:
        row.refuse("no column `relevance`")
    if "tokens" not in header and "text" not in header:
        row.refuse("no column `tokens`, and no `text` to count")
    return header


def _by_column(row: _Row, header: list[str]) -> dict[str, Any]:
    if len(row.cells) != len(header):
        row.refuse(f"{len(row.cells)} cells under {len(header)} columns")
    given = {column: cell for column, cell in zip(header, row.cells, strict=True) if cell}
    chunk: dict[str, Any] = {"id": row.name, **given}
    if "tokens" in given:
        chunk["tokens"] = row.tokens(given["tokens"])
    if "relevance" in given:
        chunk["relevance"] = row.relevance(given["relevance"])
    if "position" in given:
        chunk["position"] = parse_number(given["position"], f"{row.where}: position")
    with contextlib.suppress(ValueError):
        chunk["pinned"] = validation.whole_of(given.get("pinned", ""))
    return chunk


def _by_position(row: _Row) -> dict[str, Any]:
    """`id, tokens, relevance` or `tokens, relevance`; spaces in an id are fine among spaces."""
    if len(row.cells) < 2 or (row.separator is not None and len(row.cells) > 3):
        # Four cells may be three whose decimals follow a comma: never guess.
        row.refuse(
            f"expected an id, a number of tokens and a relevance, not {len(row.cells)} cells"
        )
    *name, tokens, relevance = row.cells
    return {
        "id": " ".join(name) or row.name,
        "tokens": row.tokens(tokens),
        "relevance": row.relevance(relevance),
    }


def _bound(count: int, name: str) -> None:
    if count > MAX_CHUNKS:
        raise InvalidRequest(f"{name}: more than {MAX_CHUNKS:,} chunks")


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


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
