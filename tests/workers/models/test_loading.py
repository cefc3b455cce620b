from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from lacuna.architectures import table
from lacuna.contract.errors import (
    ModelNotFound,
    ModelUnsupported,
    OutOfMemory,
    TooLarge,
    TooLong,
    WeightsUnsafe,
)
from lacuna.contract.profile_requests import ProfileRequest
from workers.models import loading
from workers.models.loading import LoadOptions, load


def request(model: str = "local:tiny", **fields: Any) -> ProfileRequest:
    return ProfileRequest(model=model, **({"sequence_length": 16} | fields))


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def test_a_local_folder_is_loaded_frozen_and_in_evaluation_mode(
    save: Callable[..., Path], options: LoadOptions, tiny_model: Callable[..., Any]
) -> None:
    save()
    loaded = load(request(), options)
    ids = torch.arange(2, 12)[None]
    assert torch.equal(loaded.model(ids).logits, tiny_model()(ids).logits)
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert loaded.dtype == torch.float32
    assert loaded.device == torch.device("cpu")
    assert loaded.revision is not None
    assert len(loaded.revision) == 40
    assert loaded.tokenizer_digest is not None
    assert loaded.nbytes >= 4 * loaded.parameters


def test_bfloat16_is_loaded_when_asked_for(save: Callable[..., Path], options: LoadOptions) -> None:
    save()
    loaded = load(request(dtype="bfloat16"), options)
    assert {p.dtype for p in loaded.model.parameters()} == {torch.bfloat16}
    assert loading.dtype_of(request(), torch.device("cuda")) == torch.bfloat16
    assert loading.dtype_of(request(dtype="float32"), torch.device("cuda")) == torch.float32


def test_random_weights_follow_the_seed_alone(
    save: Callable[..., Path], options: LoadOptions
) -> None:
    save()
    torch.manual_seed(99)
    one = load(request(weights="random", seed=1), options)
    after = torch.rand(1)
    torch.manual_seed(99)
    assert torch.equal(torch.rand(1), after), "loading has moved the global generator"
    again, other = (load(request(weights="random", seed=s), options) for s in (1, 2))
    ids = torch.arange(2, 12)[None]
    assert torch.equal(one.model(ids).logits, again.model(ids).logits)
    assert not torch.equal(one.model(ids).logits, other.model(ids).logits)
    assert one.revision is None
    assert one.seed == 1
    assert one.tokenizer is not None
    half = load(request(weights="random", seed=1, dtype="bfloat16"), options)
    for full, cut in zip(one.model.parameters(), half.model.parameters(), strict=True):
        assert torch.equal(full.to(torch.bfloat16), cut)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "ctrl", "bloom", "dots1"])
def test_random_weights_are_cast_as_saved_ones_are(
    family: str, save: Callable[..., Path], options: LoadOptions
) -> None:
    folder = save(family=family)
    whole = load(request(weights="random"), options).model
    drawn = load(request(weights="random", dtype="bfloat16"), options).model
    for file in folder.glob("*.safetensors"):
        file.unlink()
    whole.save_pretrained(folder)
    saved = load(request(dtype="bfloat16"), options).model
    for one, other in (
        (dict(drawn.named_parameters()), dict(saved.named_parameters())),
        (dict(drawn.named_buffers()), dict(saved.named_buffers())),
    ):
        assert one.keys() == other.keys()
        for name, tensor in one.items():
            assert tensor.dtype == other[name].dtype, name
            assert torch.equal(tensor, other[name]), name
    ids = torch.arange(2, 110)[None]
    assert torch.equal(drawn(ids).logits, saved(ids).logits)


def test_rotary_frequencies_are_never_rounded(
    save: Callable[..., Path], options: LoadOptions
) -> None:
    save()
    half = load(request(weights="random", dtype="bfloat16"), options).model
    full = load(request(weights="random", dtype="float32"), options).model
    frequencies = {n: b for n, b in half.named_buffers() if b.is_floating_point()}
    assert frequencies
    for name, buffer in full.named_buffers():
        assert buffer.dtype == half.get_buffer(name).dtype
        assert torch.equal(buffer, half.get_buffer(name)), name


def test_presets_need_no_network_and_no_tokenizer(
    options: LoadOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Any] = []

    def small(config: Any, **_kwargs: Any) -> Any:
        built.append(config)
        raise ValueError("seen enough")

    monkeypatch.setattr(loading._AUTO, "from_config", small)
    for model in ("gpt2", "preset:gpt2", "openai-community/gpt2"):
        with pytest.raises(ModelUnsupported, match=r"cannot build .* \(ValueError: seen enough\)"):
            load(request(model, weights="random"), options)
    assert {config.n_layer for config in built} == {12}
    with pytest.raises(ModelNotFound, match="there is bloom-560m"):
        load(request("preset:gpt5", weights="random"), options)


