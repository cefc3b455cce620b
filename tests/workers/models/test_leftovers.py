"""Checkpoints with more or less than their configuration asks for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from lacuna.contract.errors import ModelUnsupported
from lacuna.contract.profile_requests import ProfileRequest
from workers.models import sources
from workers.models.loading import LoadOptions, load

Tensors = dict[str, torch.Tensor]
QUERY = "model.layers.0.self_attn.q_proj"


def request(**fields: Any) -> ProfileRequest:
    return ProfileRequest(**({"model": "local:tiny", "sequence_length": 16} | fields))


def edit(folder: Path, change: Callable[[Tensors], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.fixture
def folder(save: Callable[..., Path]) -> Path:
    """A Llama of 3 layers and width 64."""
    return save(hidden_size=64)


def test_whole_weights_have_no_warning(folder: Path, options: LoadOptions) -> None:
    assert load(request(), options).warnings == ()


def test_an_adapter_that_was_not_merged(folder: Path, options: LoadOptions) -> None:
    def add(tensors: Tensors) -> None:
        for layer in range(3):
            name = QUERY.replace("0", str(layer))
            tensors[f"{name}.lora_A.default.weight"] = torch.ones(4, 64)
            tensors[f"{name}.lora_B.default.weight"] = torch.ones(64, 4)

    edit(folder, add)
    (warning,) = load(request(), options).warnings
    assert warning.startswith("6 tensors of the weights are not used, an adapter that was not")
    assert f"{QUERY}.lora_A.default.weight" in warning
    assert warning.endswith(" and 3 more")


def test_one_layer_more_than_the_configuration(folder: Path, options: LoadOptions) -> None:
    edit_config(folder, num_hidden_layers=2)
    (warning,) = load(request(), options).warnings
    assert "layers beyond the 2 of the configuration: model.layers.2." in warning


def test_a_reward_model_with_tied_weights(
    tiny_config: Callable[..., Any], options: LoadOptions, tmp_path: Path
) -> None:
    config = tiny_config(hidden_size=64, tie_word_embeddings=True, num_labels=1, pad_token_id=0)
    reward = AutoModelForSequenceClassification.from_config(config)
    reward.save_pretrained(tmp_path / "models" / "tiny")
    head, saved = load(request(), options).warnings
    assert head == "1 tensors of the weights are not used, a head for another task: score.weight"
    assert saved == (
        "the weights were saved as LlamaForSequenceClassification and are read as LlamaForCausalLM"
    )


def test_an_adapter_next_to_the_weights_is_said_and_counts_in_the_revision(
    folder: Path, options: LoadOptions
) -> None:
    before = sources.folder_digest(folder)
    plain = load(request(), options).model(torch.arange(2, 12)[None]).logits
    adapter = {"peft_type": "LORA", "r": 4, "base_model_name_or_path": "/elsewhere"}
    (folder / "adapter_config.json").write_text(json.dumps(adapter))
    save_file({"a": torch.ones(1)}, folder / "adapter_model.safetensors")
    loaded = load(request(), options)
    assert loaded.warnings == (
        "the adapter next to the weights (adapter_config.json) is not applied",
    )
    assert loaded.revision != before
    assert torch.equal(loaded.model(torch.arange(2, 12)[None]).logits, plain)


def test_transformers_never_sees_an_adapter(
    folder: Path, options: LoadOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With peft installed, transformers would look for one and apply it."""
    from transformers.models.auto import auto_factory

    seen: list[list[str]] = []

    def find(path: Any, **_options: Any) -> None:
        seen.append(sorted(entry.name for entry in Path(path).iterdir()))

    monkeypatch.setattr(auto_factory, "is_peft_available", lambda: True)
    monkeypatch.setattr(auto_factory, "find_adapter_config_file", find)
    for name in ("adapter_config.json", "custom_generate.py", "pytorch_model.bin"):
        (folder / name).write_text("{}")
    load(request(), options)
    (names,) = seen
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(names)
    assert not {"adapter_config.json", "custom_generate.py", "pytorch_model.bin"} & set(names)


def test_code_that_is_not_followed(folder: Path, options: LoadOptions) -> None:
    edit_config(folder, auto_map={"AutoModelForCausalLM": "modeling_other.OtherForCausalLM"})
    (warning,) = load(request(), options).warnings
    assert "auto_map in config.json) is never run" in warning


def test_empty_tensors_as_zero_3_leaves_them(folder: Path, options: LoadOptions) -> None:
    edit(folder, lambda tensors: tensors.update({f"{QUERY}.weight": torch.empty(0)}))
    with pytest.raises(ModelUnsupported, match=rf"{QUERY}.weight has the shape \[0\].* ZeRO-3"):
        load(request(), options)


def test_a_resized_vocabulary(folder: Path, options: LoadOptions) -> None:
    edit_config(folder, vocab_size=310)
    with pytest.raises(ModelUnsupported, match=r"\[300, 64\].*asks for \[310, 64\]"):
        load(request(), options)


def test_missing_tensors_are_refused(folder: Path, options: LoadOptions) -> None:
    edit(folder, lambda tensors: tensors.pop(f"{QUERY}.weight"))
    with pytest.raises(ModelUnsupported, match=rf"1 tensors are missing .* \({QUERY}.weight\)"):
        load(request(), options)


def test_an_expert_that_is_missing_names_a_tensor(
    save: Callable[..., Path], options: LoadOptions
) -> None:
    """Experts are fused while loading; what is missing shows in another step."""
    folder = save(family="mixtral")
    names = [n for n in load_file(folder / "model.safetensors") if ".experts." in n]
    edit(folder, lambda tensors: tensors.pop(names[0]))
    with pytest.raises(ModelUnsupported, match=r"weights of local:tiny.*experts"):
        load(request(), options)
