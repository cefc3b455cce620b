"""Put chunks in order: find the curve that the request names, count its texts, and place.

`answer` is where it starts. `lacuna.placement` does the work once a curve is known; what is added
here needs the store: profiles, and the tokenizers that workers published.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from tokenizers import Tokenizer

from lacuna.contract.errors import InvalidRequest, ModelUnsupported, ProfileNotFound
from lacuna.contract.placements import Chunk, PlacementRequest, PlacementResponse
from lacuna.contract.profiles import ProfileBody, ProfilePage, ProfileSummary
from lacuna.placement import curve as curves
from lacuna.placement.answer import place
from lacuna.placement.architecture import architecture_by_name, architecture_of
from lacuna.placement.curve import PlacementCurve
from lacuna.placement.suitability import by_suitability
from service.panics import failures_as
from service.store.profiles import StoredProfile, TokenizerStore

Compute = Callable[..., Awaitable[PlacementResponse]]
"""Awaits a call of its first argument with the others, in another thread."""
_INLINE_CHUNKS, _INLINE_TOKENS = 64, 32_768
"""Up to this size the answer takes a few milliseconds, and is computed on the event loop."""
_SEARCHED = 50
"""Newest profiles of a model that are considered."""
_TOKENIZERS = 8
"""Tokenizers that are kept in memory."""


class ProfileReader(Protocol):
    """What this use case needs of `service.answers.profiles.Profiles`."""

    async def get(self, profile_id: str) -> StoredProfile | None:
        """The stored profile, or None."""

    async def summaries(
        self, model: str | None = None, limit: int = 20, cursor: str | None = None
    ) -> ProfilePage:
        """A page of summaries, newest first."""


class TokenCounter(Protocol):
    """Counts texts as a model's tokenizer does."""

    async def count(self, tokenizer_digest: str, texts: Sequence[str]) -> list[int] | None:
        """Tokens of each text; None when the tokenizer is not available."""


async def answer(
    request: PlacementRequest,
    profiles: ProfileReader,
    counter: TokenCounter | None = None,
    compute: Compute = asyncio.to_thread,
) -> PlacementResponse:
    """Order the chunks by the curve that the request names.

    Args:
        request: validated.
        profiles: what is stored.
        counter: of texts; without one they are refused.
        compute: runs what takes longer than a few milliseconds, off the event loop.

    Raises:
        InvalidRequest: pins that contradict each other, a curve that the profile lacks, texts
            that cannot be counted.
        ProfileNotFound: no such profile, or none of this model that serves.
        TooLong: the prompt exceeds `MAX_TOKENS`.
        StoreUnavailable: the store is away.
    """
    curve = await _find_curve(request, profiles)
    counts = await _count(request.chunks, curve, counter)
    slow = curve.basis == "theory" or request.max_chunks == "auto"
    if len(counts) <= _INLINE_CHUNKS and sum(counts) <= _INLINE_TOKENS and not slow:
        return place(request, curve, counts)
    return await compute(place, request, curve, counts)


async def _find_curve(request: PlacementRequest, profiles: ProfileReader) -> PlacementCurve:
    """The curve that the request names; see `answer` for errors."""
    if request.density is not None:
        return curves.of_density(request.density)
    if request.profile_id is not None:
        stored = await profiles.get(request.profile_id)
        if stored is None:
            raise ProfileNotFound(
                f"no profile {request.profile_id}, or it was evicted", field="profile_id"
            )
        return curves.of_profile(stored.body, request.source)
    if request.model is None:
        assert request.architecture is not None
        return curves.of_architecture(request.architecture)
    return await _of_model(request, request.model, profiles)


