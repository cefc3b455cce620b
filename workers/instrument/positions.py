"""The `positional_encoding: off` ablation: every position of the prompt looks like the first.

Rotary, learned and sinusoidal positions: all position ids are 0, with an explicit attention mask of
ones (without one, transformers reads repeated position ids as packed sequences and masks them
apart). Models that take no position ids: lookups by position are frozen at the first row. ALiBi:
the functions that build the bias return zeros. Whether it worked is measured on entry.
"""

from __future__ import annotations

import inspect as signatures
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from service.contract.errors import ModelUnsupported
from workers.instrument.inspection import Instrumentation, inspect, stream_width
from workers.instrument.position_kind import PositionSpy, uneven, unevenness


@contextmanager
def positions_off(
    model: PreTrainedModel, instrumentation: Instrumentation | None = None
) -> Iterator[None]:
    """Inside, ``model`` cannot tell positions apart; outside it is as before.

    Raises:
        ModelUnsupported: positions still show, or whether they do cannot be seen.
    """
    instrumentation = instrumentation or inspect(model)
    if instrumentation.capture == "none":
        raise ModelUnsupported(
            "positional_encoding: off needs a model whose attention can be watched, to verify it.",
            field="positional_encoding",
        )
    if instrumentation.other_mixers:
        raise ModelUnsupported(
            "positional_encoding: off does not apply: beside attention the model has state space, "
            "recurrent or convolution layers, which know the order of the tokens.",
            field="positional_encoding",
        )
    with ExitStack() as stack:
        stack.enter_context(_no_alibi(model))
        if "position_ids" in signatures.signature(model.forward).parameters:
            stack.enter_context(_all_first(model))
        else:
            stack.enter_context(PositionSpy(None, stream_width(model), freeze=True))
        remaining = unevenness(model, instrumentation.capture)
        if remaining > uneven(model):
            raise ModelUnsupported(
                "positional_encoding: off does not work for this model: on a prompt of one "
                f"repeated token attention still differs between positions by {remaining:.1e} "
                "of its size.",
                field="positional_encoding",
            )
        yield


@contextmanager
def _all_first(model: PreTrainedModel) -> Iterator[None]:
    def hook(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        ids = kwargs.get("input_ids", args[0] if args else None)
        shape = kwargs["inputs_embeds"].shape[:2] if ids is None else ids.shape
        kwargs["position_ids"] = torch.zeros(shape, dtype=torch.long, device=model.device)
        if kwargs.get("attention_mask") is None:
            kwargs["attention_mask"] = torch.ones(shape, dtype=torch.long, device=model.device)
        return args, kwargs

    handle = model.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _no_alibi(model: PreTrainedModel) -> Iterator[None]:
    """Make everything named *alibi* in the model's own code return zeros."""
    module = sys.modules[type(model).__module__]
    functions = [
        (name, function)
        for name, function in vars(module).items()
        if "alibi" in name.lower() and signatures.isfunction(function)
    ]
    methods = [
        (part, name)
        for part in model.modules()
        for name in dir(type(part))
        if "alibi" in name.lower() and callable(getattr(type(part), name, None))
    ]
    for name, function in functions:
        setattr(module, name, _zeros(function))
    for part, name in methods:
        object.__setattr__(part, name, _zeros(getattr(part, name)))
    try:
        yield
    finally:
        for name, function in functions:
            setattr(module, name, function)
        for part, name in methods:
            object.__delattr__(part, name)


def _zeros(function: Any) -> Any:
    def zeros(*args: Any, **kwargs: Any) -> Any:
        return torch.zeros_like(function(*args, **kwargs))

    return zeros
