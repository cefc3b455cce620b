"""Running sums over documents of one attention layer's statistics, on the layer's own device.

Attention statistics, gathered in the same pass as the gradient.

What is kept depends on what fits: every head's mean kernel, one head-averaged kernel per layer, or,
for long inputs, the distance profile and the column of token 0. Always: the last token's attention
row, the mean content logits on and off the diagonal, and the mask and the positional bias that the
attention really used.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from lacuna.architectures import table
from workers.attention.statistics import (
    Detail,
    KernelStatistics,
    LayerStatistics,
    MaskSeen,
    join_heads,
    mask_seen,
)
from workers.influence.passes import Check, go_on
from workers.instrument.attention import (
    AttentionCall,
    BatchShape,
    BiasSeen,
    bias_of,
    block_bytes,
    wide,
)
from workers.instrument.capture import capturing
from workers.instrument.inspection import Instrumentation


class Accumulator:
    """Sums for one attention operation of the model.

    ``edges`` (increasing, from 0 to n) asks for kernels binned over positions: the mean over the
    queries of a bin of the weight on all keys of a bin, so that rows keep their sum.
    """

    def __init__(self, call: AttentionCall, detail: Detail, edges: Tensor | None = None) -> None:
        heads, n, device = call.heads, call.length, call.query.device
        self.detail, self.length, self.heads = detail, n, heads
        self.documents = 0
        self.scaling = call.scaling
        self.mask: MaskSeen = _mask(call)
        self.bias: BiasSeen | None = bias_of(call)
        self._bins = None if edges is None else _membership(edges.to(device), n)
        size = n if self._bins is None else int(self._bins.shape[1])

        def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self._weights: Tensor | None = None
        if detail == "per_head":
            self._weights = zeros(heads, size, size, dtype=torch.float32)
        elif detail == "mean":
            self._weights = zeros(n, n, dtype=torch.float32)
        self._distance = zeros(heads, n) if detail == "distance" else None
        self._first = zeros(heads, n) if detail == "distance" else None
        self._sums = zeros(heads, n) if detail == "distance" else None
        self._last = zeros(heads, n)
        self._diagonal, self._all = zeros(heads), zeros(heads)
        self._pairs = int(self.mask.visible.sum())

    def begin(self, call: AttentionCall) -> None:
        """Content logits of a batch; their means need no n x n matrix under a causal mask."""
        if call.length != self.length:
            raise ValueError(
                f"Documents of {call.length} and {self.length} tokens cannot share one kernel."
            )
        self.documents += call.batch
        diagonal, everything = content_sums(call)
        self._diagonal += diagonal
        self._all += everything

    def rows(self, call: AttentionCall, start: int, probabilities: Tensor) -> None:
        """Weights of some query rows, [B, H, c, reach]."""
        summed = probabilities[0] if call.batch == 1 else probabilities.sum(0)
        stop, reach = start + summed.shape[1], summed.shape[2]
        if stop == self.length:
            self._last[:, :reach] += summed[:, -1]
        if self._bins is not None and self._weights is not None:
            columns = summed.float() @ self._bins[:reach]
            share = self._bins[start:stop] / self._bins.sum(0)
            self._weights += torch.einsum("hcj,ci->hij", columns, share)
        elif self.detail == "per_head" and self._weights is not None:
            self._weights[:, start:stop, :reach] += summed
        elif self.detail == "mean" and self._weights is not None:
            self._weights[start:stop, :reach].add_(summed.sum(0), alpha=1 / self.heads)
        elif self._distance is not None and self._first is not None and self._sums is not None:
            self._sums[:, start:stop] += summed.sum(-1)
            self._first[:, start:stop] += summed[:, :, 0]
            by_distance = diagonal_sums(summed, start)
            self._distance[:, : by_distance.shape[1]] += by_distance

    def result(self) -> LayerStatistics:
        """Means over the documents seen so far."""
        n, count = self.length, self.documents
        below = self._pairs - n
        off = (self._all - self._diagonal) / (below * count) if below else self._all * 0
        distance = None
        if self._distance is not None:
            queries = torch.arange(n - 1, -1, -1, dtype=torch.float64).clamp(min=1)
            distance = _numpy(self._distance.cpu() / (queries * count))
        return LayerStatistics(
            heads=self.heads,
            weights=None if self._weights is None else (self._weights / count).cpu().numpy(),
            distance=distance,
            first=None if self._first is None else _numpy(self._first / count),
            row_sums=None if self._sums is None else _numpy(self._sums / count),
            last_row=_numpy(self._last / count),
            diagonal=_numpy(self._diagonal / (n * count)),
            off_diagonal=_numpy(off),
            scaling=self.scaling,
            mask=self.mask,
            bias=self.bias,
        )


def content_sums(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """Sum of ``scaling * q.k`` over documents, on the diagonal and over all visible pairs, [H].

    sum_j<=i q_i.k_j = q_i . (k_0 + ... + k_i): a cumulative sum instead of all pairs.
    """
    batch, heads, n, width = call.query.shape
    groups = call.key.shape[1]
    key = wide(call.key)
    query = wide(call.query).reshape(batch, groups, heads // groups, n, width)

    def paired(keys: Tensor) -> Tensor:
        products = (query * keys[:, :, None]).sum((3, 4)).double().sum(0)
        return products.reshape(heads) * call.scaling

    if call.plain:
        return paired(key), paired(key.cumsum(2))
    visible = call.visible(0, n)
    if visible.shape[1] == 1:
        sums = [
            visible[:, :, start:stop].to(key.dtype).expand(batch, groups, -1, -1) @ key
            for start, stop in call.blocks()
        ]
        return paired(key), paired(torch.cat(sums, 2))
    total = torch.zeros(heads, dtype=torch.float64, device=key.device)
    for start, stop in call.blocks():
        scores = call.scores(start, stop).masked_fill(~call.visible(start, stop), 0)
        total += scores.sum((2, 3)).double().sum(0)
    return paired(key), total


def diagonal_sums(weights: Tensor, start: int) -> Tensor:
    """Sum of the weights at each distance i - j, leaving out column 0, float64 [H, distances].

    ``weights`` [H, c, m] are query rows start..start+c-1. Row i of the matrix, reversed and shifted
    by i, lines the distances up in columns: one padded copy, reread with a row length one shorter.
    """
    heads, rows, keys = weights.shape
    if keys < 2:
        return torch.zeros(heads, 1, dtype=torch.float64, device=weights.device)
    flipped = torch.nn.functional.pad(weights[:, :, 1:].flip(-1), (0, rows))
    width = keys - 1 + rows
    skewed = flipped.reshape(heads, rows * width)[:, : rows * (width - 1)]
    sums = skewed.view(heads, rows, width - 1).sum(1).double()
    # Column t holds distance t - (keys - 1 - start); keys beyond a query weigh nothing.
    return sums[:, max(0, keys - 1 - start) :]


def _membership(edges: Tensor, n: int) -> Tensor:
    """[n, b] with 1 where a position belongs to a bin."""
    position = torch.arange(n, device=edges.device)
    inside = (position[:, None] >= edges[:-1]) & (position[:, None] < edges[1:])
    return inside.float()


def _mask(call: AttentionCall) -> MaskSeen:
    n = call.length
    if call.plain:  # known without a mask, which would be n x n
        return mask_seen(np.arange(1, n + 1), np.zeros(n, dtype=np.int64))
    blocks = [call.visible(start, stop)[0, 0] for start, stop in call.blocks()]
    return mask_seen(
        torch.cat([rows.sum(-1) for rows in blocks]).cpu().numpy(),
        torch.cat([rows.to(torch.uint8).argmax(-1) for rows in blocks]).cpu().numpy(),
    )


def _numpy(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().double().cpu().numpy()


def detail_that_fits(
    model: PreTrainedModel, instrumentation: Instrumentation, length: int, budget: int = 1 << 30
) -> Detail:
    """The finest detail whose sums stay within ``budget`` bytes for inputs of ``length`` tokens."""
    heads = max(table.heads(model.config.get_text_config()), 1)
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
        heads = max(table.heads(self._model.config.get_text_config()), 1)
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
