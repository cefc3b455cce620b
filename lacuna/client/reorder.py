"""What the reorderers of all libraries share: texts and scores in, an order out."""

from __future__ import annotations

import asyncio
import math
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from lacuna.client.clients import AsyncClient
from lacuna.client.errors import LacunaError, ServiceAway
from lacuna.client.types import Chunk, Placement

_BYTES_PER_TOKEN = 4


class Placer(Protocol):
    """Whatever places chunks: `Client`, `AsyncClient` or `OfflinePlacer`."""

    def place(
        self, chunks: Iterable[Chunk | Mapping[str, Any]], **options: Any
    ) -> Placement | Awaitable[Placement]:
        """Order chunks."""


class Reorderer:
    """Orders texts by relevance along a model's curve.

    Args:
        placer: a `Client`, an `AsyncClient` (then only `aorder` works) or an `OfflinePlacer`.
        count_tokens: of one text. Without it lengths are estimated from bytes, which is enough to
            order chunks but not to keep a budget: `max_tokens` needs the function.
        options: `profile_id`, `model` or `density`, and other fields of POST /v1/placements.

    When the service is away the given order is kept, with a warning. All other errors are raised:
    they are mistakes that would go unnoticed otherwise. How long a service that hangs may hold a
    request is up to the client: `Client(url, timeout=2, retries=0)` waits two seconds.
    """

    def __init__(
        self,
        placer: Placer,
        *,
        count_tokens: Callable[[str], int] | None = None,
        **options: Any,
    ) -> None:
        if options.get("max_tokens") is not None and count_tokens is None:
            raise LacunaError("max_tokens needs count_tokens: estimated lengths may exceed it")
        self._placer = placer
        self._count = count_tokens or estimate_tokens
        self._options = options

    def order(
        self, texts: Sequence[str], scores: Sequence[float | None], **options: Any
    ) -> list[int]:
        """Indices of the texts in their new order; dropped ones are missing."""
        if isinstance(self._placer, AsyncClient):
            raise LacunaError("an AsyncClient serves async calls only: give a Client")
        chunks, options = self._request(texts, scores, options)
        if len(chunks) < 2 and not _budget(options):
            return list(range(len(texts)))
        try:
            placed = self._placer.place(chunks, **options)
        except ServiceAway as error:
            return _given(error, len(texts))
        assert isinstance(placed, Placement)
        return [int(name) for name in placed.order]

    async def aorder(
        self, texts: Sequence[str], scores: Sequence[float | None], **options: Any
    ) -> list[int]:
        """`order` without blocking: awaits an `AsyncClient`, runs others in a thread."""
        if not isinstance(self._placer, AsyncClient):
            return await asyncio.to_thread(self.order, texts, scores, **options)
        chunks, options = self._request(texts, scores, options)
        if len(chunks) < 2 and not _budget(options):
            return list(range(len(texts)))
        try:
            placed = await self._placer.place(chunks, **options)
        except ServiceAway as error:
            return _given(error, len(texts))
        return [int(name) for name in placed.order]

    def _request(
        self, texts: Sequence[str], scores: Sequence[float | None], options: Mapping[str, Any]
    ) -> tuple[list[Chunk], dict[str, Any]]:
        """Chunks and fields of POST /v1/placements."""
        relevance = relevances(scores, len(texts))
        chunks = [
            Chunk(str(i), self._count(text), score)
            for i, (text, score) in enumerate(zip(texts, relevance, strict=True))
        ]
        fields = {**self._options, **options}
        if all(score is None for score in scores):
            # Ours, from the order: whatever the caller's scores mean when there are some.
            fields.pop("higher_is_better", None)
        return chunks, fields


def _budget(options: Mapping[str, Any]) -> bool:
    return options.get("max_tokens") is not None or options.get("max_chunks") is not None


def relevances(scores: Sequence[float | None], count: int) -> list[float]:
    """Scores as they are; without any, the list's own order as a retriever gives it: best first,
    discounted as 1 / log2(rank + 1).

    Raises:
        LacunaError: some are missing, or one is not finite: guessing would make a chunk without a
            score the best or the worst.
    """
    known = [score for score in scores if score is not None]
    if not known:
        return [1 / math.log2(rank + 2) for rank in range(count)]
    if len(known) < count:
        missing = [i for i, score in enumerate(scores) if score is None]
        raise LacunaError(f"documents {missing} have no score, others have: score all or none")
    result = [float(score) for score in known]
    if not all(map(math.isfinite, result)):
        raise LacunaError("a score is NaN or infinite")
    return result


def estimate_tokens(text: str) -> int:
    """About four bytes of UTF-8 a token: also for text without spaces or with lone surrogates."""
    size = len(text.encode(errors="surrogatepass"))
    return max(1, math.ceil(size / _BYTES_PER_TOKEN))


def _given(error: ServiceAway, count: int) -> list[int]:
    warnings.warn(f"Lacuna is away, the given order is kept: {error}", RuntimeWarning, stacklevel=4)
    return list(range(count))


__all__ = ["Placer", "Reorderer", "estimate_tokens", "relevances"]
