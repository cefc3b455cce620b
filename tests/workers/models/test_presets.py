from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lacuna.architectures import configs
from workers.models import facts

POSITIONS = {
    "gpt2": "learned",
    "gpt2-xl": "learned",
    "opt-125m": "learned",
    "bloom-560m": "alibi",
    "bloom-7b1": "alibi",
    "mpt-7b": "alibi",
    "falcon-rw-1b": "alibi",
}
WINDOWS = {"mistral-7b": 4096, "gemma-2-2b": 4096}
LENGTHS = {
    "gpt2": 1024,
    "qwen2-0.5b": 131_072,
    "bloom-560m": None,
    "mpt-7b": 2048,
    "llama-3-8b": 8192,
}


@pytest.mark.parametrize("name", configs.presets())
def test_builds_the_published_number_of_parameters(name: str) -> None:
    preset = configs.presets()[name]
    config = AutoConfig.for_model(**preset.config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == preset.parameters
    assert facts.positional_encoding(model) == POSITIONS.get(name, "rotary")
    assert facts.window(config) == WINDOWS.get(name)
    if name in LENGTHS:
        assert facts.max_length(config) == LENGTHS[name]
    for field in ("layers", "heads"):
        assert getattr(facts, field)(config) > 0


def test_found_by_name_prefix_and_published_id() -> None:
    gpt2 = configs.presets()["gpt2"]
    assert configs.find("gpt2") is gpt2
    assert configs.find("preset:gpt2") is gpt2
    assert configs.find("openai-community/gpt2") is gpt2
    assert configs.find("preset:Qwen2-0.5B") is configs.presets()["qwen2-0.5b"]
    assert configs.find("preset:gpt5") is None
    assert configs.find("someone/gpt2") is None


def test_names_are_valid_model_ids_and_ids_stand_for_one_preset() -> None:
    published = [name for preset in configs.presets().values() for name in preset.published_as]
    assert len(published) == len(set(published))
    assert {"gpt2", "qwen2-0.5b", "bloom-560m"} <= set(configs.presets())
