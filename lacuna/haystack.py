"""A ranker for Haystack, to use instead of `LostInTheMiddleRanker`."""

from __future__ import annotations

from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.utils import Secret, deserialize_secrets_inplace

from lacuna.client.clients import DEFAULT_URL, AsyncClient, Client
from lacuna.client.offline import OfflinePlacer
from lacuna.client.reorder import Placer, Reorderer


@component
class LacunaRanker:
    """Puts documents where the model listens.

    Relevance is the document's score; when no document has one, the given order counts as best
    first. Documents must be textual.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        api_key: Secret | None = None,
        profile_path: str | None = None,
        timeout: float = 5.0,
        retries: int = 1,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Nothing is connected before the first run.

        :param url: address of the service.
        :param api_key: if the service asks for one.
        :param profile_path: a saved profile: place without the service.
        :param timeout: seconds for one request; a service that hangs holds the pipeline that long.
        :param retries: attempts after the first.
        :param options: `profile_id` or `model`, and other fields of POST /v1/placements.
        """
        self.url = url
        self.api_key = api_key
        self.profile_path = profile_path
        self.timeout = timeout
        self.retries = retries
        self.options = dict(options or {})
        self._offline: OfflinePlacer | None = None

    def to_dict(self) -> dict[str, Any]:
        """The arguments of the constructor, for `Pipeline.dumps`."""
        saved: dict[str, Any] = default_to_dict(
            self,
            url=self.url,
            api_key=self.api_key.to_dict() if self.api_key else None,
            profile_path=self.profile_path,
            timeout=self.timeout,
            retries=self.retries,
            options=self.options,
        )
        return saved

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LacunaRanker:
        """The component as `to_dict` described it, for `Pipeline.loads`."""
        data = {**data, "init_parameters": dict(data["init_parameters"])}
        deserialize_secrets_inplace(data["init_parameters"], keys=["api_key"])
        loaded: LacunaRanker = default_from_dict(cls, data)
        return loaded

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        """Reorder; the list and its documents are not changed.

        :param documents: to reorder.
        :returns: `documents`, a new list.
        """
        offline = self._offline_placer()
        if offline is not None:
            return self._ordered(documents, offline)
        with Client(self.url, **self._settings()) as client:
            return self._ordered(documents, client)

    @component.output_types(documents=list[Document])
    async def run_async(self, documents: list[Document]) -> dict[str, list[Document]]:
        """`run` without blocking.

        :param documents: to reorder.
        :returns: `documents`, a new list.
        """
        texts, scores = _read(documents)
        offline = self._offline_placer()
        if offline is not None:
            order = await Reorderer(offline, **self.options).aorder(texts, scores)
        else:
            async with AsyncClient(self.url, **self._settings()) as client:
                order = await Reorderer(client, **self.options).aorder(texts, scores)
        return {"documents": [documents[i] for i in order]}

    def _offline_placer(self) -> OfflinePlacer | None:
        """Reads the profile at the first run; None where a service places."""
        if self.profile_path is not None and self._offline is None:
            self._offline = OfflinePlacer(self.profile_path)
        return self._offline

    def _ordered(self, documents: list[Document], placer: Placer) -> dict[str, list[Document]]:
        order = Reorderer(placer, **self.options).order(*_read(documents))
        return {"documents": [documents[i] for i in order]}

    def _settings(self) -> dict[str, Any]:
        return {
            "api_key": self.api_key.resolve_value() if self.api_key else None,
            "timeout": self.timeout,
            "retries": self.retries,
        }


def _read(documents: list[Document]) -> tuple[list[str], list[float | None]]:
    texts = []
    for document in documents:
        if document.content is None:
            raise ValueError(f"document {document.id} has no text: only texts can be ranked")
        texts.append(document.content)
    return texts, [document.score for document in documents]
