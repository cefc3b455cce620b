"""How many documents a pass reads at once, and running all of them in such batches.

`plan_batches` decides the size, `run_batches` runs and halves it when an allocation fails.

On a CPU a batch of more than some hundred tokens gains nothing; on a GPU ten thousand or so fill
it. The size follows from the length alone, so that the same request gives the same bits. Free
memory can only lower it, and so can a failed allocation.

When not even one document fits, its layers are computed twice: gradient checkpointing keeps only
the layers' inputs for the backward pass. The gradients are the same to the bit, and the pass takes
about a third longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lacuna.architectures import table
from lacuna.contract.errors import OutOfMemory
from workers.faults import is_out_of_memory
from workers.instrument.model_pass import last_logits, pass_hooks
from workers.models.loaded import LoadedModel, available_bytes, gigabytes

_TOKENS = {"cpu": 512, "cuda": 16_384}
"""Tokens of a batch that keep a device busy."""
_SHARE = 0.6
"""Of the free memory: the backward pass also needs what the forward pass did not save."""
_PROBE_LENGTHS = (16, 32)


class Recorder(Protocol):
    """Records statistics while the passes of another measurement run.

    Its hooks are set while the context is open.
    """

    def __enter__(self) -> Any:
        """Set the hooks."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> bool | None:
        """Remove the hooks."""

    def start_batch(self, ids: Tensor) -> None:
        """A forward pass over `ids` [B, n] comes next."""

    def end_batch(self) -> None:
        """Forward and backward pass are complete: keep what they showed."""

    def reset(self) -> None:
        """Forget all passes: the documents will be read again from the first."""

    def held_bytes(self, length: int) -> int:
        """Memory that its sums take on the device, for documents of `length` tokens."""


@dataclass(frozen=True)
class BatchPlan:
    """How to run the documents.

    Attributes:
        size: documents at once.
        checkpointing: compute the layers twice, to save memory.
        gradients: whether there is a backward pass; without one checkpointing saves nothing.
    """

    size: int
    checkpointing: bool = False
    gradients: bool = True


