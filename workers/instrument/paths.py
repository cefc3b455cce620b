"""Which positions can move which: read off gradients, not off differences between passes."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from service.contract.errors import ModelUnsupported
from workers.faults import ours

CUT = 1e-6
"""Share of the gradient below which there is no path."""


def share_from(model: PreTrainedModel, ids: Tensor, read: slice, asked: slice) -> float:
    """How much the embeddings of ``asked`` move the logits at ``read``: their largest gradient as
    a share of the largest of all, for a random combination of the logits.

    A path that a mask cuts has a gradient of exactly 0 in every precision, while two passes over
    different tokens may differ by rounding: their sums are grouped otherwise.

    Raises:
        ModelUnsupported: no gradient can be taken, or the model adds tokens of its own.
    """
    leaf: list[Tensor] = []

    def embedded(_module: object, _args: object, output: Tensor) -> Tensor | None:
        if leaf:  # the table is read again, as a tied head does
            return None
        leaf.append(output.detach().requires_grad_())
        return leaf[0].clone()

    handle = model.get_input_embeddings().register_forward_hook(embedded)
    try:
        with torch.enable_grad():
            logits = model(input_ids=ids, use_cache=False).logits[:, read]
            drawn = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
            (found,) = torch.autograd.grad((logits * drawn.to(logits)).sum(), leaf)
    except Exception as error:  # a model's own code may fail in any way
        if ours(error):
            raise
        raise ModelUnsupported(
            f"The model cannot be differentiated: {type(error).__name__}: {str(error)[:200]}"
        ) from error
    finally:
        handle.remove()
    if found.shape[:-1] != ids.shape:
        raise ModelUnsupported(
            f"The model does not embed the tokens it is given, one vector each: token ids of shape "
            f"{list(ids.shape)} become a tensor of shape {list(found.shape)}."
        )
    sizes = found.float().abs()
    return float(sizes[:, asked].max() / sizes.max().clamp_min(1e-30))
