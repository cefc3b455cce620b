"""Counts texts with a model's own tokenizer, without the model and without the hub."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from tokenizers import Tokenizer

from service.store.tokenizers import TokenizerStore

_WARM = 8


class TokenCounts:
    """The use case, over the store; keeps the last few tokenizers. One per gateway process."""

    def __init__(self, store: TokenizerStore) -> None:
        self._store = store
        self._warm: OrderedDict[str, Tokenizer] = OrderedDict()

    async def count(self, tokenizer_digest: str, texts: Sequence[str]) -> list[int] | None:
        """Tokens of each text, without special tokens; None when no worker has published the
        tokenizer.

        Raises:
            StoreUnavailable: Redis is away.
        """
        tokenizer = self._warm.get(tokenizer_digest)
        if tokenizer is None:
            document = await self._store.get(tokenizer_digest)
            if document is None:
                return None
            tokenizer = await asyncio.to_thread(_load, document)
            self._warm[tokenizer_digest] = tokenizer
            while len(self._warm) > _WARM:
                self._warm.popitem(last=False)
        self._warm.move_to_end(tokenizer_digest)
        return await asyncio.to_thread(_count, tokenizer, list(texts))


def _load(document: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(document)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _count(tokenizer: Tokenizer, texts: list[str]) -> list[int]:
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [len(one.ids) for one in encoded]
