"""One forward pass, with the input embeddings as the leaf and the last positions' logits only.

Works on any model of transformers: nothing is assumed but `get_input_embeddings()` and, when it
exists, `get_output_embeddings()`. The base model and the head are never called by hand, since many
families scale or cap in between.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


@dataclass
class Pass:
    """What the hooks of `observed` saw in the latest forward pass.

    Attributes:
        leaf: input embeddings [B, n, width], requiring gradients.
        hidden: input of the LM head at the last positions [B, keep, width], or None when the head
            is no module that is called.
    """

    leaf: Tensor | None = None
    hidden: Tensor | None = None


@contextmanager
def observed(model: PreTrainedModel, *, keep: int, gradients: bool) -> Iterator[Pass]:
    """Hooks for passes that need the last `keep` positions' logits.

    The leaf is the OUTPUT of the embedding module: the same as passing `inputs_embeds` where a
    model takes those faithfully, and right where it does not.
    """
    seen = Pass()
    handles = []
    if gradients:
        embeddings: Any = model.get_input_embeddings()
        handles.append(embeddings.register_forward_hook(_leaf_hook(seen)))
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if isinstance(head, nn.Module):
        handles.append(
            head.register_forward_pre_hook(_last_positions_hook(seen, keep), with_kwargs=True)
        )
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def logits(model: PreTrainedModel, ids: Tensor, seen: Pass, *, keep: int) -> Tensor:
    """Logits of the last `keep` positions, [B, keep, vocabulary], in float32 or better.

    Call it inside `observed` with the same `keep`. No key-value cache is kept.
    """
    seen.leaf = seen.hidden = None
    known = inspect.signature(model.forward).parameters.values()
    names = {parameter.name for parameter in known}
    options: dict[str, Any] = {}
    if "use_cache" in names or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known):
        options["use_cache"] = False
    if "logits_to_keep" in names:
        options["logits_to_keep"] = keep
    found: Tensor = model(input_ids=ids, **options).logits[:, -keep:]
    return at_least_float32(found)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Half precision becomes float32; float32 and float64 stay."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _leaf_hook(seen: Pass) -> Any:
    def hook(_module: nn.Module, _args: Any, output: Tensor) -> Tensor | None:
        if seen.leaf is not None:  # the table is read again, as a tied head does
            return None
        seen.leaf = output.detach().requires_grad_()
        return seen.leaf.clone()  # some models scale the embeddings in place

    return hook


def _last_positions_hook(seen: Pass, keep: int) -> Any:
    def hook(
        _module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        name = None if args else next(iter(kwargs))
        hidden: Tensor = args[0] if name is None else kwargs[name]
        if hidden.dim() != 3:  # tokens of all documents in one row: which are last is unknown here
            return args, kwargs
        seen.hidden = hidden[:, -keep:]
        if name is None:
            return (seen.hidden, *args[1:]), kwargs
        return args, {**kwargs, name: seen.hidden}

    return hook
