"""CPython's own reference prose: English, and present wherever Python is.

`pydoc_data.topics` is what `help("topic")` prints: about 450 kB of text, 113,000 tokens of
SmolLM2. Its wording depends on the Python version, which the documents' digest tells.
"""

from __future__ import annotations

from functools import cache
from pydoc_data import topics
from typing import Any
from weakref import WeakKeyDictionary

from workers.documents.tokens import encode

_TOKENS: WeakKeyDictionary[Any, list[int]] = WeakKeyDictionary()


@cache
def text() -> str:
    """All topics in alphabetical order, as one text."""
    return "\n\n".join(topics.topics[name] for name in sorted(topics.topics))


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
