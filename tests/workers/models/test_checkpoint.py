"""Quantised weights that do not say so; files that are no weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lacuna.contract.errors import ModelUnsupported
from lacuna.contract.profile_requests import ProfileRequest
from workers.models.checkpoint import StoredTensor, _quantised, check_plain
from workers.models.loading import LoadOptions, load

Tensors = dict[str, torch.Tensor]
QUERY = "model.layers.0.self_attn.q_proj.weight"


def request(**fields: Any) -> ProfileRequest:
    return ProfileRequest(**({"model": "local:tiny", "sequence_length": 16} | fields))


@pytest.fixture
def change(save: Callable[..., Path]) -> Callable[[Callable[[Tensors], Any]], Path]:
    """Save a Llama of 3 layers and width 64, and change its tensors."""

    def make(edit: Callable[[Tensors], Any]) -> Path:
        folder = save(hidden_size=64)
        tensors = load_file(folder / "model.safetensors")
        edit(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return make


def scaled(tensors: Tensors, scale: str, dtype: torch.dtype) -> None:
    """What exporters do: the projections in a small type, and a scale next to each."""
    for name in [one for one in tensors if "_proj.weight" in one]:
        size = tensors[name].abs().max() / 100
        tensors[name] = (tensors[name] / size).to(dtype)
        tensors[name.removesuffix("weight") + scale] = size.reshape(1)


@pytest.mark.parametrize(
    ("scale", "dtype", "stored"),
    [
        ("weight_scale", torch.float8_e4m3fn, "F8_E4M3"),
        ("weight_scale_inv", torch.float8_e4m3fn, "F8_E4M3"),
        ("weight_scale", torch.float8_e5m2, "F8_E5M2"),
        ("SCB", torch.int8, "I8"),
        ("weight.absmax", torch.uint8, "U8"),
        ("weight_scale", torch.float32, "F32"),
    ],
)
def test_quantised_weights_are_refused_by_tensor_and_type(
    scale: str, dtype: torch.dtype, stored: str, change: Any, options: LoadOptions
) -> None:
    change(lambda tensors: scaled(tensors, scale, dtype))
    with pytest.raises(ModelUnsupported, match=rf"quantised: .*_proj\.\S+ as {stored}") as info:
        load(request(), options)
    assert info.value.field == "model"
    assert load(request(weights="random"), options).warnings == ()


def test_weights_packed_into_integers_are_refused(change: Any, options: LoadOptions) -> None:
    """As MLX packs them: eight numbers of four bits each, with scales and biases."""

    def pack(tensors: Tensors) -> None:
        rows, columns = tensors[QUERY].shape
        tensors[QUERY] = torch.zeros(rows, columns // 8, dtype=torch.uint32)
        tensors[QUERY.replace("weight", "scales")] = torch.ones(rows, columns // 32)
        tensors[QUERY.replace("weight", "biases")] = torch.zeros(rows, columns // 32)

    change(pack)
    with pytest.raises(ModelUnsupported, match=rf"{QUERY} as U32"):
        load(request(), options)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"compression_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors"),
        ({"quantization": {"group_size": 64, "bits": 4}}, "quantization in config.json"),
        ({"text_config": {"compression_config": {"a": 1}}}, "compression_config in config.json"),
    ],
)
def test_configurations_that_say_so_in_their_own_way(
    where: dict[str, Any], words: str, save: Callable[..., Path], options: LoadOptions
) -> None:
    path = save() / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | where))
    with pytest.raises(ModelUnsupported, match=rf"quantised \({words}\)"):
        load(request(), options)


@pytest.mark.parametrize("name", ["hf_quant_config.json", "quantize_config.json"])
def test_files_that_only_quantised_weights_come_with(
    name: str, save: Callable[..., Path], options: LoadOptions
) -> None:
    (save() / name).write_text('{"quantization": {"quant_algo": "FP8"}}')
    with pytest.raises(ModelUnsupported, match=f"quantised .{name}."):
        load(request(), options)
    assert load(request(weights="random"), options) is not None


@pytest.mark.parametrize(
    ("tensor", "quantised"),
    [
        (StoredTensor("h.0.attn.bias", "U8", (1, 1, 8, 8)), False),
        (StoredTensor("h.0.attention.masked_bias", "I8", ()), False),
        (StoredTensor("h.0.attn.bias", "BOOL", (1, 1, 8, 8)), False),
        (StoredTensor("embeddings.position_ids", "I64", (1, 8)), False),
        (StoredTensor("layers.0.gate.tid2eid", "I64", (300, 6)), False),
        (StoredTensor("norm.weight", "BF16", (8,)), False),
        (StoredTensor("a.scale_factor", "F32", (8,)), False),
        (StoredTensor("h.0.attn.bias", "U8", (8,)), True),
        (StoredTensor("a.weight", "I32", (8, 8)), True),
        (StoredTensor("a.weight", "BOOL", (8, 8)), True),
        (StoredTensor("a.qweight", "I32", (8, 8)), True),
        (StoredTensor("a.weight_packed", "I32", (8, 8)), True),
        (StoredTensor("a.weight.quant_state.bitsandbytes__nf4", "U8", (80,)), True),
        (StoredTensor("a.b", "F8_E8M0", (8,)), True),
        (StoredTensor("a.b", "F4", (8,)), True),
        (StoredTensor("weight_scale", "BF16", (1,)), True),
    ],
)
def test_masks_and_indices_are_no_weights(tensor: StoredTensor, quantised: bool) -> None:
    assert _quantised(tensor) is quantised


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n", "git lfs pull"),
        (b"", "no header"),
        (b"\xff" * 64, "no header"),
        (b"\x02\0\0\0\0\0\0\0[]", "no header|not a JSON object"),
        (b"\x08\0\0\0\0\0\0\0" + b'{"a":[]}', "no header"),
        (b"\x08\0\0\0\0\0\0\0" + b"{{{{{{{{", "no header"),
    ],
)
def test_files_that_are_no_weights(content: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(ModelUnsupported, match=f"of one: model.safetensors: .*({words})"):
        check_plain("one", [file])


def test_a_file_that_is_cut_off(save: Callable[..., Path], options: LoadOptions) -> None:
    file = save() / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(ModelUnsupported, match=r"model\.safetensors: it is cut off, 1000 bytes"):
        load(request(), options)
