"""Giving up in the middle of a pass: a forward or backward pass over long inputs takes minutes.

Hooks on every module that has parameters of its own, and on every element of a module list, call a
check during the forward pass; hooks on what those modules return call it during the backward pass,
also where layers are computed twice. What the check raises unwinds the pass: autograd hands on
exceptions of its hooks unchanged, the graph goes with them, and the model stays as it was. No hook
changes a value.

Gradients that are the same to the bit whenever they are taken, on a GPU too.

There the backward passes of fused attention add up in whatever order their blocks finish, unless
torch is told otherwise (and cuBLAS, by an environment variable that `python -m workers` sets). A
request's answer is stored under its content, so it must not vary.

One forward pass, with the input embeddings as the leaf and the last positions' logits only.

Works on any model of transformers: nothing is assumed but `get_input_embeddings()` and, when it
exists, `get_output_embeddings()`. The base model and the head are never called by hand, since many
families scale or cap in between.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

Check = Callable[[], None]
EVERY_SECONDS = 0.2


def go_on() -> None:
    """The check of those whom nobody stops."""


def throttled(check: Check, every: float = EVERY_SECONDS) -> Check:
    """`check`, called at most once in `every` seconds however often this is."""
    due = float("-inf")

    def now_and_then() -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due:
            due = now + every
            check()

    return now_and_then


@contextmanager
def interruptible(model: nn.Module, check: Check) -> Iterator[None]:
    """Passes of the model inside call `check` again and again, about once per layer and step.

    Args:
        model: any; its hooks are removed in the end, whatever ends it.
        check: cheap (see `throttled`); what it raises ends the pass.
    """

    def before(_module: nn.Module, _args: Any) -> None:
        check()

    def after(_module: nn.Module, _args: Any, output: Any) -> None:
        found = _first_tensor(output)
        if found is not None and found.grad_fn is not None:
            found.register_hook(backward)  # type: ignore[no-untyped-call]

    def backward(_gradient: Tensor) -> None:
        check()

    handles = []
    try:
        for module in _steps(model):
            handles.append(module.register_forward_pre_hook(before))
            handles.append(module.register_forward_hook(after))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _steps(model: nn.Module) -> list[nn.Module]:
    listed = {
        child
        for module in model.modules()
        if isinstance(module, nn.ModuleList)
        for child in module.children()
    }
    return [
        module
        for module in model.modules()
        if module in listed or next(module.parameters(recurse=False), None) is not None
    ]


def _first_tensor(output: Any) -> Tensor | None:
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple | list):
        return next((part for part in output if isinstance(part, Tensor)), None)
    return None


# Never deterministic: were it chosen in a forward pass, a repeated one would choose another.
torch.backends.cuda.enable_cudnn_sdp(False)

log = logging.getLogger(__name__)
_modes: Any = torch.utils.deterministic  # its property is not typed
_told: set[str] = set()


@contextmanager
def deterministic() -> Iterator[None]:
    """Operations inside add up in a fixed order; those that cannot raise a RuntimeError.

    Not the milder form that warns: it leaves fused attention as it is.
    """
    enabled = torch.are_deterministic_algorithms_enabled()
    mild = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = _modes.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    _modes.fill_uninitialized_memory = False  # costs time, changes nothing here
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=mild)
        _modes.fill_uninitialized_memory = filled


def gradients(
    output: Tensor,
    sources: Sequence[Tensor],
    cotangent: Tensor | None = None,
    *,
    again: bool = False,
) -> tuple[Tensor, ...]:
    """`torch.autograd.grad`, deterministic wherever all operations can be.

    Args:
        output: a scalar, or any shape with `cotangent`.
        sources: what to differentiate by.
        cotangent: like `output`.
        again: the graph is needed once more.
    """
    try:
        with deterministic():  # the graph is kept for the second way
            return torch.autograd.grad(output, sources, cotangent, retain_graph=True)
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        why = str(error)[:200]
    if why not in _told:
        _told.add(why)
        log.warning("gradients vary from run to run by rounding", extra={"why": why})
    return torch.autograd.grad(output, sources, cotangent, retain_graph=again)


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
