"""Attention statistics, gathered in the same pass as the gradient.

What is kept depends on what fits: every head's mean kernel, one head-averaged kernel per layer, or,
for long inputs, the distance profile and the column of token 0. Always: the last token's attention
row, the mean content logits on and off the diagonal, and the mask and the positional bias that the
attention really used.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from workers.instrument.attention import AttentionCall, BatchShape, block_bytes
from workers.instrument.capture import capturing
from workers.instrument.inspection import Instrumentation
from workers.measure.interruption import Check, go_on
from workers.measure.kernel_accumulator import Accumulator
from workers.measure.kernel_statistics import (
    Detail,
    KernelStatistics,
    LayerStatistics,
    join_heads,
)
from workers.measure.profile_kernel import measured_kernel
from workers.models import facts

__all__ = [
    "Detail",
    "KernelStatistics",
    "KernelTap",
    "LayerStatistics",
    "detail_that_fits",
    "document_kernels",
    "measured_kernel",
]


def detail_that_fits(
    model: PreTrainedModel, instrumentation: Instrumentation, length: int, budget: int = 1 << 30
) -> Detail:
    """The finest detail whose sums stay within ``budget`` bytes for inputs of ``length`` tokens."""
    heads = max(facts.heads(model.config.get_text_config()), 1)
    layers = max(1, instrumentation.cores)
    if 4 * layers * heads * length**2 <= budget:
        return "per_head"
    return "mean" if 4 * layers * length**2 <= budget else "distance"


class KernelTap:
    """Context manager that watches the attention of every forward pass inside it.

    ``start_batch(ids)`` comes before each pass. The model is as it was after leaving. Passes that
    gradient checkpointing repeats are not counted again. ``check`` is called with every block of
    rows that is watched, and may raise to end the pass.

    Raises:
        ValueError: the instrumentation names no way of watching this model's attention.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        instrumentation: Instrumentation,
        detail: Detail = "per_head",
        edges: Sequence[int] | None = None,
        check: Check = go_on,
    ) -> None:
        if instrumentation.capture == "none":
            raise ValueError("The attention of this model cannot be watched.")
        if edges is not None and detail != "per_head":
            raise ValueError("Only kernels per head can be binned.")
        self._model = model
        self._instrumentation = instrumentation
        self._detail: Detail = detail
        self._edges = None if edges is None else torch.tensor(edges)
        self._check = check
        self._sums: dict[int, Accumulator] = {}
        self._shape = BatchShape()
        self._open = False
        self._exit = ExitStack()

    def __enter__(self) -> KernelTap:
        self._exit.enter_context(
            capturing(self._model, self._instrumentation.capture, self, self._shape)
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exit.close()

    def held_bytes(self, length: int) -> int:
        """Sums on the device for documents of `length` tokens, and a block of rows at work."""
        layers = max(1, self._instrumentation.cores)
        heads = max(facts.heads(self._model.config.get_text_config()), 1)
        size = length if self._edges is None else self._edges.numel() - 1
        sums = {
            "per_head": 4 * heads * size**2,
            "mean": 4 * length**2,
            "distance": 3 * 8 * heads * length,
        }
        block = min(block_bytes(self._model.device.type), 4 * heads * length**2)
        return layers * (sums[self._detail] + 8 * heads * length) + 3 * block

    def start_batch(self, ids: Tensor) -> None:
        """Announce a pass over ``ids`` [B, n].

        After a pass that was broken off, `reset` first: passes add to sums of n x n numbers per
        head, of which no copy is kept.

        Raises:
            RuntimeError: the last pass was broken off, and what it added is still there.
        """
        if self._open:
            raise RuntimeError("the last pass was broken off; its sums count nothing until reset")
        self._open = True
        self._shape.start(int(ids.shape[0]), int(ids.shape[1]))

    def end_batch(self) -> None:
        """The pass is complete, forward and backward."""
        self._open = False

    def reset(self) -> None:
        """Forget all passes, the broken one too."""
        self._open = False
        self._sums.clear()

    def begin(self, call: AttentionCall) -> None:
        """Observer protocol: a new attention operation."""
        number = call.number % self._instrumentation.cores
        if number not in self._sums:
            self._sums[number] = Accumulator(call, self._detail, self._edges)
        self._sums[number].begin(call)

    def rows(self, call: AttentionCall, start: int, probabilities: Tensor) -> None:
        """Observer protocol: some rows of it."""
        self._check()
        self._sums[call.number % self._instrumentation.cores].rows(call, start, probabilities)

    def result(self) -> KernelStatistics:
        """Means over all documents so far, one entry per attention site."""
        if not self._sums:
            raise ValueError("No pass has been watched yet.")
        layers = tuple(
            join_heads([self._sums[core].result() for core in site.cores])
            for site in self._instrumentation.sites
        )
        first = next(iter(self._sums.values()))
        return KernelStatistics(layers, first.documents, first.length, self._detail)


@torch.no_grad()
def document_kernels(
    model: PreTrainedModel,
    instrumentation: Instrumentation,
    ids: Tensor,
    edges: Sequence[int] | None = None,
) -> list[NDArray[np.float32]]:
    """One document's kernels, per attention layer [H, n, n], by a forward pass of its own.

    ``ids`` [n]. With ``edges`` (bin boundaries from 0 to n) the kernels are binned, [H, b, b], and
    memory stays at layers x heads x b^2: see `Accumulator`.
    """
    with KernelTap(model, instrumentation, "per_head", edges) as tap:
        tap.start_batch(ids[None])
        model(input_ids=ids[None], use_cache=False)
    kernels = [layer.weights for layer in tap.result().layers]
    return [kernel for kernel in kernels if kernel is not None]
