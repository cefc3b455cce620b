from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from service.usecases.catalogue import (
    DEMO,
    PRESETS,
    PUBLISHED,
    architectures,
    catalogue,
    known_shape,
)

FOLDER = Path(__file__).parents[3] / "workers" / "models" / "presets"


def configurations() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in FOLDER.glob("*.json")}


def first(config: dict[str, Any], *names: str) -> int:
    return int(next(config[name] for name in names if name in config))


def test_presets_are_those_of_the_workers() -> None:
    found = configurations()
    shapes = {
        name: (
            first(preset["config"], "num_hidden_layers", "n_layer", "n_layers", "num_layers"),
            first(preset["config"], "num_attention_heads", "n_head", "n_heads"),
            first(preset["config"], "hidden_size", "n_embd", "d_model"),
        )
        for name, preset in found.items()
    }
    assert shapes == PRESETS
    published = {alias: name for name, p in found.items() for alias in p["published_as"]}
    assert published == PUBLISHED
    assert {p["config"]["model_type"] for p in found.values()} <= set(architectures())


def test_shapes_are_known_by_every_name_and_by_no_other() -> None:
    assert known_shape("preset:gpt2") == known_shape("openai-community/gpt2") == (12, 12, 768)
    assert known_shape("demo:smollm2-135m-instruct") == (30, 9, 576)
    assert known_shape("somebody/gpt2") is None
    assert known_shape("local:anything") is None


def test_the_catalogue_names_what_can_be_asked_for() -> None:
    found = catalogue([])
    assert found.demo == list(DEMO)
    assert "preset:bloom-560m" in found.presets
    assert found.workers == []
