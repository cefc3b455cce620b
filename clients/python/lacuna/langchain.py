"""A document transformer for LangChain, in the place of `LongContextReorder`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.documents import BaseDocumentTransformer, Document

from lacuna.reorder import Placer, Reorderer


class LacunaReorder(BaseDocumentTransformer):
    """Puts documents where the model listens.

    Args:
        placer: `lacuna.Client`, `lacuna.AsyncClient` (for `atransform_documents`) or
            `lacuna.offline.OfflinePlacer`.
        score_key: metadata key of the relevance, as rerankers write it. When no document has it,
            the given order counts as best first.
        count_tokens: of one text; needed for `max_tokens`.
        options: `profile_id` or `model`, and other fields of POST /v1/placements.
    """

    def __init__(
        self,
        placer: Placer,
        *,
        score_key: str = "relevance_score",
        count_tokens: Callable[[str], int] | None = None,
        **options: Any,
    ) -> None:
        self.score_key = score_key
        self._reorderer = Reorderer(placer, count_tokens=count_tokens, **options)

    def transform_documents(
        self, documents: Sequence[Document], **kwargs: Any
    ) -> Sequence[Document]:
        """A new list; neither the sequence nor its documents are changed."""
        documents = list(documents)
        order = self._reorderer.order(*self._read(documents), **kwargs)
        return [documents[i] for i in order]

    async def atransform_documents(
        self, documents: Sequence[Document], **kwargs: Any
    ) -> Sequence[Document]:
        """`transform_documents` without blocking."""
        documents = list(documents)
        order = await self._reorderer.aorder(*self._read(documents), **kwargs)
        return [documents[i] for i in order]

    def _read(self, documents: list[Document]) -> tuple[list[str], list[float | None]]:
        texts = [document.page_content for document in documents]
        return texts, [document.metadata.get(self.score_key) for document in documents]
