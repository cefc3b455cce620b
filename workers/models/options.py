"""What loading needs to know of the settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from service.settings import Settings


@dataclass(frozen=True)
class LoadOptions:
    """Folders, device and hub access of one worker.

    Attributes:
        data_dir: the worker's own folder; converted demo weights lie in its `models` folder.
        model_dir: `local:NAME` resolves below it; None switches local models off.
        device: "auto" takes CUDA when torch sees it.
        hub_token: sent to the hub; None sends nothing, not even a token saved on this machine.
        hub_endpoint: another hub address; None is the public one.
        hub_cache: where snapshots are kept; None is the hub library's own folder.
        cache_bytes: memory that warm models may take together.
        max_layers: layers (blocks, experts) that a configuration may state.
    """

    data_dir: Path
    model_dir: Path | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    hub_token: str | None = field(default=None, repr=False)
    hub_endpoint: str | None = None
    hub_cache: Path | None = None
    cache_bytes: int = 8_000_000_000
    max_layers: int = 512

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Pick the worker's share of the settings."""
        token = settings.hub_token
        return cls(
            data_dir=settings.data_dir,
            model_dir=settings.model_dir,
            device=settings.device,
            hub_token=None if token is None else token.get_secret_value(),
            cache_bytes=settings.model_cache_bytes,
            max_layers=settings.max_model_layers,
        )
