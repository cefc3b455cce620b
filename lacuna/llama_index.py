"""A node postprocessor for LlamaIndex, to use instead of `LongContextReorder`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llama_index.core.bridge.pydantic import BaseModel, Field, PrivateAttr
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from lacuna.client.clients import DEFAULT_URL, Client
from lacuna.client.offline import OfflinePlacer
from lacuna.client.reorder import OnError, Placer, Reorderer


class LacunaReorder(BaseNodePostprocessor):
    """Puts nodes where the model listens.

    Args:
        placer: `lacuna.Client`, `lacuna.AsyncClient` (for `apostprocess_nodes`),
            `lacuna.CachedPlacer` or `lacuna.OfflinePlacer`. Without one, a client of `url`, or the
            profile at `profile_path`; only such a postprocessor can be saved and loaded.
        url: address of the service.
        profile_path: a saved profile: place without the service.
        suffix_tokens: of what follows the nodes in your prompt, without the question, whose length
            is added for each query.
        options: `profile_id` or `model`, and other fields of POST /v1/placements. Scores count as
            `relevance_scale="score"`; where a store gives distances, say `"distance"`.
        count_tokens: of one text; needed for `max_tokens`.
        on_error, timeout, fallback: see `lacuna.Reorderer`.

    Relevance is the node's score; when no node has one, the given order counts as best first, with
    a warning.
    """

    url: str = Field(default=DEFAULT_URL)
    profile_path: str | None = Field(default=None)
    suffix_tokens: int = Field(default=0, ge=0)
    on_error: OnError = Field(default="keep")
    timeout: float = Field(default=1.0, gt=0)
    options: dict[str, Any] = Field(default_factory=dict)
    _reorderer: Reorderer = PrivateAttr()

    def __init__(
        self,
        placer: Placer | None = None,
        *,
        count_tokens: Callable[[str], int] | None = None,
        fallback: Placer | None = None,
        options: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        own = {name: fields.pop(name) for name in tuple(fields) if name in type(self).model_fields}
        super().__init__(**own, options={**(options or {}), **fields})
        if placer is None:
            placer = (
                Client(self.url) if self.profile_path is None else OfflinePlacer(self.profile_path)
            )
        self._reorderer = Reorderer(
            placer,
            count_tokens=count_tokens,
            on_error=self.on_error,
            timeout=self.timeout,
            fallback=fallback,
            **self.options,
        )

    # LlamaIndex unpickles by calling the constructor with the fields, and so would silently replace
    # the placer by a client of `url`. These two are pydantic's own.
    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = BaseModel.__getstate__(self)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        BaseModel.__setstate__(self, state)

    @classmethod
    def class_name(cls) -> str:
        """Name under which LlamaIndex saves and loads it."""
        return "LacunaReorder"

    @property
    def reorderer(self) -> Reorderer:
        """With the `counts` of what was placed and kept."""
        return self._reorderer

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        order = self._reorderer.order(*_read(nodes), **self._behind(query_bundle))
        return [nodes[i] for i in order]

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        order = await self._reorderer.aorder(*_read(nodes), **self._behind(query_bundle))
        return [nodes[i] for i in order]

    def _behind(self, query: QueryBundle | None) -> dict[str, Any]:
        """Tokens after the nodes: the template's and the question's."""
        asked = 0 if query is None else self._reorderer.count(query.query_str)
        return {"suffix_tokens": self.suffix_tokens + asked}


def _read(nodes: list[NodeWithScore]) -> tuple[list[str], list[float | None]]:
    texts = [one.node.get_content(metadata_mode=MetadataMode.LLM) for one in nodes]
    return texts, [one.score for one in nodes]
