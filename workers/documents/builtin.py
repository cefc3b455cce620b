"""Python's own reference prose: about 450 kB of English, 113,000 tokens of SmolLM2.

It is what `help("topic")` prints (`pydoc_data.topics`) in Python 3.11.7, kept here because every
release words it anew: the same request must read the same documents under any Python.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from workers.documents.tokens import encode

_FILE = Path(__file__).parent / "texts" / "python-reference.txt"
_TOKENS: WeakKeyDictionary[Any, list[int]] = WeakKeyDictionary()


@cache
def text() -> str:
    """All topics in alphabetical order, as one text."""
    return _FILE.read_text(encoding="utf-8")


def tokens(tokenizer: Any) -> list[int]:
    """The text in a tokenizer's tokens, without special ones; kept while the tokenizer lives."""
    if tokenizer not in _TOKENS:
        _TOKENS[tokenizer] = encode(tokenizer, text())
    return _TOKENS[tokenizer]


def pieces(ids: list[int], room: int, count: int) -> list[list[int]]:
    """At most `count` pieces of `room` tokens each, evenly spread over the corpus.

    The corpus is cut into consecutive pieces, and every k-th is taken.

    >>> pieces(list(range(10)), 2, 2)
    [[0, 1], [4, 5]]
    """
    whole = len(ids) // room
    step = max(1, whole // count)
    return [ids[i * room : (i + 1) * room] for i in range(whole)][::step][:count]
