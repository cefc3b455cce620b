"""Count texts with a model's own tokenizer, without the model and without the hub.

What a tokenizer makes of a text takes a hundred times the memory of the text. So a long text is
counted in pieces: neighbours overlap, and are cut where both make the same tokens of the overlap.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from tokenizers import Encoding, Tokenizer

from lacuna.contract.errors import ModelUnsupported, TooLong
from lacuna.contract.placements import MAX_TOKENS
from service.panics import failures_as
from service.store.profiles import TokenizerStore

Run = Callable[..., Awaitable[Any]]
"""Awaits a call of its first argument with the others, in another thread."""
PIECE: Final = 131_072
"""Characters that are encoded at a time; up to this length a text is encoded as a whole."""
OVERLAP: Final = 4_096
"""Characters that two neighbouring pieces share."""
_TOKENIZERS, _TOKENIZER_BYTES = 8, 40_000_000
"""Tokenizers that are kept in memory, and the length of their `tokenizer.json` together."""


class TokenCounts:
    """Counts texts. Tokenizers come from the store; the last few stay in memory. One per gateway.

    Args:
        store: where workers publish tokenizers.
        run: where the work is done.
    """

    def __init__(self, store: TokenizerStore, run: Run = asyncio.to_thread) -> None:
        self._store = store
        self._run = run
        self._loaded: OrderedDict[str, tuple[Tokenizer, int]] = OrderedDict()
        self._loading: dict[str, asyncio.Future[Tokenizer | None]] = {}

    async def count(self, tokenizer_digest: str, texts: Sequence[str]) -> list[int] | None:
        """Tokens of each text, without special tokens; None when no worker has published the
        tokenizer.

        Raises:
            StoreUnavailable: Redis is away.
            ModelUnsupported: the tokenizer fails on a text, or this version cannot read it.
            TooLong: a text has more than `MAX_TOKENS`.
            QueueFull: too many texts wait to be counted.
        """
        tokenizer = await self._tokenizer(tokenizer_digest)
        if tokenizer is None:
            return None
        counted: list[int] = await self._run(count_all, tokenizer, list(texts))
        return counted

    async def _tokenizer(self, digest: str) -> Tokenizer | None:
        if digest in self._loaded:
            self._loaded.move_to_end(digest)
            return self._loaded[digest][0]
        # One may take a hundred megabytes while it is read: callers of one share it.
        loading = self._loading.get(digest)
        if loading is None:
            loading = self._loading[digest] = asyncio.ensure_future(self._load(digest))
            loading.add_done_callback(partial(self._ended, digest))
        return await asyncio.shield(loading)

    def _ended(self, digest: str, done: asyncio.Future[Tokenizer | None]) -> None:
        del self._loading[digest]
        if not done.cancelled():
            done.exception()  # marks it as seen: perhaps nobody waits any more

    async def _load(self, digest: str) -> Tokenizer | None:
        document = await self._store.get(digest)
        if document is None:
            return None
        tokenizer: Tokenizer = await self._run(_read, document)
        self._loaded[digest] = tokenizer, len(document)
        while len(self._loaded) > 1 and (
            len(self._loaded) > _TOKENIZERS
            or sum(size for _, size in self._loaded.values()) > _TOKENIZER_BYTES
        ):
            self._loaded.popitem(last=False)
        return tokenizer


def _read(document: str) -> Tokenizer:
    with failures_as(lambda why: _uncounted("cannot be read", why)):
        tokenizer = Tokenizer.from_str(document)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def count_all(tokenizer: Tokenizer, texts: Sequence[str]) -> list[int]:
    """Tokens of each text, without special tokens.

    A text of more than `PIECE` characters is counted in pieces. That is exact wherever the
    tokenizer looks at its neighbourhood alone. One that makes a single token of more than half an
    `OVERLAP` cannot be cut so, and the count may be a few tokens off for each piece.

    Raises:
        ModelUnsupported: the tokenizer fails on a text.
        TooLong: a text has more than `MAX_TOKENS`.
    """
    found: list[int] = []
    with failures_as(lambda why: _uncounted("fails on a text", why)):
        for batch in _batches(texts):
            if len(batch) == 1 and len(batch[0]) > PIECE:
                found.append(_count_long(tokenizer, batch[0]))
            else:
                encoded = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
                found += [len(one.ids) for one in encoded]
    return found


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Neighbours that together have at most `PIECE` characters; longer texts by themselves."""
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and size + len(text) > PIECE:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch


def _count_long(tokenizer: Tokenizer, text: str) -> int:
    """Tokens of a text that is longer than a piece."""
    total, start, counted_to = 0, 0, 0
    tokens = _tokens(tokenizer, text, start)
    while start + PIECE < len(text):
        following = start + PIECE - OVERLAP
        next_tokens = _tokens(tokenizer, text, following)
        cut = _common_cut(tokens, next_tokens, following)
        if cut is None:  # the tokens on either side have no boundary in common
            cut = following = start + PIECE
            next_tokens = _tokens(tokenizer, text, following)
        total += sum(counted_to <= at < cut for at, _ in tokens)
        if total > MAX_TOKENS:
            raise TooLong(f"a text has more than {MAX_TOKENS} tokens", field="chunks.text")
        start, counted_to, tokens = following, cut, next_tokens
    return total + sum(at >= counted_to for at, _ in tokens)


_Tokens = list[tuple[int, int]]
"""Where each token starts in the text, and its id."""


def _tokens(tokenizer: Tokenizer, text: str, start: int) -> _Tokens:
    piece = text[start : start + PIECE]
    encoded: Encoding = tokenizer.encode(piece, add_special_tokens=False)
    return [
        (start + at, token) for (at, _), token in zip(encoded.offsets, encoded.ids, strict=True)
    ]


def _common_cut(before: _Tokens, after: _Tokens, overlap: int) -> int | None:
    """The start of a token in the middle of the overlap, if both pieces have the same tokens there.

    Near its own end each piece may have others: there it does not see how the text goes on.

    Args:
        before, after: tokens of two neighbours.
        overlap: where it begins.
    """
    low, high = overlap + OVERLAP // 4, overlap + OVERLAP * 3 // 4
    core = [one for one in before if low <= one[0] < high]
    if not core or core != [one for one in after if low <= one[0] < high]:
        return None
    return core[len(core) // 2][0]


def _uncounted(what: str, why: str) -> ModelUnsupported:
    return ModelUnsupported(
        f"`text` cannot be counted: the model's tokenizer {what} ({why}); give `tokens`",
        field="chunks.text",
    )
