"""Architectures known by name: published configurations, usable without any network.

Each JSON file holds the `config` of a model as its authors published it, the hub ids under which
it stands (`published_as`) and its number of parameters, which tests compare with the model that
transformers builds. No weights: a preset is profiled at initialisation (`weights: random`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Preset:
    """One architecture."""

    name: str
    published_as: tuple[str, ...]
    parameters: int
    config: dict[str, Any]


@cache
def presets() -> dict[str, Preset]:
    """All presets by name, sorted."""
    found = {}
    for file in sorted(
        resources.files("lacuna.architectures").iterdir(), key=lambda file: file.name
    ):
        if file.name.endswith(".json"):
            name = file.name.removesuffix(".json")
            content = json.loads(file.read_text("utf-8"))
            found[name] = Preset(
                name=name,
                published_as=tuple(content["published_as"]),
                parameters=int(content["parameters"]),
                config=dict(content["config"]),
            )
    return found


def find(model: str) -> Preset | None:
    """The preset that a model id means: `preset:NAME`, its bare name, or a hub id of it."""
    bare = model.removeprefix("preset:").lower()
    for preset in presets().values():
        if bare == preset.name or model in preset.published_as:
            return preset
    return None