@pytest.mark.parametrize(
    ("family", "changes"), [("gpt2", {}), ("llama", {}), ("mpt", {"max_seq_len": 128})]
)
def test_longer_than_the_model_can_take(
    family: str, changes: dict[str, Any], save: Callable[..., Path], options: LoadOptions
) -> None:
    save(family=family, **changes)
    assert load(request(sequence_length=128), options) is not None
    with pytest.raises(TooLong, match="129 tokens are more than the 128") as info:
        load(request(sequence_length=129), options)
    assert info.value.field == "sequence_length"


def test_bloom_has_no_longest_input(save: Callable[..., Path], options: LoadOptions) -> None:
    save(family="bloom")
    assert load(request(sequence_length=100_000), options) is not None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "made_up", "auto_map": {"AutoModel": "evil.Model"}}, "is never run"),
        ({"model_type": None}, "no model type 'None'"),
        ({"model_type": "t5"}, "not a causal language model"),
        ({"num_hidden_layers": "three"}, "is refused by transformers"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised .gptq."),
        ({"text_config": {"quantization_config": {"quant_method": "awq"}}}, "quantised .awq."),
    ],
)  # fmt: skip
def test_refused_with_its_own_reason(
    changes: dict[str, Any], words: str, save: Callable[..., Path], options: LoadOptions
) -> None:
    edit_config(save(), **changes)
    with pytest.raises(ModelUnsupported, match=words) as info:
        load(request(), options)
    assert info.value.field == "model"
    assert str(options.model_dir) not in info.value.detail


def test_quantised_architectures_can_be_looked_at_before_training(
    save: Callable[..., Path], options: LoadOptions
) -> None:
    edit_config(save(), quantization_config={"quant_method": "gptq", "bits": 4})
    loaded = load(request(weights="random"), options)
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}


def test_broken_configurations(save: Callable[..., Path], options: LoadOptions) -> None:
    folder = save()
    (folder / "config.json").write_bytes(b"\x80\x81{")
    with pytest.raises(ModelUnsupported, match="not readable JSON"):
        load(request(), options)
    (folder / "config.json").write_text("[1]")
    with pytest.raises(ModelUnsupported, match="not a JSON object"):
        load(request(), options)


def test_pickles_are_refused_and_never_opened(
    save: Callable[..., Path], options: LoadOptions, tmp_path: Path
) -> None:
    folder = save()
    (folder / "model.safetensors").unlink()
    bomb = b"cos\nsystem\n(S'touch " + str(tmp_path / "exploded").encode() + b"'\ntR."
    (folder / "pytorch_model.bin").write_bytes(bomb)
    with pytest.raises(WeightsUnsafe, match="pickle weights only"):
        load(request(), options)
    assert not (tmp_path / "exploded").exists()
    assert load(request(weights="random"), options) is not None


def test_adapters_and_gguf_alone_are_refused(
    save: Callable[..., Path], options: LoadOptions
) -> None:
    folder = save()
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelUnsupported, match="adapter only"):
        load(request(), options)
    (folder / "adapter_model.safetensors").rename(folder / "model.gguf")
    (folder / "adapter_config.json").unlink()
    with pytest.raises(ModelUnsupported, match=r"GGUF weights only.*original repository"):
        load(request(), options)


def test_incomplete_weights_are_refused_and_not_filled_with_noise(
    save: Callable[..., Path], options: LoadOptions
) -> None:
    file = save() / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.self_attn.q_proj.weight"
    kept = {key: value for key, value in tensors.items() if key != name}
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(ModelUnsupported, match=rf"incomplete.*{name}"):
        load(request(), options)
    file.write_bytes(b"\x00" * 100)
    with pytest.raises(ModelUnsupported, match="cannot load the weights"):
        load(request(), options)


