"""Trading time for memory: each decoder layer's forward pass is repeated during the backward pass.

Only the layers' inputs stay in memory in between. Gradients are the same to the bit; the pass
takes about a third longer (the forward pass twice). transformers' own gradient checkpointing does
nothing in evaluation mode, so the layers are wrapped here. Hooks see a layer's inside twice: taps
have to leave out the repetition, as those of `workers.instrument` do.

How many documents at once: a size that does not depend on the machine's load, unless it must.

On the CPU a batch beyond some hundred tokens gains nothing, on a GPU some ten thousand fill it.
The size follows from the length alone, so that the same request gives the same bits; free memory
only lowers it, and so does an allocation that fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lacuna.architectures import table
from lacuna.contract.errors import OutOfMemory
from workers.faults import is_out_of_memory
from workers.influence import mixing as tapping
from workers.influence import passes
from workers.influence.mixing import Tap
from workers.models import facts
from workers.models.loaded import LoadedModel, available_bytes, gigabytes


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The stack that holds most parameters; empty when the model has no list of layers."""
    stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    largest = max(stacks, key=_size, default=None)
    return [] if largest is None or len(largest) < 2 else list(dict.fromkeys(largest))


@contextmanager
def layer_checkpointing(model: nn.Module) -> Iterator[None]:
    """Passes inside recompute every decoder layer for the backward pass."""
    layers = decoder_layers(model)
    for layer in layers:
        layer.forward = _repeating(layer.forward)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # the class's own comes back


def _repeating(forward: Callable[..., Any]) -> Callable[..., Any]:
    def repeated(*args: Any, **kwargs: Any) -> Any:
        # Nothing is random in evaluation mode: no generator state to keep.
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return repeated


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


_TOKENS = {"cpu": 512, "cuda": 16_384}
_SHARE = 0.6
"""Of the free memory: the backward pass needs some beside what the forward pass has saved."""
_PROBE_LENGTHS = (16, 32)


@dataclass(frozen=True)
class MemoryModel:
    """Bytes that one document's forward pass saves for its backward pass, by its length n.

    constant + linear n + quadratic n^2; the last is there when attention is not fused.
    """

    linear: float
    quadratic: float
    constant: float = 0.0

    def bytes(self, length: int) -> float:
        """Of one document of `length` tokens."""
        return self.constant + self.linear * length + self.quadratic * length**2

    def longest(self, available: float) -> int:
        """Length of the longest document that fits."""
        available = max(0.0, available - self.constant)
        if self.quadratic <= 0:
            return int(available / max(self.linear, 1.0))
        root = math.sqrt(self.linear**2 + 4 * self.quadratic * available)
        return int((root - self.linear) / (2 * self.quadratic))


def memory_model(loaded: LoadedModel, ids: Tensor, keep: int = 1) -> MemoryModel:
    """Measure by two short passes of one document, counting what autograd saves.

    `keep` positions' logits come on top, and what is computed from them.
    """
    short, long = _PROBE_LENGTHS
    length = ids.shape[1]
    if length <= long:
        return MemoryModel(_saved_bytes(loaded, ids[:1]) / length, 0.0, _said(loaded, keep))
    a, b = (_saved_bytes(loaded, ids[:1, :size]) for size in (short, long))
    quadratic = max(0.0, (b / long - a / short) / (long - short))
    return MemoryModel(b / long - quadratic * long, quadratic, _said(loaded, keep))


def _said(loaded: LoadedModel, keep: int) -> float:
    """Logits in float32, their logarithmic softmax and a gradient, of `keep` positions."""
    return 3.0 * torch.float32.itemsize * keep * facts.scores(loaded.model)


@dataclass(frozen=True)
class Plan:
    """How to run the documents: `size` at once, and whether layers are computed twice.

    `gradients` says whether there is a backward pass, for which alone that helps.
    """

    size: int
    sparing: bool = False
    gradients: bool = True