async def _of_model(
    request: PlacementRequest, model: str, profiles: ProfileReader
) -> PlacementCurve:
    """The most suitable profile that has the source, with trained weights unless the model is a
    preset, which has none; else theory, if allowed."""
    untrained = model.startswith("preset:")
    page = await profiles.summaries(model, _SEARCHED)
    refusal: InvalidRequest | None = None
    fit = [one for one in page.items if untrained or one.weights == "pretrained"]
    for summary in by_suitability(fit, request):
        stored = await profiles.get(summary.id)
        if stored is None:
            continue
        try:
            return curves.of_profile(stored.body, request.source)
        except InvalidRequest as error:
            refusal = refusal or error
    if request.allow_theory:
        return await _theory(request, model, page.items, profiles)
    if refusal is not None:
        raise refusal
    raise ProfileNotFound(
        f"no profile of {model} with trained weights: measure one with POST /v1/profiles, or set "
        "`allow_theory`",
        field="model",
    )


async def _theory(
    request: PlacementRequest,
    model: str,
    measured: Sequence[ProfileSummary],
    profiles: ProfileReader,
) -> PlacementCurve:
    """By the architecture given, else that of any profile of the model, else as known by name."""
    stored = [await profiles.get(summary.id) for summary in measured[:1]]
    bodies = [ProfileBody.of_stored(one.body) for one in stored if one is not None]
    tokenizer = bodies[0].model.tokenizer_digest if bodies else None
    longest = bodies[0].model.max_length if bodies else None
    architecture = request.architecture
    if architecture is None:
        architecture = architecture_of(bodies[0]) if bodies else architecture_by_name(model)
    if architecture is None:
        raise ProfileNotFound(
            "nothing is known about this model's architecture: give `architecture`", field="model"
        )
    return curves.of_architecture(architecture, longest, tokenizer)


async def _count(
    chunks: Sequence[Chunk], curve: PlacementCurve, counter: TokenCounter | None
) -> list[int]:
    """Tokens of each chunk: as given, or of its text."""
    texts = [chunk.text for chunk in chunks if chunk.text is not None]
    counted: list[int] | None = []
    if texts:
        if counter is not None and curve.tokenizer_digest is not None:
            counted = await counter.count(curve.tokenizer_digest, texts)
        else:
            counted = None
    if counted is None:
        raise InvalidRequest(
            "`text` cannot be counted: the tokenizer of the model behind this curve is not "
            "available; give `tokens`",
            field="chunks.text",
        )
    rest = iter(counted)
    return [chunk.tokens if chunk.tokens is not None else next(rest) for chunk in chunks]


class TokenCounts:
    """Counts texts with a model's own tokenizer, without the model and without the hub.

    Tokenizers come from the store; the last few stay in memory. One per gateway process.
    """

    def __init__(self, store: TokenizerStore) -> None:
        self._store = store
        self._loaded: OrderedDict[str, Tokenizer] = OrderedDict()

    async def count(self, tokenizer_digest: str, texts: Sequence[str]) -> list[int] | None:
        """Tokens of each text, without special tokens; None when no worker has published the
        tokenizer.

        Raises:
            StoreUnavailable: Redis is away.
            ModelUnsupported: the tokenizer fails on a text, or this version cannot read it.
        """
        tokenizer = self._loaded.get(tokenizer_digest)
        if tokenizer is None:
            document = await self._store.get(tokenizer_digest)
            if document is None:
                return None
            tokenizer = await asyncio.to_thread(_load, document)
            self._loaded[tokenizer_digest] = tokenizer
            while len(self._loaded) > _TOKENIZERS:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(tokenizer_digest)
        return await asyncio.to_thread(_count_all, tokenizer, list(texts))


def _load(document: str) -> Tokenizer:
    with failures_as(lambda why: _uncounted("cannot be read", why)):
        tokenizer = Tokenizer.from_str(document)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _count_all(tokenizer: Tokenizer, texts: list[str]) -> list[int]:
    with failures_as(lambda why: _uncounted("fails on a text", why)):
        encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [len(one.ids) for one in encoded]


def _uncounted(what: str, why: str) -> ModelUnsupported:
    return ModelUnsupported(
        f"`text` cannot be counted: the model's tokenizer {what} ({why}); give `tokens`",
        field="chunks.text",
    )
