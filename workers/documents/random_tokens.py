"""Documents without content: ids drawn uniformly from the vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np


def pieces(
    tokenizer: Any | None, vocabulary: int, room: int, count: int, seed: int
) -> list[list[int]]:
    """`count` pieces of `room` random ids, special tokens excluded.

    Args:
        tokenizer: names the special tokens and the ids in use; None draws from all of them.
        vocabulary: rows of the embedding table, often padded beyond the tokenizer's.
        seed: of the generator.
    """
    used, special = vocabulary, set()
    if tokenizer is not None:
        used = min(vocabulary, len(tokenizer))
        special = set(tokenizer.all_special_ids)
    allowed = np.setdiff1d(
        np.arange(used), np.fromiter(special, dtype=np.int64, count=len(special))
    )
    drawn = np.random.default_rng(seed).integers(0, len(allowed), size=(count, room))
    return [[int(token) for token in row] for row in allowed[drawn]]
