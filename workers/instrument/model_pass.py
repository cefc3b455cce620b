"""One pass of a model: from the input embeddings to the last positions' logits, and back.

    with interruptible(model, check), pass_hooks(model, keep=1, gradients=True) as trace:
        logits = last_logits(model, ids, trace, keep=1)
        (gradient,) = deterministic_grad(logits.max(), [trace.leaf])

This works on any model of transformers. It assumes only `get_input_embeddings()` and, where it
exists, `get_output_embeddings()`. The base model and the head are never called separately, since
many families scale or cap in between.
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


@dataclass
class PassTrace:
    """What the hooks saw in the latest forward pass.

    Attributes:
        leaf: input embeddings [B, n, width], requiring gradients.
        hidden: input of the LM head at the last positions [B, keep, width]; None when the head is
            not a module that the model calls.
    """

    leaf: Tensor | None = None
    hidden: Tensor | None = None


@contextmanager
def pass_hooks(model: PreTrainedModel, *, keep: int, gradients: bool) -> Iterator[PassTrace]:
    """Hooks for passes that need the last `keep` positions' logits, and gradients if asked."""
    trace = PassTrace()
    handles = []
    if gradients:
        handles.append(_leaf_at_embeddings(model, trace))
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if isinstance(head, nn.Module):
        handles.append(
            head.register_forward_pre_hook(_last_positions_hook(trace, keep), with_kwargs=True)
        )
    try:
        yield trace
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def embedding_leaf(model: PreTrainedModel) -> Iterator[PassTrace]:
    """Inside, the input embeddings of the first forward pass are a leaf that takes gradients."""
    trace = PassTrace()
    handle = _leaf_at_embeddings(model, trace)
    try:
        yield trace
    finally:
        handle.remove()


def _leaf_at_embeddings(model: PreTrainedModel, trace: PassTrace) -> Any:
    """Hook the OUTPUT of the embedding module.

    That equals passing `inputs_embeds` where a model handles those faithfully, and is right where
    it does not.
    """

    def hook(_module: nn.Module, _args: Any, output: Tensor) -> Tensor | None:
        if trace.leaf is not None:  # the table is read again, as a tied head does
            return None
        trace.leaf = output.detach().requires_grad_()
        return trace.leaf.clone()  # some models scale the embeddings in place

    embeddings: Any = model.get_input_embeddings()
    return embeddings.register_forward_hook(hook)


def _last_positions_hook(trace: PassTrace, keep: int) -> Any:
    def hook(
        _module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        name = None if args else next(iter(kwargs))
        hidden: Tensor = args[0] if name is None else kwargs[name]
        if hidden.dim() != 3:  # all documents' tokens in one axis: which are last is unknown here
            return args, kwargs
        trace.hidden = hidden[:, -keep:]
        if name is None:
            return (trace.hidden, *args[1:]), kwargs
        return args, {**kwargs, name: trace.hidden}

    return hook


def last_logits(model: PreTrainedModel, ids: Tensor, trace: PassTrace, *, keep: int) -> Tensor:
    """Logits of the last `keep` positions, [B, keep, vocabulary], in float32 or float64.

    Call it inside `pass_hooks` with the same `keep`. The model keeps no key-value cache.
    """
    trace.leaf = trace.hidden = None
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


# --- gradients that are the same to the bit each time ---------------------------------------------
#
# On a GPU the backward passes of fused attention add up in the order in which blocks finish, unless
# torch is told otherwise (and cuBLAS, by an environment variable that `python -m workers` sets). A
# profile is stored under a digest of its request, so equal requests must give equal numbers.

# cuDNN's attention is never deterministic. It is off for forward passes too: a forward pass that
# gradient checkpointing repeats must choose the same implementation as the first one.
torch.backends.cuda.enable_cudnn_sdp(False)

log = logging.getLogger(__name__)
_modes: Any = torch.utils.deterministic  # its property is not typed
_warned: set[str] = set()


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Operations inside add up in a fixed order; those that cannot raise a RuntimeError.

    The milder form, which only warns, leaves fused attention as it is.
    """
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = _modes.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    _modes.fill_uninitialized_memory = False  # it costs time and changes no result here
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        _modes.fill_uninitialized_memory = filled


def deterministic_grad(
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
        again: keep the graph for another call.
    """
    try:
        with deterministic_algorithms():  # the graph is kept for the second attempt
            return torch.autograd.grad(output, sources, cotangent, retain_graph=True)
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        why = str(error)[:200]
    if why not in _warned:
        _warned.add(why)
        log.warning("gradients vary from run to run by rounding", extra={"why": why})
    return torch.autograd.grad(output, sources, cotangent, retain_graph=again)


# --- giving up in the middle of a pass ------------------------------------------------------------
#
# A forward or backward pass over a long input takes minutes. Hooks on every module that has
# parameters of its own, and on every element of a module list, call a check during the forward
# pass; hooks on what those modules return call it during the backward pass, also where layers are
# computed twice. What the check raises unwinds the pass: autograd passes exceptions of its hooks on
# unchanged, the graph is freed with them, and the model stays as it was.

Check = Callable[[], None]
"""Returns to let a pass go on, raises to end it."""
CHECK_SECONDS = 0.2


def no_check() -> None:
    """The check of a pass that nothing interrupts."""


def throttled(check: Check, every: float = CHECK_SECONDS) -> Check:
    """`check`, called at most once in `every` seconds however often the result is called."""
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
    """Passes of the model inside call `check` about once per layer and step, in both directions.

    Args:
        model: its hooks are removed at the end, also after an exception. No hook changes a value.
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
