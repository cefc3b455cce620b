"""Put chunks in order: find the curve that the request names, count its texts, and place.

`answer` is where it starts. `lacuna.placement` does the work once a curve is known; what is added
here needs the store: profiles, and the tokenizers that workers published. `calibrate` turns a
retriever's scores into the probabilities that placements ask for.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from lacuna.architectures.table import find
from lacuna.contract.calibrations import Calibration, CalibrationRequest
from lacuna.contract.errors import InvalidRequest, ProfileNotFound
from lacuna.contract.placements import Chunk, PlacementRequest, PlacementResponse, Source
from lacuna.contract.profiles import ProfileBody, ProfilePage, ProfileSummary
from lacuna.placement import curve as curves
from lacuna.placement.answer import place
from lacuna.placement.curve import PlacementCurve, architecture_by_name
from lacuna.placement.profile_curve import architecture_of, by_suitability, of_profile
from lacuna.placement.score_calibration import fit
from service.store.profiles import StoredProfile

Compute = Callable[..., Awaitable[Any]]
"""Awaits a call of its first argument with the others, in another thread."""
_INLINE_CHUNKS, _INLINE_TOKENS = 64, 32_768
"""Up to this size the answer takes a few milliseconds, and is computed on the event loop."""
_SEARCHED = 50
"""Newest profiles of a model that are considered."""


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
    known: Curves | None = None,
) -> PlacementResponse:
    """Order the chunks by the curve that the request names.

    Args:
        request: validated.
        profiles: what is stored.
        counter: of texts; without one they are refused.
        compute: runs what takes longer than a few milliseconds, off the event loop.
        known: curves from earlier calls; None keeps none.

    Raises:
        InvalidRequest: pins that contradict each other, a curve that the profile lacks, texts
            that cannot be counted.
        ProfileNotFound: no such profile, or none of this model that serves.
        TooLong: the prompt exceeds `MAX_TOKENS`.
        StoreUnavailable: the store is away.
    """
    reader = _Reader(profiles, known or Curves(), compute)
    curve = await _find_curve(request, reader)
    counts = await _count(request.chunks, curve, counter)
    slow = curve.basis == "theory" or request.max_chunks == "auto"
    if len(counts) <= _INLINE_CHUNKS and sum(counts) <= _INLINE_TOKENS and not slow:
        return place(request, curve, counts)
    placed: PlacementResponse = await compute(place, request, curve, counts)
    return placed


@dataclass(frozen=True)
class _Reader:
    """Where the curves of one placement come from; see `answer`."""

    profiles: ProfileReader
    known: Curves
    compute: Compute

    async def curve(self, profile_id: str, source: Source | None) -> PlacementCurve | None:
        """A curve of a stored profile; None when there is no such profile."""
        if (fresh := self.known.fresh(profile_id, source)) is not None:
            return fresh
        stored = await self.profiles.get(profile_id)
        if stored is None:
            return None
        return await self.known.of_profile(profile_id, stored.body, source, self.compute)

    async def body(self, profile_id: str) -> ProfileBody | None:
        """A stored profile as a whole, or None."""
        stored = await self.profiles.get(profile_id)
        if stored is None:
            return None
        parsed: ProfileBody = await self.compute(ProfileBody.of_stored, stored.body)
        return parsed


async def _find_curve(request: PlacementRequest, reader: _Reader) -> PlacementCurve:
    """The curve that the request names; see `answer` for errors."""
    if request.density is not None:
        return curves.of_density(request.density)
    if request.profile_id is not None:
        found = await reader.curve(request.profile_id, request.source)
        if found is None:
            raise ProfileNotFound(
                f"no profile {request.profile_id}, or it was evicted", field="profile_id"
            )
        return found
    if request.model is None:
        assert request.architecture is not None
        return curves.of_architecture(request.architecture)
    return await _of_model(request, request.model, reader)


async def _of_model(request: PlacementRequest, model: str, reader: _Reader) -> PlacementCurve:
    """The most suitable profile that has the source, with trained weights unless the model is a
    preset, which has none; else theory, if allowed."""
    untrained = model.startswith("preset:")
    page = await reader.profiles.summaries(model, _SEARCHED)
    refusal: InvalidRequest | None = None
    fit = [one for one in page.items if untrained or one.weights == "pretrained"]
    for summary in by_suitability(fit, request):
        try:
            found = await reader.curve(summary.id, request.source)
        except InvalidRequest as error:
            refusal = refusal or error
            continue
        if found is not None:
            return found
    if request.allow_theory:
        return await _theory(request, model, page.items, reader)
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
    reader: _Reader,
) -> PlacementCurve:
    """By the architecture given, else that of any profile of the model, else as known by name."""
    body = await reader.body(measured[0].id) if measured else None
    tokenizer = None if body is None else body.model.tokenizer_digest
    longest = None if body is None else body.model.max_length
    if body is None and (known := find(model)) is not None:
        longest = known.max_length
    architecture = request.architecture
    if architecture is None:
        architecture = architecture_by_name(model) if body is None else architecture_of(body)
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


def calibrate(request: CalibrationRequest) -> Calibration:
    """The calibration of labelled scores, with its reliability.

    Raises:
        InvalidRequest: fewer than 20 labels of a kind, one question only, or scores that do not
            rise with the labels on the scale given.
    """
    questions = None
    if request.questions is not None:
        questions = np.unique(np.array(request.questions), return_inverse=True)[1]
    try:
        found = fit(
            np.array(request.scores),
            np.array(request.labels),
            questions,
            family=request.family,
            higher_is_better=request.higher_is_better,
        )
    except ValueError as error:
        raise InvalidRequest(str(error), field="labels") from error
    wire = found.to_dict()
    return Calibration.model_validate({**wire, "x": list(wire["x"]), "y": list(wire["y"])})


class Curves:
    """Curves of profiles, ready for placing, without the profiles that they come from. One per
    gateway process.

    Args:
        most: bytes of all that are kept; the least recently used go first.
        seconds: for which a curve is used before the store is asked again whether its profile is
            still there: another gateway may have deleted it.
    """

    def __init__(self, most: int = 32_000_000, seconds: float = 60.0) -> None:
        self._most, self._seconds = most, seconds
        self._kept: OrderedDict[tuple[str, Source | None], PlacementCurve] = OrderedDict()
        self._seen: dict[str, float] = {}
        self._bytes = 0

    def fresh(self, profile_id: str, source: Source | None) -> PlacementCurve | None:
        """The curve, if its profile was there a short while ago; the store is not asked."""
        if time.monotonic() - self._seen.get(profile_id, -math.inf) > self._seconds:
            return None
        found = self._kept.get((profile_id, source))
        if found is not None:
            self._kept.move_to_end((profile_id, source))
        return found

    def forget(self, profile_id: str) -> None:
        """The profile was deleted here: ask the store the next time."""
        self._seen.pop(profile_id, None)

    async def of_profile(
        self, profile_id: str, document: bytes, source: Source | None, compute: Compute
    ) -> PlacementCurve:
        """As `lacuna.placement.profile_curve.of_profile`, parsed by `compute`.

        Args:
            profile_id: names the document for good, because profiles never change.
            document: the profile's body as JSON.
            source: which curve; None chooses.
            compute: where to parse.

        Raises:
            InvalidRequest: the profile has no such curve, or only bins of it.
        """
        key = (profile_id, source)
        self._seen[profile_id] = time.monotonic()
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        curve: PlacementCurve = await compute(of_profile, document, source)
        if key not in self._kept:
            self._kept[key] = curve
            self._bytes += curve.nbytes
        while self._bytes > self._most:
            (other, _), gone = self._kept.popitem(last=False)
            self._bytes -= gone.nbytes
            self._seen.pop(other, None)
        return curve
