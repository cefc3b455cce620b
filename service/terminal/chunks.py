"""Chunks as people have them: JSON, JSON lines, or a table of any common kind."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

from lacuna.contract.placements import MAX_CHUNK_CHARACTERS, MAX_CHUNKS, Chunk
from service.terminal.common import Status, fail
from service.terminal.inputs import number, parse_json

_COLUMNS = tuple(Chunk.model_fields)
_MARKS = "\t;,"
_EXPECTED = (
    "a heading names the columns id, tokens (or text) and relevance, and may name group and "
    "pinned; without a heading a line is id, tokens, relevance"
)


class Chunks(NamedTuple):
    """Fields of a placement request, and what its chunks are called where they were lines."""

    fields: dict[str, Any]
    lines: dict[int, str]


class _Row(NamedTuple):
    """A line of a table.

    Args:
        at: its number.
        mark: what stands between its cells; None for spaces.
        where: what to call it in messages.
    """

    cells: list[str]
    at: int
    mark: str | None
    where: str

    @property
    def name(self) -> str:
        """The id of a chunk that has none."""
        return f"chunk-{self.at}"

    def tokens(self, cell: str) -> int:
        """A whole number from 1: an empty chunk in a table is a mistake."""
        value = number(cell, f"{self.where}: tokens")
        if not value.is_integer() or value < 1:
            self.fail(f"tokens: {cell!r:.80} is not a whole number from 1")
        return int(value)

    def relevance(self, cell: str) -> float:
        """A number; its decimals may follow a comma where none stands between cells."""
        if self.mark in (";", "\t") and "." not in cell:
            cell = cell.replace(",", ".", 1)
        return number(cell, f"{self.where}: relevance")

    def fail(self, message: str) -> NoReturn:
        """End the command."""
        fail(f"{self.where}: {message}", Status.USAGE)


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
    first = next(line for line in text.splitlines() if line.strip())
    mark = next((mark for mark in _MARKS if mark in first), None)
    chunks: list[dict[str, Any]] = []
    lines: dict[int, str] = {}
    header: list[str] | None = None
    for at, cells in _rows(text, mark, name):
        row = _Row(cells, at, mark, f"{name}, line {at}")
        if not chunks and header is None and _is_header(cells):
            header = _header(row)
            continue
        _bound(len(chunks) + 1, name)
        lines[len(chunks)] = row.where
        chunks.append(_by_place(row) if header is None else _by_name(row, header))
    return Chunks({"chunks": chunks}, lines)


def _rows(text: str, mark: str | None, name: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of each line that is not blank."""
    if mark is None:
        for at, line in enumerate(text.splitlines(), 1):
            if line.strip():
                yield at, line.split()
        return
    csv.field_size_limit(MAX_CHUNK_CHARACTERS)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, skipinitialspace=True)
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells):
                yield reader.line_num, cells
    except csv.Error as error:
        fail(f"{name}, line {reader.line_num}: {error}", Status.USAGE)


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
            row.fail(f"unknown column {cell!r:.80}; {_EXPECTED}")
        if header.count(cell) > 1:
            row.fail(f"the column {cell} is there twice")
    if "relevance" not in header:
        row.fail("no column `relevance`")
    if "tokens" not in header and "text" not in header:
        row.fail("no column `tokens`, and no `text` to count")
    return header


def _by_name(row: _Row, header: list[str]) -> dict[str, Any]:
    if len(row.cells) != len(header):
        row.fail(f"{len(row.cells)} cells under {len(header)} columns")
    given = {column: cell for column, cell in zip(header, row.cells, strict=True) if cell}
    chunk: dict[str, Any] = {"id": row.name, **given}
    if "tokens" in given:
        chunk["tokens"] = row.tokens(given["tokens"])
    if "relevance" in given:
        chunk["relevance"] = row.relevance(given["relevance"])
    if given.get("pinned", "").isdecimal():
        chunk["pinned"] = int(given["pinned"])
    return chunk


def _by_place(row: _Row) -> dict[str, Any]:
    """`id, tokens, relevance` or `tokens, relevance`; among spaces the id may have some."""
    if len(row.cells) < 2 or (row.mark is not None and len(row.cells) > 3):
        # Four cells may be three whose decimals follow a comma: never guess.
        row.fail(f"expected an id, a number of tokens and a relevance, not {len(row.cells)} cells")
    *name, tokens, relevance = row.cells
    return {
        "id": " ".join(name) or row.name,
        "tokens": row.tokens(tokens),
        "relevance": row.relevance(relevance),
    }


def _bound(count: int, name: str) -> None:
    if count > MAX_CHUNKS:
        fail(f"{name}: more than {MAX_CHUNKS:,} chunks", Status.USAGE)
