"""Placement without a service, along a saved profile: for machines without a network.

The arithmetic is the one that the service runs, so both give the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import to_json

from lacuna.client.answers import PlacementResponse
from lacuna.client.chunks import placement_request
from lacuna.client.errors import Refused
from lacuna.contract import placements, validation
from lacuna.contract.errors import InvalidRequest, LacunaError
from lacuna.contract.placements import Chunk, PlacementRequest
from lacuna.contract.profiles import Profile

if TYPE_CHECKING:
    from lacuna.placement.curve import PlacementCurve


class OfflinePlacer:
    """Places chunks by one profile; may stand wherever a `Client` places, in the reorderers too.

    Args:
        profile: path of a profile saved as JSON (`Client.export`, or `lacuna profile`), the same
            as a mapping, or a `Profile`.

    Raises:
        Refused: the file holds no profile.
    """

    def __init__(self, profile: str | Path | Profile | Mapping[str, Any]) -> None:
        if isinstance(profile, str | Path):
            self._profile = parse_profile(Path(profile).read_bytes(), str(profile))
        elif isinstance(profile, Profile):
            self._profile = profile
        else:
            self._profile = parse_profile(to_json(profile), "the mapping")
        self._curves: dict[str | None, PlacementCurve] = {}

    @property
    def profile_id(self) -> str:
        """Id of the profile."""
        return self._profile.id

    def place(
        self, chunks: Iterable[Chunk | Mapping[str, Any]], **options: Any
    ) -> PlacementResponse:
        """As `Client.place`, along this profile. Chunks need `tokens`: there is no tokenizer here.

        Raises:
            Refused: the service would refuse the request too, or it names another profile.
        """
        named = {name: options[name] for name in ("profile_id", "model") if options.get(name)}
        if named.get("profile_id", self.profile_id) != self.profile_id or (
            named.get("model", self._profile.model.id) != self._profile.model.id
        ):
            raise Refused(f"this file holds profile {self.profile_id}, not {named}")
        options = {name: value for name, value in options.items() if name not in named}
        request = parse_request(chunks, {**options, "profile_id": self.profile_id})
        try:
            if request.source not in self._curves:
                self._curves[request.source] = curve_of(request, self._profile)
            answer = place_along(request, self._curves[request.source])
        except LacunaError as error:
            raise Refused.of_error(error) from error
        return PlacementResponse.of(answer)


def parse_request(
    chunks: Iterable[Chunk | Mapping[str, Any]], options: Mapping[str, Any]
) -> PlacementRequest:
    """The request of these chunks and options, checked as the service checks it.

    Raises:
        Refused: the service would refuse it too.
    """
    body = placement_request(chunks, options)
    try:
        return PlacementRequest.model_validate_json(to_json(body))
    except ValidationError as error:
        raise Refused(_first_fault(error)) from error


def curve_of(request: PlacementRequest, profile: Profile | None = None) -> PlacementCurve:
    """The curve of a request for which no service is needed.

    Args:
        request: with a `density`, an `architecture`, or the id of `profile`.
        profile: the curve's origin; None takes what the request itself gives.

    Raises:
        InvalidRequest: the profile has no such curve, or no curve is at hand.
    """
    # numpy and scipy are slow to import, and reading a profile needs neither.
    from lacuna.placement import curve
    from lacuna.placement.profile_curve import of_body

    if profile is not None:
        return of_body(profile, request.source)
    if request.density is not None:
        return curve.of_density(request.density)
    if request.architecture is None:
        raise InvalidRequest("without a service, give a profile, `density` or `architecture`")
    return curve.of_architecture(request.architecture)


def place_along(request: PlacementRequest, curve: PlacementCurve) -> placements.PlacementResponse:
    """The answer that a service with this curve gives.

    Raises:
        InvalidRequest, TooLong: as the service would refuse it; and chunks without `tokens`.
    """
    from lacuna.placement.answer import place

    if any(chunk.tokens is None for chunk in request.chunks):
        raise InvalidRequest(
            "`text` needs a tokenizer, and offline there is none: give `tokens`, or ask a service "
            "for the profile by its id, not by its file, or for the model",
            field="chunks.text",
        )
    return place(request, curve)


def parse_profile(document: bytes | str, name: str) -> Profile:
    """A profile from the JSON that `lacuna profile` or GET /v1/profiles/{id} wrote, of any version.

    Args:
        document: the JSON.
        name: what to call it where it holds no profile.

    Raises:
        Refused: it holds no profile.
    """
    try:
        if isinstance(document, bytes):
            document = validation.text_of(document)
        return Profile.of_answer(document.removeprefix("\ufeff"))
    except UnicodeDecodeError as error:
        raise Refused(f"{name} holds no profile: it is not text in UTF-8") from error
    except ValidationError as error:
        raise Refused(f"{name} holds no profile: {_first_fault(error)}") from error


def _first_fault(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]
