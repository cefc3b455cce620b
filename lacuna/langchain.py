"""A document transformer for LangChain, to use instead of `LongContextReorder`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.documents import BaseDocumentTransformer, Document

from lacuna.client.errors import Refused
from lacuna.client.reorder import OnError, Placer, Reorderer

SCORE_KEY = "relevance_score"


class LacunaReorder(BaseDocumentTransformer):
    """Puts documents where the model listens.

    Args:
        placer: `lacuna.Client`, `lacuna.AsyncClient` (for `atransform_documents`) or
            `lacuna.OfflinePlacer`.
        score_key: metadata key of the relevance. The default is `relevance_score`, which rerankers
            write. When no document has the key, the given order counts as best first, as a
            retriever gives it, with a `RuntimeWarning`; a key that you name must be there with
            `on_error="raise"`.
        count_tokens: of one text; needed for `max_tokens`.
        on_error, timeout, fallback: see `lacuna.Reorderer`. By default nothing is raised when
            documents are transformed, and it takes a second at most.
        options: `profile_id` or `model`, and other fields of POST /v1/placements. Scores count as
            `relevance_scale="score"`, higher is better; where a store gives distances, say
            `relevance_scale="distance"`.
    """

    def __init__(
        self,
        placer: Placer,
        *,
        score_key: str | None = None,
        count_tokens: Callable[[str], int] | None = None,
        on_error: OnError = "keep",
        timeout: float = 1.0,
        fallback: Placer | None = None,
        **options: Any,
    ) -> None:
        self.score_key = score_key
        self.reorderer = Reorderer(
            placer,
            count_tokens=count_tokens,
            on_error=on_error,
            timeout=timeout,
            fallback=fallback,
            **options,
        )

    def transform_documents(
        self, documents: Sequence[Document], **kwargs: Any
    ) -> Sequence[Document]:
        """A new list; neither the sequence nor its documents are changed."""
        documents = list(documents)
        order = self.reorderer.order(*self._read(documents), **kwargs)
        return [documents[i] for i in order]

    async def atransform_documents(
        self, documents: Sequence[Document], **kwargs: Any
    ) -> Sequence[Document]:
        """`transform_documents` without blocking."""
        documents = list(documents)
        order = await self.reorderer.aorder(*self._read(documents), **kwargs)
        return [documents[i] for i in order]

    def _read(self, documents: list[Document]) -> tuple[list[str], list[float | None]]:
        texts = [document.page_content for document in documents]
        key = SCORE_KEY if self.score_key is None else self.score_key
        scores = [document.metadata.get(key) for document in documents]
        if texts and all(score is None for score in scores):
            keys = sorted({str(name) for document in documents for name in document.metadata})
            message = f"no document has {key!r} in its metadata, which has {keys}"
            if self.score_key is not None and self.reorderer.on_error == "raise":
                raise Refused(message, field="score_key")
            if len(texts) > 1:
                self.reorderer.warn_unscored(f"{message} (score_key names another key)")
        return texts, scores