def plan_batches(
    loaded: LoadedModel,
    ids: Tensor,
    batch_size: int,
    *,
    gradients: bool = True,
    keep: int = 1,
    recorders: Sequence[Recorder] = (),
) -> BatchPlan:
    """Choose how many documents to run at once, and whether to compute their layers twice.

    Args:
        loaded: the model.
        ids: the documents, [K, n].
        batch_size: documents at once; 0 chooses by length, device and free memory.
        gradients: whether there is a backward pass.
        keep: positions whose logits are computed.
        recorders: what records during the passes.

    Raises:
        OutOfMemory: one document does not fit; names the largest length that does.
    """
    count, length = ids.shape
    wanted = max(1, min(count, batch_size or _TOKENS[loaded.device.type] // length))
    fits = _SHARE * available_bytes(loaded.device) - _held_bytes(recorders, length)
    if wanted * (_generous_bytes(loaded, length) + _logit_bytes(loaded, keep)) < fits:
        return BatchPlan(wanted, gradients=gradients)  # clear without the estimate's two passes
    estimate = estimate_memory(loaded, ids, keep)
    checkpointed = _checkpointed(loaded, estimate)
    if not gradients:
        estimate = checkpointed  # a forward pass frees layer by layer too
    needed = estimate.bytes(length)
    if needed > fits:
        needed = checkpointed.bytes(length)
        if needed > fits:
            raise _too_long(loaded, length, checkpointed, recorders)
        return BatchPlan(max(1, min(wanted, int(fits / needed))), gradients, gradients)
    size = wanted if batch_size else max(1, min(wanted, int(fits / max(needed, 1.0))))
    return BatchPlan(size, gradients=gradients)


def run_batches(
    loaded: LoadedModel,
    ids: Tensor,
    plan: BatchPlan,
    one_batch: Callable[[int, Tensor], None],
    *,
    recorders: Sequence[Recorder] = (),
    restart: Callable[[], None] | None = None,
) -> int:
    """Call `one_batch(first, ids[first : first + size])` until all documents are done.

    A failed allocation halves the size. One document that does not fit alone is tried once more
    with its layers computed twice.

    Args:
        loaded: the model; each batch is moved to its device when its turn comes.
        ids: the documents, [K, n].
        plan: from `plan_batches`.
        one_batch: runs a batch.
        recorders: open during these passes only.
        restart: forgets all that earlier batches left; then a smaller size starts from the first
            document. None: it goes on with the batch that failed.

    Returns:
        The batch size at the end.

    Raises:
        OutOfMemory: one document does not fit; names the largest length that does.
    """
    size = _attempt(loaded, ids, plan, one_batch, recorders, restart)
    if not size and plan.gradients and not plan.checkpointing:
        if restart is not None:
            restart()
        plan = BatchPlan(1, checkpointing=True)
        size = _attempt(loaded, ids, plan, one_batch, recorders, restart)
    if not size:  # the estimate runs passes of its own, which no recorder may see
        estimate = _checkpointed(loaded, estimate_memory(loaded, ids))
        raise _too_long(loaded, ids.shape[1], estimate, recorders)
    return size


def _attempt(
    loaded: LoadedModel,
    ids: Tensor,
    plan: BatchPlan,
    one_batch: Callable[[int, Tensor], None],
    recorders: Sequence[Recorder],
    restart: Callable[[], None] | None,
) -> int:
    """The batch size at the end; 0 when one document does not fit."""
    first, size = 0, plan.size
    with ExitStack() as stack:
        if plan.checkpointing:
            stack.enter_context(gradient_checkpointing(loaded.model))
        for recorder in recorders:
            stack.enter_context(recorder)
        while first < len(ids):
            batch = ids[first : first + size]
            if _fits(one_batch, first, batch, loaded.device):
                first += len(batch)
                continue
            if loaded.device.type == "cuda":
                torch.cuda.empty_cache()
            if len(batch) == 1:
                return 0
            size = max(1, len(batch) // 2)
            if restart is not None:
                restart()
                first = 0
    return size


def _fits(
    one_batch: Callable[[int, Tensor], None], first: int, batch: Tensor, device: torch.device
) -> bool:
    try:
        one_batch(first, batch.to(device))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False  # leaving the handler frees what the traceback holds
    return True


# --- gradient checkpointing -----------------------------------------------------------------------


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The module list with the most parameters; empty when the model has no list of layers."""
    stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    largest = max(stacks, key=_parameters, default=None)
    return [] if largest is None or len(largest) < 2 else list(dict.fromkeys(largest))


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@contextmanager
def gradient_checkpointing(model: nn.Module) -> Iterator[None]:
    """Passes inside compute every decoder layer again during the backward pass.

    transformers' own gradient checkpointing does nothing in evaluation mode, so the layers are
    wrapped here. Hooks inside a layer run twice; see `instrument.branches.recomputing`.
    """
    layers = decoder_layers(model)
    for layer in layers:
        layer.forward = _checkpointing(layer.forward)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # the method of the class shows again


def _checkpointing(forward: Callable[..., Any]) -> Callable[..., Any]:
    def repeated(*args: Any, **kwargs: Any) -> Any:
        # Nothing is random in evaluation mode, so no generator state is saved.
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return repeated


# --- memory ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that one document's forward pass saves for its backward pass, by its length n.

    They are constant + linear n + quadratic n^2; the last when attention is not fused.
    """

    linear: float
    quadratic: float
    constant: float = 0.0

    def bytes(self, length: int) -> float:
        """Bytes of one document of `length` tokens."""
        return self.constant + self.linear * length + self.quadratic * length**2

    def longest(self, available: float) -> int:
        """Tokens of the longest document that fits into `available` bytes."""
        available = max(0.0, available - self.constant)
        if self.quadratic <= 0:
            return int(available / max(self.linear, 1.0))
        root = math.sqrt(self.linear**2 + 4 * self.quadratic * available)
        return int(2 * available / (root + self.linear))  # root - linear would lose its digits


def estimate_memory(loaded: LoadedModel, ids: Tensor, keep: int = 1) -> MemoryEstimate:
    """Estimate by two short passes of one document, which count what autograd saves.

    Args:
        loaded: the model.
        ids: the documents, [K, n].
        keep: positions whose logits are computed; they and what follows from them are added.
    """
    short, long = _PROBE_LENGTHS
    length = ids.shape[1]
    logits = _logit_bytes(loaded, keep)
    if length <= long:
        return MemoryEstimate(_saved_bytes(loaded, ids[:1]) / length, 0.0, logits)
    a, b = (_saved_bytes(loaded, ids[:1, :size]) for size in (short, long))
    quadratic = max(0.0, (b / long - a / short) / (long - short))
    return MemoryEstimate(b / long - quadratic * long, quadratic, logits)


def _saved_bytes(loaded: LoadedModel, ids: Tensor) -> int:
    storages: dict[int, int] = {}
    weights = {p.untyped_storage().data_ptr() for p in loaded.model.parameters()}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with (
        torch.enable_grad(),
        pass_hooks(loaded.model, keep=1, gradients=True) as trace,
        torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor),
    ):
        kept = last_logits(loaded.model, ids.to(loaded.device), trace, keep=1)
        total = sum(storages.values())
        del kept  # the graph lived until here, so no address was reused and counted twice
    return total


def _logit_bytes(loaded: LoadedModel, keep: int) -> float:
    """Logits in float32, their logarithmic softmax in float64 twice, and two gradients."""
    return 7.0 * torch.float32.itemsize * keep * loaded.scored_vocabulary


def _checkpointed(loaded: LoadedModel, estimate: MemoryEstimate) -> MemoryEstimate:
    """Every layer's input, and the inside of two layers: one is computed, one is being freed."""
    layers = max(1, len(decoder_layers(loaded.model)))
    share = min(1.0, 2 / layers)
    inputs = layers * loaded.width * loaded.dtype.itemsize
    linear = estimate.linear * share + inputs
    return MemoryEstimate(linear, estimate.quadratic * share, estimate.constant)


def _generous_bytes(loaded: LoadedModel, length: int) -> float:
    """More per document than any model needed in our tests: about five times what a Llama saves."""
    depth, heads = table.layers(loaded.text_config), table.heads(loaded.text_config)
    return depth * length * (256.0 * loaded.width + 16.0 * heads * length)


def _held_bytes(recorders: Sequence[Recorder], length: int) -> int:
    return sum(recorder.held_bytes(length) for recorder in recorders)


def _too_long(
    loaded: LoadedModel, length: int, estimate: MemoryEstimate, recorders: Sequence[Recorder]
) -> OutOfMemory:
    """The error for a document that does not fit alone, with the length that would."""
    free, held = available_bytes(loaded.device), _held_bytes(recorders, length)
    longest = min(length - 1, estimate.longest(_SHARE * free - held))
    return OutOfMemory(
        f"`sequence_length`: one document of {length} tokens needs about "
        f"{gigabytes(estimate.bytes(length) + held)} on {loaded.device}, {gigabytes(free)} are "
        f"free; the largest length that fits is about {longest}",
        field="sequence_length",
    )
