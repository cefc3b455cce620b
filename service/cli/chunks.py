"""Chunks as people have them: JSON, JSON lines, or a table of any common kind."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any, NamedTuple

from service.cli.inputs import number, parse_json
from service.cli.terminal import Status, fail
from service.contract.placements import MAX_CHUNK_CHARACTERS, MAX_CHUNKS, Chunk

_COLUMNS = tuple(Chunk.model_fields)
_DELIMITERS = "\t;,"
Row = tuple[int, list[str]]


class Chunks(NamedTuple):
    """Fields of a placement request, and what its chunks are called where they were lines."""

    fields: dict[str, Any]
    lines: dict[int, str]


def parse(text: str, name: str) -> Chunks:
    """Chunks, or a whole request, in whichever form they are.

    Args:
        text: not empty.
        name: of the source, for messages.
    """
    first = text.lstrip()[0]
    if first == "[":
        return Chunks({"chunks": parse_json(text, name)}, {})
    if first == "{":
        return _objects(text, name)
    return _table(text, name)


def _objects(text: str, name: str) -> Chunks:
    """One request, or a chunk on each line."""
    lines = [(at, line) for at, line in enumerate(text.splitlines(), 1) if line.strip()]
    if len(lines) == 1 or not all(line.strip()[-1] == "}" for _, line in lines):
        value = parse_json(text, name)
        return Chunks({"chunks": [value]} if "relevance" in value else value, {})
    _bound(len(lines), name)
    chunks = [parse_json(line, f"{name}, line {at}") for at, line in lines]
    return Chunks({"chunks": chunks}, {i: f"{name}, line {at}" for i, (at, _) in enumerate(lines)})


def _table(text: str, name: str) -> Chunks:
    rows = _rows(text, name)
    chunks: list[dict[str, Any]] = []
    lines: dict[int, str] = {}
    header: list[str] | None = None
    for at, cells in rows:
        where = f"{name}, line {at}"
        if not chunks and header is None and _is_header(cells):
            header = _header(cells, where)
            continue
        _bound(len(chunks) + 1, name)
        lines[len(chunks)] = where
        chunks.append(
            _by_place(cells, at, where) if header is None else _by_name(cells, header, at, where)
        )
    return Chunks({"chunks": chunks}, lines)


def _rows(text: str, name: str) -> Iterator[Row]:
    """Line number and cells of each line that is not blank."""
    first = next(line for line in text.splitlines() if line.strip())
    delimiter = next((mark for mark in _DELIMITERS if mark in first), None)
    if delimiter is None:
        yield from (
            (at, line.split()) for at, line in enumerate(text.splitlines(), 1) if line.strip()
        )
        return
    csv.field_size_limit(MAX_CHUNK_CHARACTERS)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells):
                yield reader.line_num, cells
    except csv.Error as error:
        fail(f"{name}, line {reader.line_num}: {error}", Status.USAGE)


def _is_header(cells: list[str]) -> bool:
    return any(cell.lower() in _COLUMNS for cell in cells) and not any(map(_is_number, cells[-2:]))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _header(cells: list[str], where: str) -> list[str]:
    header = [cell.lower() for cell in cells]
    for cell in header:
        if cell not in _COLUMNS:
            fail(
                f"{where}: unknown column {cell!r:.80}; known: {', '.join(_COLUMNS)}", Status.USAGE
            )
        if header.count(cell) > 1:
            fail(f"{where}: the column {cell} is there twice", Status.USAGE)
    if "relevance" not in header:
        fail(f"{where}: no column `relevance`", Status.USAGE)
    if "tokens" not in header and "text" not in header:
        fail(f"{where}: no column `tokens`, and no `text` to count", Status.USAGE)
    return header


def _by_name(cells: list[str], header: list[str], at: int, where: str) -> dict[str, Any]:
    if len(cells) != len(header):
        fail(f"{where}: {len(cells)} cells under {len(header)} columns", Status.USAGE)
    given = {column: cell for column, cell in zip(header, cells, strict=True) if cell}
    chunk: dict[str, Any] = {"id": f"chunk-{at}", **given}
    if "tokens" in given:
        chunk["tokens"] = _tokens(given["tokens"], where)
    if "relevance" in given:
        chunk["relevance"] = number(given["relevance"], f"{where}: relevance")
    if given.get("pinned", "").isdecimal():
        chunk["pinned"] = int(given["pinned"])
    return chunk


def _by_place(cells: list[str], at: int, where: str) -> dict[str, Any]:
    """`id, tokens, relevance` or `tokens, relevance`; what stands before them is the id."""
    if len(cells) < 2:
        fail(f"{where}: expected an id, a number of tokens and a relevance", Status.USAGE)
    *name, tokens, relevance = cells
    return {
        "id": " ".join(part for part in name if part) or f"chunk-{at}",
        "tokens": _tokens(tokens, where),
        "relevance": number(relevance, f"{where}: relevance"),
    }


def _tokens(cell: str, where: str) -> int:
    value = number(cell, f"{where}: tokens")
    if not value.is_integer():
        fail(f"{where}: tokens: {cell!r:.80} is not a whole number", Status.USAGE)
    return int(value)


def _bound(count: int, name: str) -> None:
    if count > MAX_CHUNKS:
        fail(f"{name}: more than {MAX_CHUNKS:,} chunks", Status.USAGE)
