"""The caller's own texts: each is one document, of which the first tokens are read."""

from __future__ import annotations

from typing import Any

from workers.documents.tokens import encode_beginning


def pieces(
    tokenizer: Any, texts: list[str], room: int, count: int
) -> tuple[list[list[int]], tuple[str, ...]]:
    """The first `room` tokens of each text that has them, and warnings about those that do not."""
    found, short = [], 0
    for text in texts[:count]:
        ids = encode_beginning(tokenizer, text, room)
        if len(ids) >= room:
            found.append(ids[:room])
        else:
            short += 1
    warnings = []
    if len(texts) > count:
        warnings.append(f"{len(texts)} texts were given, `documents.count` reads {count} of them")
    if short:
        warnings.append(
            f"{short} of {min(len(texts), count)} texts are too short and were left out"
        )
    return found, tuple(warnings)
