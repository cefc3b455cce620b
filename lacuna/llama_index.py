"""A node postprocessor for LlamaIndex, to use instead of `LongContextReorder`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from lacuna.client.reorder import Placer, Reorderer


class LacunaReorder(BaseNodePostprocessor):
    """Puts nodes where the model listens.

    Args:
        placer: `lacuna.Client`, `lacuna.AsyncClient` (for `apostprocess_nodes`) or
            `lacuna.OfflinePlacer`.
        count_tokens: of one text; needed for `max_tokens`.
        options: `profile_id` or `model`, and other fields of POST /v1/placements.

    Relevance is the node's score; when no node has one, the given order counts as best first.
    """

    _reorderer: Reorderer = PrivateAttr()

    def __init__(
        self,
        placer: Placer,
        *,
        count_tokens: Callable[[str], int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._reorderer = Reorderer(placer, count_tokens=count_tokens, **options)

    @classmethod
    def class_name(cls) -> str:
        """Name under which LlamaIndex saves and loads it."""
        return "LacunaReorder"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return [nodes[i] for i in self._reorderer.order(*_read(nodes))]

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return [nodes[i] for i in await self._reorderer.aorder(*_read(nodes))]


def _read(nodes: list[NodeWithScore]) -> tuple[list[str], list[float | None]]:
    texts = [one.node.get_content(metadata_mode=MetadataMode.LLM) for one in nodes]
    return texts, [one.score for one in nodes]
