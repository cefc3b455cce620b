"""Placement without the service, from a saved profile: for machines without a network.

The arithmetic is the service's own (lacuna-service without its gateway and worker: numpy and
pydantic, no torch), so that both give the same answer, now and in the next version. From the root
of a checkout: `pip install . "./clients/python[offline]"`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lacuna.client.errors import LacunaError, Refused
from lacuna.client.flows import placement_request
from lacuna.client.types import Chunk, Json, Placement, Profile

try:
    from lacuna.contract import profiles
    from lacuna.contract.errors import LacunaError as ServiceError
    from lacuna.contract.placements import PlacementRequest
    from lacuna.placement.answer import place
    from lacuna.placement.curve import of_body
except ImportError as missing:
    raise ImportError(
        "placement offline needs the package lacuna-service; from the root of a checkout: "
        'pip install . "./clients/python[offline]"'
    ) from missing


class OfflinePlacer:
    """Places chunks by one profile.

    Args:
        profile: path of a profile saved as JSON (GET /v1/profiles/{id}, or `lacuna profile`), the
            same as a mapping, or a `Profile`.

    Raises:
        Refused: the file holds no profile.
    """

    def __init__(self, profile: str | Path | Profile | Mapping[str, Any]) -> None:
        if isinstance(profile, str | Path):
            document = Path(profile).read_bytes()
        else:
            raw = profile.raw if isinstance(profile, Profile) else dict(profile)
            document = json.dumps(raw).encode()
        try:
            self._profile = profiles.Profile.model_validate_json(document)
        except ValueError as error:
            raise Refused(422, {"code": "invalid_request", "detail": str(error)}) from error

    @property
    def profile_id(self) -> str:
        """Id of the profile."""
        return self._profile.id

    def place(self, chunks: Iterable[Chunk | Mapping[str, Any]], **options: Any) -> Placement:
        """As `Client.place`; the profile is this one."""
        named = {name: options[name] for name in ("profile_id", "model") if options.get(name)}
        if named.get("profile_id", self.profile_id) != self.profile_id or (
            named.get("model", self._profile.model.id) != self._profile.model.id
        ):
            raise LacunaError(f"this file holds profile {self.profile_id}, not {named}")
        options = {name: value for name, value in options.items() if name not in named}
        body = placement_request(chunks, {**options, "profile_id": self.profile_id})
        if any("text" in chunk for chunk in body["chunks"]):
            raise LacunaError("offline no tokenizer is at hand: give `tokens`")
        try:
            request = PlacementRequest.model_validate_json(json.dumps(body))
            answer = place(request, of_body(self._profile, request.source))
        except ServiceError as error:
            raise Refused(422, {"code": error.code, "detail": error.detail}) from error
        except ValueError as error:
            raise Refused(422, {"code": "invalid_request", "detail": str(error)}) from error
        result: Json = answer.model_dump(mode="json")
        return Placement.from_json(result)
