"""Path A: transformers' attention interface, for the models that look their attention up there.

Both registries need an entry: without a mask function of the same name a model passes no mask, and
a sliding window is lost in silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from workers.instrument.attention import AttentionCall, BatchShape, Observer, feed, split_mask
from workers.instrument.sites import recomputing

NAME = "lacuna"
_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)
_shape: ContextVar[BatchShape] = ContextVar("shape")


@contextmanager
def through_interface(
    model: PreTrainedModel, observer: Observer, shape: BatchShape
) -> Iterator[None]:
    """Route every attention operation of ``model`` past ``observer``; undone on exit."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    before = _implementations(model)
    model.set_attn_implementation(NAME)
    observers, shapes = _observer.set(observer), _shape.set(shape)
    try:
        yield
    finally:
        _observer.reset(observers)
        _shape.reset(shapes)
        for config, implementation in before:
            config._attn_implementation_internal = implementation


def _implementations(model: nn.Module) -> list[tuple[Any, Any]]:
    """Every configuration inside the model with the attention it names."""
    found: dict[int, tuple[Any, Any]] = {}
    pending: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    while pending:
        config = pending.pop()
        if id(config) in found or not hasattr(config, "_attn_implementation_internal"):
            continue
        found[id(config)] = (config, config._attn_implementation_internal)
        pending += [getattr(config, name, None) for name in getattr(config, "sub_configs", {})]
    return list(found.values())


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls; output [B, n, H, d_v].

    Fused where the operation can be (the same kernel as without us, statistics beside it); in
    blocks of rows, recomputed for the gradient, where soft-capping or sinks forbid that.
    """
    observer = None if recomputing() else _observer.get()
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    visible, bias = split_mask(attention_mask, key.shape[2])
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    call = AttentionCall(
        number=-1 if observer is None else _shape.get().next(),
        query=query.detach(),
        key=key.detach(),
        scaling=float(query.shape[-1] ** -0.5 if scaling is None else scaling),
        mask=visible,
        causal=causal,
        bias=None if bias is None else bias.detach(),
        softcap=softcap,
        sink=s_aux if s_aux is not None else sinks,
    )
    if call.softcap is not None or call.sink is not None:
        return _in_blocks(call, query, key, value, bias, observer), None
    if observer is not None:
        feed(observer, call)
    output, _ = sdpa_attention_forward(
        module,
        query,
        key,
        value,
        attention_mask,
        dropout=dropout,
        scaling=call.scaling,
        is_causal=is_causal,
        position_bias=position_bias,
    )
    return output, None


def _in_blocks(
    call: AttentionCall,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    observer: Observer | None,
) -> Tensor:
    if observer is not None:
        observer.begin(call)

    def block(query: Tensor, key: Tensor, value: Tensor, start: int, stop: int) -> Tensor:
        live = AttentionCall(
            call.number,
            query,
            key,
            call.scaling,
            call.mask,
            call.causal,
            bias,
            call.softcap,
            call.sink,
        )
        weights = live.probabilities(start, stop)
        if observer is not None and not recomputing():
            with torch.no_grad():
                observer.rows(call, start, weights.detach())
        return _weighted(weights.to(value.dtype), value[:, :, : weights.shape[-1]])

    differentiable = torch.is_grad_enabled() and query.requires_grad
    outputs = []
    for start, stop in call.blocks():
        if differentiable:
            outputs.append(checkpoint(block, query, key, value, start, stop, use_reentrant=False))
        else:
            outputs.append(block(query, key, value, start, stop))
    return torch.cat(outputs, 2).transpose(1, 2).contiguous()


def _weighted(weights: Tensor, value: Tensor) -> Tensor:
    """Weighted values [B, H, c, d_v]; heads that share values stay unrepeated."""
    batch, heads, rows, keys = weights.shape
    groups = value.shape[1]
    stacked = weights.reshape(batch * groups, heads // groups * rows, keys)
    mixed = torch.bmm(stacked, value.reshape(batch * groups, keys, value.shape[-1]))
    return mixed.view(batch, heads, rows, value.shape[-1])
