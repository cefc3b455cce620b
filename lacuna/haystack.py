"""A ranker for Haystack, to use instead of `LostInTheMiddleRanker`."""

from __future__ import annotations

import warnings
from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.utils import Secret, deserialize_secrets_inplace

from lacuna.client.clients import DEFAULT_URL, Client, check_address
from lacuna.client.errors import Refused
from lacuna.client.offline import OfflinePlacer
from lacuna.client.reorder import OnError, Placer, Reorderer, check_options


@component
class LacunaRanker:
    """Puts documents where the model listens.

    Relevance is the document's score; when no document has one, the given order counts as best
    first, with a warning. Documents must be textual.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        api_key: Secret | None = None,
        profile_path: str | None = None,
        timeout: float = 1.0,
        on_error: OnError = "keep",
        fallback_path: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Profiles are read now; nothing is connected before the first run.

        :param url: address of the service.
        :param api_key: if the service asks for one.
        :param profile_path: a saved profile: place without the service.
        :param timeout: seconds for one run in all.
        :param on_error: `keep` keeps the given order with a warning whatever goes wrong, `raise`
            raises.
        :param fallback_path: a saved profile that places when the service does not.
        :param options: `profile_id` or `model`, and other fields of POST /v1/placements. Scores
            count as `relevance_scale: score`; where a store gives distances, say `distance`.
        """
        self.url = url
        self.api_key = api_key
        self.profile_path = profile_path
        self.timeout = timeout
        self.on_error = on_error
        self.fallback_path = fallback_path
        self.options = dict(options or {})
        self._reorderer: Reorderer | None = None
        check_options(self.options, on_error, counted=False)
        # A file that is missing is found now, and not by the first question.
        self._profile = None if profile_path is None else OfflinePlacer(profile_path)
        self._fallback = None if fallback_path is None else OfflinePlacer(fallback_path)
        if profile_path is None:
            check_address(url)

    def to_dict(self) -> dict[str, Any]:
        """The arguments of the constructor, for `Pipeline.dumps`."""
        saved: dict[str, Any] = default_to_dict(
            self,
            url=self.url,
            api_key=self.api_key.to_dict() if self.api_key else None,
            profile_path=self.profile_path,
            timeout=self.timeout,
            on_error=self.on_error,
            fallback_path=self.fallback_path,
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
    def run(self, documents: list[Document], top_k: int | None = None) -> dict[str, list[Document]]:
        """Reorder; the list and its documents are not changed.

        :param documents: to reorder.
        :param top_k: keep the most relevant ones only.
        :returns: `documents`, a new list.
        """
        order = self.reorderer().order(*self._read(documents), **_most(top_k))
        return {"documents": [documents[i] for i in order]}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, documents: list[Document], top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """`run` without blocking.

        :param documents: to reorder.
        :param top_k: keep the most relevant ones only.
        :returns: `documents`, a new list.
        """
        order = await self.reorderer().aorder(*self._read(documents), **_most(top_k))
        return {"documents": [documents[i] for i in order]}

    def _read(self, documents: list[Document]) -> tuple[list[str], list[float | None]]:
        """Texts and scores; one without text counts as empty unless errors are raised."""
        for document in documents:
            if document.content is None:
                message = f"document {document.id} has no text: only texts can be ranked"
                if self.on_error == "raise":
                    raise Refused(message)
                warnings.warn(message, RuntimeWarning, stacklevel=3)
        return [one.content or "" for one in documents], [one.score for one in documents]

    def reorderer(self) -> Reorderer:
        """What places, made at the first run; its `counts` tell what was placed and kept."""
        if self._reorderer is None:
            placer: Placer
            if self._profile is not None:
                placer = self._profile
            else:
                key = self.api_key.resolve_value() if self.api_key else None
                # The reorderer's own limit counts; a second attempt would come after it.
                placer = Client(self.url, api_key=key, timeout=self.timeout, retries=0)
            self._reorderer = Reorderer(
                placer,
                on_error=self.on_error,
                timeout=self.timeout,
                fallback=self._fallback,
                **self.options,
            )
        return self._reorderer


def _most(top_k: int | None) -> dict[str, Any]:
    return {} if top_k is None else {"max_chunks": top_k}
