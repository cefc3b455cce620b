from __future__ import annotations

import pytest
import torch
from tiny_families import FAMILIES, LAYERS, build
from tiny_types import tiny
from torch import Tensor
from transformers import T5ForConditionalGeneration

from lacuna.contract.errors import ModelUnsupported
from workers.instrument import inspect
from workers.instrument.branches import updates_zeroed

NAMES = [name for name in FAMILIES if name not in ("t5", "bert", "mamba")]
CAPTURE = {
    "sdpa": {"falcon_alibi", "falcon_parallel", "falcon_new"},
    "softmax": {"bloom", "bloom_post_norm", "mpt", "xglm", "gpt_neo", "openai_gpt"},
}


@pytest.mark.parametrize("family", NAMES)
def test_every_structure_is_fully_supported(family: str) -> None:
    found = inspect(build(family))
    assert found.level == "full"
    assert found.reasons == ()
    hybrid = family == "jamba"
    assert found.layers == LAYERS
    assert found.attention_layers == len(found.branches) == found.cores == (2 if hybrid else LAYERS)
    expected = next((way for way, names in CAPTURE.items() if family in names), "interface")
    assert found.capture == expected


@pytest.mark.parametrize(
    ("family", "block"),
    [
        ("llama", "sequential"),
        ("gpt_neox_sequential", "sequential"),
        ("falcon_alibi", "sequential"),
        ("gpt_neox", "parallel"),
        ("gptj", "parallel"),
        ("phi", "parallel"),
        ("cohere", "parallel"),
        ("falcon_parallel", "parallel"),
        ("falcon_h1", "parallel"),
    ],
)
def test_block_form(family: str, block: str) -> None:
    assert inspect(build(family)).block == block


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("family", "reason"),
    [("bert", "not causal"), ("mamba", "no softmax attention")],
)
def test_refusals_say_why(family: str, reason: str, dtype: torch.dtype) -> None:
    with pytest.raises(ModelUnsupported, match=reason):
        inspect(build(family).to(dtype))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_without_a_value_are_no_matter_of_causality(value: float) -> None:
    """An attention kernel may turn NaN into zeros, so that the logits alone look sound."""
    model = build("llama")
    with torch.no_grad():
        model.get_submodule("model.layers.0.self_attn.q_proj").weight.fill_(value)
    with pytest.raises(ModelUnsupported, match="are not finite on ordinary tokens"):
        inspect(model)


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_rounding_is_no_leak(family: str) -> None:
    """Sums are grouped otherwise when other tokens run beside: one logit moves by one step."""
    model = build(family).to(torch.bfloat16)
    seen: list[float] = []

    def other_kernel(_module: object, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        seen.append(float(args[0].detach().float().sum()))
        if seen[-1] == seen[0]:
            return out
        rows = out[:, :-1].detach()
        step = torch.zeros_like(rows)
        at = int(rows.abs().argmax())
        step.view(-1)[at] = 2.0 ** (int(rows.flatten()[at].abs().log2().floor()) - 7)
        return out + torch.cat([step * rows.sign(), torch.zeros_like(out[:, -1:])], 1)

    model.lm_head.register_forward_hook(other_kernel)
    found = inspect(model)
    assert found.level == "full"
    assert not found.other_mixers


def test_refuses_an_encoder_decoder() -> None:
    fields = {"vocab_size": 131, "d_model": 32, "num_layers": 1, "num_heads": 2, "d_ff": 32}
    config = T5ForConditionalGeneration.config_class(**fields)
    with pytest.raises(ModelUnsupported, match="encoder-decoder"):
        inspect(T5ForConditionalGeneration(config).eval())


def test_refuses_logits_that_are_not_finite() -> None:
    model = build("llama")
    model.get_input_embeddings().weight[:] = torch.inf
    with pytest.raises(ModelUnsupported, match="not finite"):
        inspect(model)


@pytest.mark.parametrize("family", ["jamba", "falcon_h1"])
def test_hybrids_are_announced(family: str) -> None:
    found = inspect(build(family))
    assert found.other_mixers
    assert any("softmax attention" in warning for warning in found.warnings)


@pytest.mark.parametrize("model_type", ["gemma3", "got_ocr2"])
def test_text_models_nested_in_multimodal_ones(model_type: str) -> None:
    """The layers stand below `language_model`, the sizes in a `text_config`."""
    model = tiny(model_type)
    assert not hasattr(model.config, "vocab_size")
    found = inspect(model)
    assert found.level == "full"
    assert found.layers == model.config.text_config.num_hidden_layers == LAYERS
    assert all("language_model.layers" in branch.update.path for branch in found.branches)


def test_sinks_are_announced() -> None:
    assert any("sinks" in warning for warning in inspect(build("gpt_oss")).warnings)
    assert inspect(build("llama")).warnings == ()


@pytest.mark.parametrize("family", ["llama", "bloom", "gemma2", "gpt2"])
def test_without_attention_updates_tokens_do_not_meet(family: str, ids: Tensor) -> None:
    model = build(family)
    other = ids.clone()
    other[:, :-1] = ids[:, :-1].flip(1)
    with torch.no_grad(), updates_zeroed(model, inspect(model).branches):
        alone, moved = (model(input_ids=x, use_cache=False).logits[:, -1] for x in (ids, other))
    with torch.no_grad():
        free, free_moved = (model(input_ids=x, use_cache=False).logits[:, -1] for x in (ids, other))
    torch.testing.assert_close(alone, moved, rtol=1e-5, atol=1e-5)
    assert float((free - free_moved).abs().max()) > 1e-3


def test_float64() -> None:
    assert inspect(build("gemma2").to(torch.float64)).level == "full"


@pytest.mark.parametrize("family", NAMES)
def test_half_precision_loses_no_instrument(family: str) -> None:
    full, half = inspect(build(family)), inspect(build(family).to(torch.bfloat16))
    assert (half.level, half.capture, half.warnings) == (full.level, full.capture, full.warnings)
    assert half.other_mixers == full.other_mixers


@pytest.mark.parametrize(
    "fault", [torch.OutOfMemoryError("full"), torch.AcceleratorError("CUDA error: illegal address")]
)
def test_a_fault_of_the_machine_is_not_the_models(fault: Exception) -> None:
    """In whichever pass it happens; a second try then finds what an undisturbed one finds."""
    model = build("llama", num_hidden_layers=2)
    undisturbed = inspect(model)
    passes, at = 0, 0

    def full(_module: object, _args: object) -> None:
        nonlocal passes
        passes += 1
        if passes == at:
            raise fault

    model.model.layers[1].mlp.register_forward_pre_hook(full)
    assert inspect(model) == undisturbed
    for number in range(1, passes + 1):
        passes, at = 0, number
        with pytest.raises(type(fault)):
            inspect(model)
    assert inspect(model) == undisturbed