def test_weights_that_do_not_fit_are_not_tried(
    save: Callable[..., Path], options: LoadOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    save()
    monkeypatch.setattr(loading, "available_bytes", lambda _device: 1_000)
    with pytest.raises(OutOfMemory, match=r"need 0\.0 GB in torch\.float32"):
        load(request(), options)


@pytest.mark.parametrize("weights", ["pretrained", "random"])
def test_a_gpu_has_room_where_the_host_has_none(
    weights: Any,
    save: Callable[..., Path],
    options: LoadOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checkpoints never pass through the host's memory; random weights are drawn there."""
    save()
    monkeypatch.setattr(loading, "device_of", lambda _options: torch.device("cuda"))
    monkeypatch.setattr(
        loading, "available_bytes", lambda device: 10**9 if device.type == "cuda" else 1_000
    )
    places = []

    def from_pretrained(*_args: Any, device_map: Any, **_options: Any) -> Any:
        places.append(device_map)
        raise torch.OutOfMemoryError("nothing was loaded")

    monkeypatch.setattr(loading._AUTO, "from_pretrained", from_pretrained)
    expected = "on cpu" if weights == "random" else "do not fit on cuda"
    with pytest.raises(OutOfMemory, match=expected):
        load(request(weights=weights), options)
    assert places == ([] if weights == "random" else [{"": torch.device("cuda")}])


def test_a_broken_tokenizer_is_refused(save: Callable[..., Path], options: LoadOptions) -> None:
    folder = save()
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelUnsupported, match="tokenizer of local:tiny"):
        load(request(), options)


def test_without_a_tokenizer_there_is_none(save: Callable[..., Path], options: LoadOptions) -> None:
    for file in save().glob("tokenizer*"):
        file.unlink()
    loaded = load(request(), options)
    assert loaded.tokenizer is None
    assert loaded.tokenizer_digest is None


def test_revisions_belong_to_the_hub(save: Callable[..., Path], options: LoadOptions) -> None:
    save()
    for given in (request(), request("preset:gpt2", weights="random")):
        with pytest.raises(ModelNotFound, match="has no revisions"):
            load(given.model_copy(update={"revision": "main"}), options)


def test_the_text_model_of_a_multimodal_wrapper_is_found(
    tmp_path: Path, options: LoadOptions, make_tokenizer: Callable[..., Any]
) -> None:
    text = {
        "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8,
        "max_position_embeddings": 128,
    }  # fmt: skip
    vision = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
    }  # fmt: skip
    config = AutoConfig.for_model("gemma3", text_config=text, vision_config=vision)
    folder = tmp_path / "models" / "tiny"
    config.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    loaded = load(request(weights="random"), options)
    assert not hasattr(loaded.model.config, "vocab_size")
    text_config = loaded.text_config
    assert (table.layers(text_config), table.heads(text_config), loaded.width) == (2, 4, 32)
    assert loaded.vocabulary == loaded.scored_vocabulary == 300
    assert table.max_length(text_config) == 128
    with pytest.raises(TooLong):
        load(request(weights="random", sequence_length=129), options)


@pytest.mark.parametrize("weights", ["random", "pretrained"])
@pytest.mark.parametrize(
    "changes",
    [
        {"quantization_config": [1]},
        {"quantization_config": "evil"},
        {"text_config": "evil"},
        {"text_config": {"quantization_config": "evil"}},
        {"model_type": ["llama"]},
        {"model_type": {"a": 1}},
        {"layer_types": 3},
        {"max_position_embeddings": ["a", 1]},
        {"num_hidden_layers": [2, "x"]},
        {"rope_parameters": [1]},
        {"hidden_size": None},
    ],
)
def test_strange_fields_are_the_fault_of_the_model(
    changes: dict[str, Any], weights: str, save: Callable[..., Path], options: LoadOptions
) -> None:
    edit_config(save(), **changes)
    with pytest.raises(ModelUnsupported) as info:
        load(request(weights=weights), options)
    assert info.value.field == "model"
    # The file or transformers is named, and what was wrong with it.
    assert re.search("config.json|transformers|configuration", info.value.detail)
    assert not re.search(r"\(\w+Error\)$", info.value.detail)
    assert str(options.model_dir) not in info.value.detail


@pytest.mark.parametrize("sign", ["[", '{"a":'])
def test_a_configuration_nested_too_deeply_to_be_read(
    sign: str, save: Callable[..., Path], options: LoadOptions
) -> None:
    (save() / "config.json").write_text(sign * 200_000)
    with pytest.raises(ModelUnsupported, match="RecursionError"):
        load(request(), options)


