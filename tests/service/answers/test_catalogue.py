from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from service.answers.catalogue import DEMO, PRESETS, PUBLISHED, architectures, catalogue, known
from workers.models import facts

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
    assert shapes == {name: architecture[:3] for name, architecture in PRESETS.items()}
    published = {alias: name for name, p in found.items() for alias in p["published_as"]}
    assert published == PUBLISHED
    assert {p["config"]["model_type"] for p in found.values()} <= set(architectures())


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_positions_windows_and_limits_are_those_of_the_configurations(name: str) -> None:
    config = AutoConfig.for_model(**configurations()[name]["config"])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    found = (facts.positional_encoding(model), facts.window(config), facts.max_length(config))
    assert found == PRESETS[name][3:]


def test_architectures_are_known_by_every_name_and_by_no_other() -> None:
    gpt2 = (12, 12, 768, "learned", None, 1_024)
    assert known("preset:gpt2") == known("openai-community/gpt2") == known("GPT2") == gpt2
    assert known("demo:smollm2-135m-instruct") == (30, 9, 576, "rotary", None, 8_192)
    assert known("somebody/gpt2") is None
    assert known("local:anything") is None


def test_the_catalogue_names_what_can_be_asked_for() -> None:
    found = catalogue([])
    assert found.demo == list(DEMO)
    assert "preset:bloom-560m" in found.presets
    assert found.workers == []
