"""Decoder layers re-run from the formula in their source, to check what was found by watching.

A formula takes the layer, its input and the arguments that it was called with, and returns the
residual stream X, the attention update A added to it, and the layer's output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

Parts = tuple[Tensor, Tensor, Tensor]
Formula = Callable[[Any, Tensor, tuple[Any, ...], dict[str, Any]], Parts]


def _first(value: Any) -> Tensor:
    return value[0] if isinstance(value, (tuple, list)) else value


def _rest(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name != "hidden_states"}


def pre_norm(attention: str, norm: str, norm2: str, mlp: str, factor: float = 1.0) -> Formula:
    """h = x + f attention(norm(x)); h + f mlp(norm2(h))."""

    def formula(layer: Any, x: Tensor, _args: Any, kwargs: dict[str, Any]) -> Parts:
        update = factor * _first(
            getattr(layer, attention)(hidden_states=getattr(layer, norm)(x), **_rest(kwargs))
        )
        h = x + update
        branch = _first(getattr(layer, mlp)(getattr(layer, norm2)(h))).view(h.shape)
        return x, update, h + factor * branch

    return formula


def sandwich(norm: str | None, after: str, mlp_norm: str | None, mlp_after: str) -> Formula:
    """h = x + after(attention(norm(x))); h + mlp_after(mlp(mlp_norm(h)))."""

    def formula(layer: Any, x: Tensor, _args: Any, kwargs: dict[str, Any]) -> Parts:
        read = getattr(layer, norm)(x) if norm else x
        update = getattr(layer, after)(_first(layer.self_attn(hidden_states=read, **_rest(kwargs))))
        h = x + update
        branch = _first(layer.mlp(getattr(layer, mlp_norm)(h) if mlp_norm else h))
        return x, update, h + getattr(layer, mlp_after)(branch)

    return formula


def parallel(layer: Any, x: Tensor, _args: Any, kwargs: dict[str, Any]) -> Parts:
    read = layer.input_layernorm(x)
    update = _first(layer.self_attn(hidden_states=read, **_rest(kwargs)))
    return x, update, x + update + layer.mlp(read)


def gpt2(layer: Any, x: Tensor, args: Any, kwargs: dict[str, Any]) -> Parts:
    given = dict(zip(["cache", "attention_mask"], args[1:], strict=False)) | kwargs
    for name in ("encoder_hidden_states", "encoder_attention_mask"):
        given.pop(name, None)
    update = _first(layer.attn(layer.ln_1(x), **_rest(given)))
    h = x + update
    return x, update, h + layer.mlp(layer.ln_2(h))


def gpt_neox(layer: Any, x: Tensor, _args: Any, kwargs: dict[str, Any]) -> Parts:
    update = _first(layer.attention(layer.input_layernorm(x), **_rest(kwargs)))
    h = x + update
    read = x if layer.use_parallel_residual else h
    return x, update, h + layer.mlp(layer.post_attention_layernorm(read))


def gptj(layer: Any, x: Tensor, _args: Any, kwargs: dict[str, Any]) -> Parts:
    read = layer.ln_1(x)
    update = _first(layer.attn(hidden_states=read, **_rest(kwargs)))
    return x, update, x + update + layer.mlp(read)


def gpt_neo(layer: Any, x: Tensor, _args: Any, kwargs: dict[str, Any]) -> Parts:
    update = _first(layer.attn(layer.ln_1(x), attention_mask=kwargs.get("attention_mask")))
    h = x + update
    return x, update, h + layer.mlp(layer.ln_2(h))


def openai_gpt(layer: Any, x: Tensor, args: Any, kwargs: dict[str, Any]) -> Parts:
    mask = args[1] if len(args) > 1 else kwargs.get("attention_mask")
    update = layer.attn(x, attention_mask=mask)[0]
    h = layer.ln_1(x + update)
    return x, update, layer.ln_2(h + layer.mlp(h))


def opt(layer: Any, x: Tensor, _args: Any, kwargs: dict[str, Any]) -> Parts:
    before = layer.do_layer_norm_before
    read = layer.self_attn_layer_norm(x) if before else x
    update = _first(layer.self_attn(hidden_states=read, **_rest(kwargs)))
    h = x + update
    if not before:
        h = layer.self_attn_layer_norm(h)
    read = layer.final_layer_norm(h) if before else h
    y = h + layer.fc2(layer.activation_fn(layer.fc1(read)))
    return x, update, y if before else layer.final_layer_norm(y)


def bloom(layer: Any, x: Tensor, _args: Any, kwargs: dict[str, Any]) -> Parts:
    """The attention adds the residual itself: give it zeros, and the bare update remains."""
    after = layer.apply_residual_connection_post_layernorm
    read = layer.input_layernorm(x)
    stream = read if after else x
    given = {name: kwargs[name] for name in ("alibi", "attention_mask")}
    update = _first(layer.self_attention(read, torch.zeros_like(x), **given))
    h = stream + update
    read = layer.post_attention_layernorm(h)
    return stream, update, (read if after else h) + layer.mlp(read, torch.zeros_like(h))


def mpt(layer: Any, x: Tensor, _args: Any, kwargs: dict[str, Any]) -> Parts:
    given = {name: kwargs[name] for name in ("position_bias", "attention_mask")}
    update = _first(layer.attn(layer.norm_1(x), **given))
    h = x + update
    return x, update, layer.ffn(layer.norm_2(h), h)


def falcon(layer: Any, x: Tensor, _args: Any, kwargs: dict[str, Any]) -> Parts:
    config = layer.config
    if config.new_decoder_architecture and config.num_ln_in_parallel_attn == 2:
        read, mlp_read = layer.ln_attn(x), layer.ln_mlp(x)
    else:
        read = mlp_read = layer.input_layernorm(x)
    names = ("attention_mask", "alibi", "position_ids", "position_embeddings")
    given = {name: kwargs[name] for name in names if name in kwargs}
    update = _first(layer.self_attention(read, **given))
    h = x + update
    if not (config.new_decoder_architecture or config.parallel_attn):
        mlp_read = layer.post_attention_layernorm(h)
    return x, update, h + layer.mlp(mlp_read)


def falcon_h1(layer: Any, x: Tensor, _args: Any, kwargs: dict[str, Any]) -> Parts:
    given = _rest(kwargs)
    mask = given.pop("mamba_attention_mask", None)
    read = layer.input_layernorm(x)
    space = layer.mamba(hidden_states=read, attention_mask=mask) * layer.ssm_out_multiplier
    update = layer.attn_out_multiplier * _first(
        layer.self_attn(hidden_states=read * layer.attention_in_multiplier, **given)
    )
    h = x + update + space
    return x, update, h + layer.feed_forward(layer.pre_ff_layernorm(h))


LLAMA = pre_norm("self_attn", "input_layernorm", "post_attention_layernorm", "mlp")
GEMMA = sandwich(
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)

FORMULAS: dict[str, tuple[str, Formula]] = {
    "gpt2": ("transformer.h", gpt2),
    "gpt_neo": ("transformer.h", gpt_neo),
    "gpt_neox": ("gpt_neox.layers", gpt_neox),
    "gpt_neox_sequential": ("gpt_neox.layers", gpt_neox),
    "gptj": ("transformer.h", gptj),
    "openai_gpt": ("transformer.h", openai_gpt),
    "opt": ("model.decoder.layers", opt),
    "opt_post_norm": ("model.decoder.layers", opt),
    "bloom": ("transformer.h", bloom),
    "bloom_post_norm": ("transformer.h", bloom),
    "mpt": ("transformer.blocks", mpt),
    "falcon_alibi": ("transformer.h", falcon),
    "falcon_parallel": ("transformer.h", falcon),
    "falcon_new": ("transformer.h", falcon),
    "llama": ("model.layers", LLAMA),
    "phi": ("model.layers", parallel),
    "cohere": ("model.layers", parallel),
    "gemma2": ("model.layers", GEMMA),
    "gemma3": ("model.layers", GEMMA),
    "glm4": (
        "model.layers",
        sandwich(
            "input_layernorm",
            "post_self_attn_layernorm",
            "post_attention_layernorm",
            "post_mlp_layernorm",
        ),
    ),
    "olmo2": (
        "model.layers",
        sandwich(None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    ),
    "granite": (
        "model.layers",
        pre_norm("self_attn", "input_layernorm", "post_attention_layernorm", "mlp", 0.22),
    ),
    "minicpm3": (
        "model.layers",
        pre_norm("self_attn", "input_layernorm", "post_attention_layernorm", "mlp", 1.4 / 2),
    ),
    "mixtral": ("model.layers", LLAMA),
    "gpt_oss": ("model.layers", LLAMA),
    "deepseek_v3": ("model.layers", LLAMA),
    "llama4": (
        "model.layers",
        pre_norm("self_attn", "input_layernorm", "post_attention_layernorm", "feed_forward"),
    ),
    "falcon_h1": ("model.layers", falcon_h1),
}


@torch.no_grad()
def from_formula(family: str, model: PreTrainedModel, ids: Tensor) -> list[Parts]:
    """(X, A, error) per layer; error is the formula's distance from the layer's real output.

    The error is relative to the largest entry of the output.
    """
    path, formula = FORMULAS[family]
    layers = model.get_submodule(path)
    assert isinstance(layers, nn.ModuleList)
    seen: list[tuple[Any, Any, Any]] = []
    handles = [
        layer.register_forward_hook(
            lambda _m, args, kwargs, out: seen.append((args, dict(kwargs), _first(out))),
            with_kwargs=True,
        )
        for layer in layers
    ]
    model(input_ids=ids, use_cache=False)
    for handle in handles:
        handle.remove()
    parts = []
    for layer, (args, kwargs, output) in zip(layers, seen, strict=True):
        x = args[0] if args else kwargs["hidden_states"]
        stream, update, again = formula(layer, x, args, kwargs)
        parts.append((stream, update, (again - output).abs().max() / output.abs().max()))
    return parts