@pytest.mark.parametrize(
    "changes", [{"num_hidden_layers": 100_000}, {"vision_config": {"num_hidden_layers": 10**6}}]
)
def test_too_many_layers_are_refused_before_they_are_built(
    changes: dict[str, Any],
    save: Callable[..., Path],
    options: LoadOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    edit_config(save(), **changes)
    save("wide")

    def never(*_args: Any, **_kwargs: Any) -> Any:
        raise AssertionError("something was built")

    monkeypatch.setattr(loading._AUTO, "from_config", never)
    with pytest.raises(TooLarge, match=r"num_hidden_layers = \d+, above .* of 512 .LACUNA_MAX_MOD"):
        load(request(weights="random"), options)
    with pytest.raises(TooLarge, match="above the limit of 1 "):
        load(request("local:wide", weights="random"), dataclasses.replace(options, max_layers=1))


def shard(folder: Path, **places: str) -> None:
    """Write an index over `model.safetensors`, renamed to a shard; `places` overrides shards."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    shards = dict.fromkeys(tensors, "model-00001-of-00001.safetensors")
    shards |= {name.replace("__", "."): place for name, place in places.items()}
    index = {"metadata": {"total_size": 1}, "weight_map": shards}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_shards_beside_their_index_are_loaded(
    save: Callable[..., Path], options: LoadOptions
) -> None:
    whole = load(request(), options) if save() else None
    shard(options.model_dir / "tiny")  # type: ignore[operator]
    assert whole is not None
    ids = torch.arange(2, 12)[None]
    assert torch.equal(load(request(), options).model(ids).logits, whole.model(ids).logits)


@pytest.mark.parametrize(
    "place",
    [
        "../../outside/secret.safetensors",
        "/etc/secret.safetensors",
        "sub/model-00001-of-00001.safetensors",
        "./model-00001-of-00001.safetensors",
        "other.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ],
)
def test_an_index_that_leads_elsewhere_is_refused(
    place: str, save: Callable[..., Path], options: LoadOptions, tmp_path: Path
) -> None:
    folder = save()
    for target in (tmp_path / "outside" / "secret", folder / "other"):
        target.parent.mkdir(exist_ok=True)
        target.with_suffix(".safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    shard(folder, model__norm__weight=place)
    with pytest.raises(WeightsUnsafe, match=r"index\.json of local:tiny names") as info:
        load(request(), options)
    assert info.value.field == "model"
    assert load(request(weights="random"), options) is not None


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": 3}', '{"weight_map": {"a": [1]}}'])
def test_an_index_that_is_none_is_refused(
    text: str, save: Callable[..., Path], options: LoadOptions
) -> None:
    folder = save()
    shard(folder)
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(WeightsUnsafe, match="is not an index of weights"):
        load(request(), options)


def test_a_configuration_that_names_its_own_weights_is_refused(
    save: Callable[..., Path], options: LoadOptions
) -> None:
    edit_config(save(), transformers_weights="other.safetensors.index.json")
    with pytest.raises(WeightsUnsafe, match="transformers_weights"):
        load(request(), options)


@pytest.mark.parametrize("settings", [{"max_new_tokens": -1}, [], {"temperature": "hot"}])
def test_settings_of_generation_do_not_refuse_a_model(
    settings: Any, save: Callable[..., Path], options: LoadOptions
) -> None:
    folder = save()
    (folder / "generation_config.json").write_text(json.dumps(settings))
    assert load(request(), options).warnings == ()
    if isinstance(settings, dict):
        edit_config(folder, **settings)
        assert load(request(), options).warnings == ()
        assert load(request(weights="random"), options) is not None


@pytest.mark.parametrize(
    ("stated", "ends"), [({"eos_token_id": [1, 7]}, [1, 7]), ({}, [2]), ([], [2])]
)
def test_the_tokens_that_end_an_answer_are_kept(
    stated: Any, ends: list[int], save: Callable[..., Path], options: LoadOptions
) -> None:
    folder = save(eos_token_id=2)
    (folder / "generation_config.json").write_text(json.dumps(stated))
    assert load(request(), options).model.generation_config.eos_token_id == ends  # type: ignore[union-attr]


@pytest.mark.parametrize("field", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize("wished", ["flash_attention_2", "flash_attention_3", "someone/kernel"])
def test_a_wished_implementation_does_not_refuse_a_model(
    field: str, wished: str, save: Callable[..., Path], options: LoadOptions
) -> None:
    edit_config(save(), **{field: wished})
    for weights in ("pretrained", "random"):
        loaded = load(request(weights=weights), options)
        assert loaded.text_config._attn_implementation == "sdpa"


def test_a_newer_tokenizer_names_its_file(save: Callable[..., Path], options: LoadOptions) -> None:
    path = save() / "tokenizer.json"
    document = json.loads(path.read_text())
    document["model"]["type"] = "Hyperpiece"
    document["model"]["pieces"] = document["model"].pop("merges")
    path.write_text(json.dumps(document))
    with pytest.raises(ModelUnsupported, match=r"cannot be loaded: tokenizer\.json: \S+") as info:
        load(request(), options)
    assert "lacuna-model-" not in info.value.detail
