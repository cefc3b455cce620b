"""The table against transformers, and the names by which its entries are found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lacuna.architectures import table
from lacuna.architectures.table import DEMO, architectures, find, find_preset, measurable, presets
from lacuna.contract.rollouts import ARCHITECTURE_NAMES
from workers.instrument import describe_positions
from workers.models import demo

SMALL = {
    "vocab_size": 128,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "hidden_size": 64,
    "n_embd": 64,
    "d_model": 64,
    "word_embed_proj_dim": 64,
    "ffn_dim": 64,
    "intermediate_size": 64,
    "head_dim": 16,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


ORIGINAL = {"type": "yarn", "original_max_position_embeddings": 16}


def on_meta(config: Any) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("name", presets())
def test_a_preset_builds_the_published_number_of_parameters(name: str) -> None:
    model = on_meta(AutoConfig.for_model(**presets()[name].config))
    assert sum(parameter.numel() for parameter in model.parameters()) == presets()[name].parameters


@pytest.mark.parametrize("name", architectures())
def test_what_the_configuration_says_is_what_transformers_reads(name: str) -> None:
    known = architectures()[name]
    config = AutoConfig.for_model(**known.config)
    assert (known.layers, known.heads) == (table.layers(config), table.heads(config))
    assert known.max_length == table.max_length(config)
    assert known.width == on_meta(config).get_input_embeddings().embedding_dim


@pytest.mark.parametrize("name", architectures())
def test_positions_and_windows_are_those_that_a_small_model_of_the_kind_uses(name: str) -> None:
    known = architectures()[name]
    small = {key: SMALL.get(key, value) for key, value in known.config.items()}
    config = AutoConfig.for_model(**{"vocab_size": 128, "num_key_value_heads": 4} | small)
    found = describe_positions(AutoModelForCausalLM.from_config(config).eval())
    assert (found.kind, found.window) == (known.positional_encoding, known.window)


def test_found_by_name_prefix_alias_and_demo_and_by_no_other() -> None:
    gpt2 = architectures()["gpt2"]
    for model in ("gpt2", "preset:gpt2", "GPT2", "openai-community/gpt2"):
        assert find(model) is gpt2
        assert find_preset(model) is gpt2
    assert find("preset:Qwen2-0.5B") is architectures()["qwen2-0.5b"]
    assert find("mistral-7b-v0.1") is architectures()["mistral-7b"]
    for model in ("preset:gpt5", "someone/gpt2", "local:anything", "demo:gpt2"):
        assert find(model) is None


def test_a_demo_has_an_architecture_and_is_no_preset() -> None:
    assert [name.removeprefix("demo:") for name in DEMO] == list(demo.DEMOS)
    for name, architecture in DEMO.items():
        assert find(name) is presets()[architecture]
        assert find_preset(name) is None


def test_an_incomplete_entry_is_known_and_is_no_preset() -> None:
    known = find("meta-llama/Llama-2-70b-hf")
    assert known is not None
    assert (known.layers, known.heads, known.width) == (80, 64, 8_192)
    assert find_preset("preset:llama-2-70b") is None


def test_every_name_means_one_entry() -> None:
    names = [alias for one in architectures().values() for alias in (one.name, *one.aliases)]
    assert len(names) == len(set(names))
    assert {one.config["model_type"] for one in architectures().values()} <= set(measurable())


@pytest.mark.parametrize(
    ("names", "kernel"),
    [
        (("bloom-560m", "bloom-7b1", "bloom-176b", "mpt-7b", "mpt-30b"), ("alibi", None)),
        (("mistral-7b-v0.1",), ("window", 4_096)),
    ],
)
def test_kernels_of_rollouts(names: tuple[str, ...], kernel: tuple[str, int | None]) -> None:
    found = {name: find(name) for name in ARCHITECTURE_NAMES}
    assert {n for n, one in found.items() if one and (one.kernel, one.window) == kernel} == set(
        names
    )


def test_rollouts_know_21_architectures_and_the_others_are_uniform() -> None:
    kernels = [one.kernel for one in map(find, ARCHITECTURE_NAMES) if one is not None]
    assert len(kernels) == len(ARCHITECTURE_NAMES) == 21
    assert kernels.count("uniform") == 15


@pytest.mark.parametrize(
    ("fields", "length"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 256),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, 128),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, 256),
        # The original length is stated where the other one is the new one already.
        ({"rope_scaling": ORIGINAL | {"factor": 4}}, 64),
        ({"rope_scaling": ORIGINAL | {"factor": 8}}, 128),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}, "max_sequence_length": 200}, 200),
        ({"max_sequence_length": 200}, 64),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, 64),
        ({"rope_parameters": {"full": {"rope_type": "linear", "factor": 8.0}}}, 64),
        ({"rope_scaling": {"type": "linear", "factor": "8"}}, 64),
        ({"rope_scaling": {"type": "linear", "factor": float("inf")}}, 64),
        ({"rope_scaling": {"type": ["linear"], "factor": 4}}, 64),
        ({"rope_scaling": None}, 64),
    ],
)  # fmt: skip
def test_scaled_rotary_positions_reach_further(fields: dict[str, Any], length: int) -> None:
    config = {"max_position_embeddings": 64} | fields
    assert table.max_length(config) == length
    assert table.max_length(SimpleNamespace(**config)) == length
