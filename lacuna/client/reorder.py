"""What the reorderers of all libraries share: texts and scores in, an order out."""

from __future__ import annotations

import asyncio
import math
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from lacuna.client.clients import AsyncClient
from lacuna.client.errors import Refused, ServiceAway
from lacuna.contract.placements import Chunk, PlacementResponse

__all__ = ["Placer", "Reorderer", "estimate_tokens", "relevances"]

_BYTES_PER_TOKEN = 4


class Placer(Protocol):
    """What places chunks: a `Client`, an `AsyncClient` or an `OfflinePlacer`."""

    def place(
        self, chunks: Iterable[Chunk | Mapping[str, Any]], **options: Any
    ) -> PlacementResponse | Awaitable[PlacementResponse]:
        """The best order of the chunks."""


class Reorderer:
    """Orders texts by relevance along a model's curve.

    Args:
        placer: a `Client`, an `AsyncClient` (then only `aorder` works) or an `OfflinePlacer`.
        count_tokens: of one text. Without it lengths are estimated from bytes, which is enough to
            order chunks but not to keep a budget: `max_tokens` needs the function.
        options: `profile_id`, `model` or `density`, and other fields of POST /v1/placements.

    When the service is away, the given order is kept, with a `RuntimeWarning`. All other errors
    are raised: they are mistakes that would go unnoticed otherwise. The client decides how long a
    service that hangs may hold a request: `Client(url, timeout=2, retries=0)` waits two seconds.

    Raises:
        Refused: `max_tokens` without `count_tokens`.
    """

    def __init__(
        self,
        placer: Placer,
        *,
        count_tokens: Callable[[str], int] | None = None,
        **options: Any,
    ) -> None:
        if options.get("max_tokens") is not None and count_tokens is None:
            raise Refused(
                "max_tokens needs count_tokens: estimated lengths may exceed it", field="max_tokens"
            )
        self._placer = placer
        self._count = count_tokens or estimate_tokens
        self._options = options

    def order(
        self, texts: Sequence[str], scores: Sequence[float | None], **options: Any
    ) -> list[int]:
        """Indices of the texts in their new order; dropped ones are missing.

        Args:
            scores: one for each text, or None for all of them: see `relevances`.
            options: fields of POST /v1/placements, over those of the constructor.
        """
        if isinstance(self._placer, AsyncClient):
            raise Refused("an AsyncClient serves async calls only: give a Client")
        chunks, options = self._request(texts, scores, options)
        if len(chunks) < 2 and not _has_budget(options):
            return list(range(len(texts)))
        try:
            placed = self._placer.place(chunks, **options)
        except ServiceAway as error:
            return _given_order(error, len(texts))
        assert isinstance(placed, PlacementResponse)
        return [int(name) for name in placed.order]

    async def aorder(
        self, texts: Sequence[str], scores: Sequence[float | None], **options: Any
    ) -> list[int]:
        """`order` without blocking: awaits an `AsyncClient`, runs others in a thread."""
        if not isinstance(self._placer, AsyncClient):
            return await asyncio.to_thread(self.order, texts, scores, **options)
        chunks, options = self._request(texts, scores, options)
        if len(chunks) < 2 and not _has_budget(options):
            return list(range(len(texts)))
        try:
            placed = await self._placer.place(chunks, **options)
        except ServiceAway as error:
            return _given_order(error, len(texts))
        return [int(name) for name in placed.order]

    def _request(
        self, texts: Sequence[str], scores: Sequence[float | None], options: Mapping[str, Any]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Chunks, named by their index, and the other fields of POST /v1/placements."""
        chunks = [
            {"id": str(i), "tokens": int(self._count(text)), "relevance": relevance}
            for i, (text, relevance) in enumerate(
                zip(texts, relevances(scores, len(texts)), strict=True)
            )
        ]
        fields = {**self._options, **options}
        if all(score is None for score in scores):
            # These relevances are made from the order, and larger is better, whatever the caller's
            # own scores mean when there are some.
            fields.pop("higher_is_better", None)
        return chunks, fields


def relevances(scores: Sequence[float | None], count: int) -> list[float]:
    """Scores as they are. Without any, the list's own order as a retriever gives it: best first,
    discounted as 1 / log2(rank + 1), rank 1 being the first.

    Raises:
        Refused: some are missing, or one is not finite: guessing would make a chunk without a
            score the best or the worst.
    """
    known = [score for score in scores if score is not None]
    if not known:
        return [1 / math.log2(rank + 2) for rank in range(count)]
    if len(known) < count:
        missing = [i for i, score in enumerate(scores) if score is None]
        raise Refused(f"documents {missing} have no score, others have: score all or none")
    result = [float(score) for score in known]
    if not all(map(math.isfinite, result)):
        raise Refused("a score is NaN or infinite")
    return result


def estimate_tokens(text: str) -> int:
    """About four bytes of UTF-8 a token: also for text without spaces or with lone surrogates."""
    size = len(text.encode(errors="surrogatepass"))
    return max(1, math.ceil(size / _BYTES_PER_TOKEN))


def _has_budget(options: Mapping[str, Any]) -> bool:
    """Whether even a single text may be dropped."""
    return options.get("max_tokens") is not None or options.get("max_chunks") is not None


def _given_order(error: ServiceAway, count: int) -> list[int]:
    warnings.warn(f"Lacuna is away, the given order is kept: {error}", RuntimeWarning, stacklevel=4)
    return list(range(count))
