"""Texts to read: the built-in one, and the operator's own corpora.

The built-in text is Python's reference prose, about 450 kB of English and 113,000 tokens of
SmolLM2. It is what `help("topic")` prints (`pydoc_data.topics`) in Python 3.11.7, kept as a file
because releases change the wording: equal requests must read equal documents under any Python.

A corpus is a folder of .txt, .jsonl and .parquet files below the operator's corpus folder. A .txt
file is one text; every line of a .jsonl file and every row of a .parquet file is one, in the field
or column `text`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from lacuna.contract.errors import DocumentsUnusable
from workers.documents.tokens import encode, encode_beginning

_FILE = Path(__file__).parent / "texts" / "python-reference.txt"
_TOKENS: WeakKeyDictionary[Any, list[int]] = WeakKeyDictionary()


@cache
def builtin_text() -> str:
    """All topics in alphabetical order, as one text."""
    return _FILE.read_text(encoding="utf-8")


def builtin_tokens(tokenizer: Any) -> list[int]:
    """The built-in text in a tokenizer's tokens, without special ones; cached per tokenizer."""
    if tokenizer not in _TOKENS:
        _TOKENS[tokenizer] = encode(tokenizer, builtin_text())
    return _TOKENS[tokenizer]


def spread(pieces: list[list[int]]) -> list[list[int]]:
    """The pieces in an order whose every beginning is spread evenly over all of them.

    The order of the multiples of the golden ratio, modulo 1.

    >>> [piece[0] for piece in spread([[at] for at in range(8)])]
    [0, 5, 2, 7, 4, 1, 6, 3]
    """
    points = np.arange(len(pieces)) * ((1 + 5**0.5) / 2) % 1
    return [pieces[at] for at in np.argsort(np.argsort(points)).tolist()]


def builtin_pieces(ids: list[int], room: int, count: int) -> list[list[int]]:
    """At most `count` of the consecutive pieces of `room` tokens, spread evenly over the text.

    Their order does not depend on `count`, so larger sets begin with the smaller ones.

    >>> builtin_pieces(list(range(10)), 2, 2) == builtin_pieces(list(range(10)), 2, 3)[:2]
    True
    """
    whole = len(ids) // room
    return spread([ids[i * room : (i + 1) * room] for i in range(whole)])[:count]


_SUFFIXES = (".txt", ".jsonl", ".parquet")


def corpus_folder(name: str, corpus_dir: Path | None) -> Path:
    """Folder of a corpus, symlinks resolved.

    Raises:
        DocumentsUnusable: this worker has no corpora, or none of that name.
    """
    if corpus_dir is None:
        raise DocumentsUnusable(
            "`documents.name`: this worker has no corpora (LACUNA_CORPUS_DIR is not set)",
            field="documents.name",
        )
    root = corpus_dir.resolve()
    missing = DocumentsUnusable(
        f"`documents.name`: no corpus is named {name!r}", field="documents.name"
    )
    try:
        folder = (root / name).resolve(strict=True)
    except OSError as error:  # no such folder, a loop of links
        raise missing from error
    if not folder.is_relative_to(root) or folder == root or not folder.is_dir():
        raise missing
    return folder


def corpus_pieces(
    tokenizer: Any,
    folder: Path,
    room: int,
    count: int,
    check: Callable[[], None] = lambda: None,
) -> list[list[int]]:
    """At most `count` pieces of `room` tokens: the first of every text, then the second, ...

    Files are read in the order of their names, and only as far as needed: once `count` texts are
    long enough, their beginnings are the documents. `check` is called at every text, and may raise
    to give up.

    Raises:
        DocumentsUnusable: a file cannot be read, or its kind needs a package that is missing.
    """
    by_text: list[list[list[int]]] = []
    for text in _texts(folder):
        check()
        ids = encode_beginning(tokenizer, text, room * count)
        parts = [ids[i * room : (i + 1) * room] for i in range(min(len(ids) // room, count))]
        if parts:
            by_text.append(parts)
        if len(by_text) == count:
            break
    rounds = max((len(parts) for parts in by_text), default=0)
    in_turn = [parts[turn] for turn in range(rounds) for parts in by_text if turn < len(parts)]
    return in_turn[:count]


def _texts(folder: Path) -> Iterator[str]:
    root = folder.parent.resolve()
    for path in sorted(folder.rglob("*")):
        if path.suffix not in _SUFFIXES or not path.is_file():
            continue
        if not path.resolve().is_relative_to(root):  # a link that leads outside
            continue
        if path.suffix == ".txt":
            yield path.read_text("utf-8", errors="replace")
        elif path.suffix == ".jsonl":
            yield from _jsonl(path)
        else:
            yield from _parquet(path)


def _jsonl(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                raise _unusable(f"line {number} of {path.name} is not JSON") from error
            if not isinstance(record, dict) or not isinstance(record.get("text"), str):
                raise _unusable(f"line {number} of {path.name} has no string field `text`")
            yield record["text"]


def _parquet(path: Path) -> Iterator[str]:
    try:
        pyarrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise _unusable(f"{path.name} needs the Python package pyarrow on the worker") from error
    try:
        with parquet.ParquetFile(path) as file:
            if "text" not in file.schema_arrow.names:
                raise _unusable(f"{path.name} has no column `text`")
            for batch in file.iter_batches(batch_size=64, columns=["text"]):
                yield from (text for text in batch.column(0).to_pylist() if isinstance(text, str))
    except (pyarrow.ArrowException, OSError) as error:
        raise _unusable(f"{path.name} is not a readable Parquet file") from error


def _unusable(what: str) -> DocumentsUnusable:
    return DocumentsUnusable(f"`documents`: {what}", field="documents")
