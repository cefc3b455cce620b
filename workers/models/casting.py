"""Cast a model as loading its checkpoint would have cast it.

`model.to(dtype)` rounds every floating buffer too. Rotary frequencies in bfloat16 are wrong by up
to 0.4%, which is radians of phase after a thousand positions; `from_pretrained` keeps them in
float32.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

_AUTO: Any = AutoModelForCausalLM  # its class methods are half typed


def skeleton(config: Any, dtype: torch.dtype) -> PreTrainedModel | None:
    """The model of a configuration without memory for its tensors; their types are those that
    loading gives. None where its code does not build on the meta device.
    """
    try:
        with torch.device("meta"):
            empty: PreTrainedModel = _AUTO.from_config(config, dtype=dtype, trust_remote_code=False)
    except Exception:  # a model's own code may fail in any way; then loading finds out
        return None
    return empty


def cast(model: PreTrainedModel, like: PreTrainedModel | None, dtype: torch.dtype) -> None:
    """Give every parameter and buffer, in place, the type that `from_pretrained` gives it.

    Args:
        model: with parameters in float32.
        like: its `skeleton` in `dtype`; without one parameters alone are cast.
        dtype: float32 or bfloat16.
    """
    kept = re.compile("|".join(model._get_dtype_plan(dtype)) or r"(?!)")
    wanted = {} if like is None else {name: tensor.dtype for name, tensor in _tensors(like)}
    for name, tensor in _tensors(model):
        default = dtype if isinstance(tensor, nn.Parameter) else tensor.dtype
        kind = torch.float32 if kept.search(name) else wanted.get(name, default)
        if tensor.is_floating_point() and tensor.dtype != kind:
            tensor.data = tensor.data.to(kind)


def _tensors(model: PreTrainedModel) -> list[tuple[str, Tensor]]:
    """Shared ones under each of their names."""
    parameters = model.named_parameters(remove_duplicate=False)
    return [*parameters, *model.named_buffers(remove_duplicate=False)]
