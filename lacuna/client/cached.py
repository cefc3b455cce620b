"""Placement along a service's profile that is kept here and refreshed in the background."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, Self

from lacuna.client.answers import PlacementResponse
from lacuna.client.clients import Client
from lacuna.client.errors import Refused
from lacuna.client.offline import OfflinePlacer, parse_request
from lacuna.contract.placements import Chunk

_PROFILES = 50
"""Newest profiles of a model that are considered, as the service does."""


class CachedPlacer:
    """Places as the service would, without asking it each time. Threads may share it.

    The profile is read once. After `refresh` seconds the next placement still uses it, and a thread
    reads the newest one meanwhile; while the service is away the old one goes on serving.

    Args:
        client: asks the service; its timeout bounds the first placement.
        profile_id: of one profile, which never changes; or
        model: the profile that suits the first prompt best, as POST /v1/placements chooses it.
        refresh: seconds after which a model's profile is read again.

    Raises:
        Refused: neither or both of `profile_id` and `model` are given.
    """

    def __init__(
        self,
        client: Client,
        *,
        profile_id: str | None = None,
        model: str | None = None,
        refresh: float = 600.0,
    ) -> None:
        if (profile_id is None) == (model is None):
            raise Refused("give profile_id or model, one of the two")
        if not isinstance(client, Client):
            raise Refused(f"client is of type {type(client).__name__}: give a Client")
        self._client, self._profile_id, self._model = client, profile_id, model
        self._refresh = math.inf if profile_id is not None else refresh
        self._reading = threading.Lock()
        self._kept: OfflinePlacer | None = None
        self._read_at = 0.0

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_reading"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reading = threading.Lock()
        # The clock of another process may have begun at another time.
        self._read_at = -math.inf

    def place(
        self, chunks: Iterable[Chunk | Mapping[str, Any]], **options: Any
    ) -> PlacementResponse:
        """As `Client.place`, along the profile kept. Chunks need `tokens`.

        Raises:
            Refused, ServiceAway: as `Client.place`; the latter only before a profile was read.
        """
        listed = list(chunks)
        options = {k: v for k, v in options.items() if k not in ("profile_id", "model")}
        kept = self._kept
        if kept is None:
            with self._reading:
                kept = self._kept or self._read(listed, options)
        elif time.monotonic() - self._read_at > self._refresh:
            self._refresh_behind(listed, options)
        return kept.place(listed, **options)

    def _read(
        self, chunks: list[Chunk | Mapping[str, Any]], options: Mapping[str, Any]
    ) -> OfflinePlacer:
        identifier = self._profile_id or self._choose(chunks, options)
        known = self._kept
        if known is None or known.profile_id != identifier:
            known = OfflinePlacer(self._client.get_profile(identifier))
        self._kept, self._read_at = known, time.monotonic()
        return known

    def _choose(self, chunks: list[Chunk | Mapping[str, Any]], options: Mapping[str, Any]) -> str:
        from lacuna.placement.profile_curve import by_suitability

        assert self._model is not None
        request = parse_request(chunks, {**options, "model": self._model})
        page = self._client.profiles(self._model, limit=_PROFILES)
        untrained = self._model.startswith("preset:")
        fit = [one for one in page.items if untrained or one.weights == "pretrained"]
        if not fit:
            raise Refused(
                f"no profile of {self._model} with trained weights: measure one",
                code="profile_not_found",
                field="model",
            )
        return by_suitability(fit, request)[0].id

    def _refresh_behind(
        self, chunks: list[Chunk | Mapping[str, Any]], options: Mapping[str, Any]
    ) -> None:
        """Read again in a thread, unless one does already."""
        if not self._reading.acquire(blocking=False):
            return

        def read() -> None:
            try:
                self._read(chunks, options)
            except Exception:
                # The old profile goes on serving; the next attempt is a refresh away.
                self._read_at = time.monotonic()
            finally:
                self._reading.release()

        threading.Thread(target=read, daemon=True, name="lacuna-refresh").start()