def plan(
    loaded: LoadedModel,
    ids: Tensor,
    batch_size: int,
    *,
    gradients: bool = True,
    keep: int = 1,
    taps: Sequence[Tap] = (),
) -> Plan:
    """Documents per batch: `batch_size`, or with 0 what suits length, device and free memory.

    When one document fits only if its layers are computed twice, they are. `keep` positions'
    logits are wanted; `taps` hold sums of their own.

    Raises:
        OutOfMemory: one document does not fit; names the largest length that does.
    """
    count, length = ids.shape
    wanted = max(1, min(count, batch_size or _TOKENS[loaded.device.type] // length))
    fits = _SHARE * available_bytes(loaded.device) - tapping.held_bytes(taps, length)
    if wanted * (_generous_bytes(loaded, length) + _said(loaded, keep)) < fits:
        return Plan(wanted, gradients=gradients)  # no doubt: not worth the probe's two passes
    model = memory_model(loaded, ids, keep)
    spare = _one_layer_at_a_time(loaded, model)
    if not gradients:
        model = spare  # what is freed layer by layer
    needed = model.bytes(length)
    if needed > fits:
        model, needed = spare, spare.bytes(length)
        if needed > fits:
            raise too_big(loaded, length, model, taps)
        return Plan(max(1, min(wanted, int(fits / needed))), gradients, gradients)
    size = wanted if batch_size else max(1, min(wanted, int(fits / max(needed, 1.0))))
    return Plan(size, gradients=gradients)


def _one_layer_at_a_time(loaded: LoadedModel, model: MemoryModel) -> MemoryModel:
    """Every layer's input, and the inside of two layers: one computed, one being freed."""
    layers = max(1, len(decoder_layers(loaded.model)))
    share = min(1.0, 2 / layers)
    inputs = layers * facts.width(loaded.model) * loaded.dtype.itemsize
    return MemoryModel(model.linear * share + inputs, model.quadratic * share, model.constant)


def _generous_bytes(loaded: LoadedModel, length: int) -> float:
    """More than any model was seen to need per document: about five times what a Llama saves."""
    depth, heads = table.layers(loaded.text_config), table.heads(loaded.text_config)
    return depth * length * (256.0 * facts.width(loaded.model) + 16.0 * heads * length)


def too_big(
    loaded: LoadedModel, length: int, model: MemoryModel, taps: Sequence[Tap] = ()
) -> OutOfMemory:
    """The failure for a document that does not fit alone, by the thriftiest way of running it."""
    free, held = available_bytes(loaded.device), tapping.held_bytes(taps, length)
    longest = min(length - 1, model.longest(_SHARE * free - held))
    return OutOfMemory(
        f"`sequence_length`: one document of {length} tokens needs about "
        f"{gigabytes(model.bytes(length) + held)} on {loaded.device}, {gigabytes(free)} are free; "
        f"the largest length that fits is about {longest}",
        field="sequence_length",
    )


def run(
    loaded: LoadedModel,
    ids: Tensor,
    how: Plan,
    one_batch: Callable[[int, Tensor], None],
    *,
    taps: Sequence[Tap] = (),
    restart: Callable[[], bool] | None = None,
) -> int:
    """Call `one_batch(first, ids[first : first + size])` until all documents are done.

    Batches are moved to the model's device one by one. When an allocation fails the size is halved
    and the batch tried again; with `restart`, which clears the traces that passes leave, all
    documents are read from the first on. It says False when they cannot be cleared. One document
    that does not fit alone is tried once more with its layers computed twice. `taps` are open
    during these passes only.

    Returns:
        The batch size in the end.

    Raises:
        OutOfMemory: an allocation failed for a batch of one, or must not be tried again.
    """
    size = _attempt(loaded, ids, how, one_batch, taps, restart)
    if not size and how.gradients and not how.sparing and (restart is None or restart()):
        size = _attempt(loaded, ids, Plan(1, sparing=True), one_batch, taps, restart)
    if not size:  # the estimate takes passes of its own, which no tap may see
        thrifty = _one_layer_at_a_time(loaded, memory_model(loaded, ids))
        raise too_big(loaded, ids.shape[1], thrifty, taps)
    return size


def _attempt(
    loaded: LoadedModel,
    ids: Tensor,
    how: Plan,
    one_batch: Callable[[int, Tensor], None],
    taps: Sequence[Tap],
    restart: Callable[[], bool] | None,
) -> int:
    """The batch size in the end; 0 when one document does not fit."""
    first, size = 0, how.size
    with layer_checkpointing(loaded.model) if how.sparing else nullcontext(), tapping.opened(taps):
        while first < len(ids):
            batch = ids[first : first + size]
            if _fits(one_batch, first, batch, loaded.device):
                first += len(batch)
                continue
            if loaded.device.type == "cuda":
                torch.cuda.empty_cache()
            if len(batch) == 1:
                return 0
            if restart is not None and not restart():
                raise OutOfMemory(
                    f"{len(batch)} documents of {ids.shape[1]} tokens do not fit on "
                    f"{loaded.device} together; set a lower LACUNA_BATCH_SIZE on the worker"
                )
            size = max(1, len(batch) // 2)
            first = first if restart is None else 0
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
        passes.observed(loaded.model, keep=1, gradients=True) as seen,
        torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor),
    ):
        kept = passes.logits(loaded.model, ids.to(loaded.device), seen, keep=1)
        total = sum(storages.values())
        del kept  # the graph had to live until here, so that no storage is counted twice
    return total
