"""Attention statistics of all layers, recorded in the same passes as the gradient.

`KernelRecorder` watches the attention; `KernelSums` keeps running sums over documents for one
attention operation, on the layer's own device. What is kept depends on what fits
(`finest_detail`): the kernel of each layer, averaged over heads; or, for long inputs, two margins
of each head's kernel. Always kept: the last token's attention row, the mean content logits on and
off the diagonal, and the mask and positional bias that attention really used.
"""

from __future__ import annotations

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
from workers.instrument.attention import (
    AttentionCall,
    BatchShape,
    BiasSeen,
    bias_of,
    block_bytes,
)
from workers.instrument.capture import capturing
from workers.instrument.inspection import Instrumentation
from workers.instrument.model_pass import Check, at_least_float32, no_check


def finest_detail(instrumentation: Instrumentation, length: int, budget: int = 1 << 30) -> Detail:
    """The finest detail whose sums stay within ``budget`` bytes for inputs of ``length`` tokens."""
    return "mean" if 4 * max(1, instrumentation.cores) * length**2 <= budget else "distance"


class KernelRecorder:
    """Records the attention kernels of every pass; a `workers.influence.batching.Recorder`.

    Passes that gradient checkpointing repeats are not counted again.

    Args:
        model: any.
        instrumentation: what `inspect` said about it.
        detail: what is kept.
        check: called with every block of rows; may raise to end the pass.

    Raises:
        ValueError: the instrumentation knows no way of watching this model's attention.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        instrumentation: Instrumentation,
        detail: Detail = "mean",
        check: Check = no_check,
    ) -> None:
        if instrumentation.capture == "none":
            raise ValueError("The attention of this model cannot be watched.")
        self._model = model
        self._instrumentation = instrumentation
        self._detail: Detail = detail
        self._check = check
        self._sums: dict[int, KernelSums] = {}
        self._shape = BatchShape()
        self._in_pass = False
        self._exit = ExitStack()

    def __enter__(self) -> KernelRecorder:
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

    def start_batch(self, ids: Tensor) -> None:
        """A forward pass over ``ids`` [B, n] comes next.

        A pass adds to sums of n x n numbers while it runs, and no copy of them is kept. So
        a pass that did not end spoils them, and only `reset` helps.

        Raises:
            RuntimeError: the last pass did not end, and what it added is still there.
        """
        if self._in_pass:
            raise RuntimeError("the last pass was broken off; its sums count nothing until reset")
        self._in_pass = True
        self._shape.start(int(ids.shape[0]), int(ids.shape[1]))

    def end_batch(self) -> None:
        """The pass is complete, forward and backward."""
        self._in_pass = False

    def reset(self) -> None:
        """Forget all passes, also one that did not end."""
        self._in_pass = False
        self._sums.clear()

    def held_bytes(self, length: int) -> int:
        """Bytes of the sums for documents of ``length`` tokens, and of a block of rows at work."""
        layers, heads = max(1, self._instrumentation.cores), _heads(self._model)
        sums = {"mean": 4 * length**2, "distance": 3 * 8 * heads * length}
        block = min(block_bytes(self._model.device.type), 4 * heads * length**2)
        return layers * (sums[self._detail] + 8 * heads * length) + 3 * block

    def begin(self, call: AttentionCall) -> None:
        """Observer protocol: a new attention operation."""
        number = call.number % self._instrumentation.cores
        if number not in self._sums:
            self._sums[number] = KernelSums(call, self._detail)
        self._sums[number].begin(call)

    def rows(self, call: AttentionCall, start: int, probabilities: Tensor) -> None:
        """Observer protocol: some rows of it."""
        self._check()
        self._sums[call.number % self._instrumentation.cores].rows(call, start, probabilities)

    def result(self) -> KernelStatistics:
        """Means over all documents so far, one entry per attention branch."""
        if not self._sums:
            raise ValueError("No pass has been watched yet.")
        layers = tuple(
            join_heads([self._sums[core].result() for core in branch.cores])
            for branch in self._instrumentation.branches
        )
        first = next(iter(self._sums.values()))
        return KernelStatistics(layers, first.documents, first.length, self._detail)


def _heads(model: PreTrainedModel) -> int:
    return max(table.heads(model.config.get_text_config()), 1)


class KernelSums:
    """Sums over documents for one attention operation of the model.

    Only sums over documents are kept, since a kernel of each document would fill the memory;
    `result` divides by their number. The kernels of all layers may take a gigabyte, so they are
    summed in float32; everything of length n is summed in float64.
    """

    def __init__(self, call: AttentionCall, detail: Detail) -> None:
        heads, n, device = call.heads, call.length, call.query.device
        self.detail, self.length, self.heads = detail, n, heads
        self.documents = 0
        self.scaling = call.scaling
        # Mask and bias are the model's, the same for all documents: the first call shows them.
        self.mask: MaskSeen = _mask(call)
        self.bias: BiasSeen | None = bias_of(call)

        def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self._weights = zeros(n, n, dtype=torch.float32) if detail == "mean" else None
        # Two margins of the kernel, for inputs whose kernel does not fit: the weight at each
        # distance, and the weight on token 0. Token 0 is kept apart, since an attention sink would
        # lay a false weight on every distance. The row sums tell what a learned sink takes away.
        self._distance = zeros(heads, n) if detail == "distance" else None
        self._first = zeros(heads, n) if detail == "distance" else None
        self._row_sums = zeros(heads, n) if detail == "distance" else None
        self._last = zeros(heads, n)
        # Logits q.k summed over the diagonal and over all visible pairs: their means differ by the
        # content logit d of the theory.
        self._diagonal, self._all = zeros(heads), zeros(heads)
        self._pairs = int(self.mask.visible.sum())

    def begin(self, call: AttentionCall) -> None:
        """Add a batch's content logits; under a causal mask that needs no n x n matrix."""
        if call.length != self.length:
            raise ValueError(
                f"Documents of {call.length} and {self.length} tokens cannot share one kernel."
            )
        self.documents += call.batch
        diagonal, everything = content_sums(call)
        self._diagonal += diagonal
        self._all += everything

    def rows(self, call: AttentionCall, start: int, probabilities: Tensor) -> None:
        """Add the weights of some query rows, [B, H, c, reach]."""
        summed = probabilities[0] if call.batch == 1 else probabilities.sum(0)
        stop, reach = start + summed.shape[1], summed.shape[2]
        if stop == self.length:
            self._last[:, :reach] += summed[:, -1]
        if self._weights is not None:
            self._weights[start:stop, :reach].add_(summed.sum(0), alpha=1 / self.heads)
        elif self._distance is not None and self._first is not None and self._row_sums is not None:
            self._row_sums[:, start:stop] += summed.sum(-1)
            self._first[:, start:stop] += summed[:, :, 0]
            by_distance = diagonal_sums(summed, start)
            self._distance[:, : by_distance.shape[1]] += by_distance

    def result(self) -> LayerStatistics:
        """Means over the documents seen so far."""
        n, count = self.length, self.documents
        below = self._pairs - n  # visible pairs off the diagonal; none for one token
        off = (self._all - self._diagonal) / (below * count) if below else self._all * 0
        distance = None
        if self._distance is not None:
            # n - 1 - d queries have a token other than token 0 at distance d.
            queries = torch.arange(n - 1, -1, -1, dtype=torch.float64).clamp(min=1)
            distance = _numpy(self._distance.cpu() / (queries * count))
        return LayerStatistics(
            heads=self.heads,
            weights=None if self._weights is None else (self._weights / count).cpu().numpy(),
            distance=distance,
            first=None if self._first is None else _numpy(self._first / count),
            row_sums=None if self._row_sums is None else _numpy(self._row_sums / count),
            last_row=_numpy(self._last / count),
            diagonal=_numpy(self._diagonal / (n * count)),
            off_diagonal=_numpy(off),
            scaling=self.scaling,
            mask=self.mask,
            bias=self.bias,
        )


def _numpy(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().double().cpu().numpy()


def content_sums(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """Sum of ``scaling * q.k`` over documents, on the diagonal and over all visible pairs, [H].

    Under a causal mask sum_j<=i q_i.k_j = q_i . (k_0 + ... + k_i): a cumulative sum of keys takes
    the place of all pairs.
    """
    batch, heads, n, width = call.query.shape
    groups = call.key.shape[1]
    key = at_least_float32(call.key)
    query = at_least_float32(call.query).reshape(batch, groups, heads // groups, n, width)

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

    ``weights`` [H, c, m] are the query rows start..start+c-1. Reversing each row and shifting row i
    by i puts equal distances into one column. The shift costs one padded copy: the same memory,
    read with rows that are one shorter, moves each row one place further than the row before.
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


def _mask(call: AttentionCall) -> MaskSeen:
    n = call.length
    if call.plain:  # known without forming the n x n mask
        return mask_seen(np.arange(1, n + 1), np.zeros(n, dtype=np.int64))
    blocks = [call.visible(start, stop)[0, 0] for start, stop in call.blocks()]
    return mask_seen(
        torch.cat([rows.sum(-1) for rows in blocks]).cpu().numpy(),
        torch.cat([rows.to(torch.uint8).argmax(-1) for rows in blocks]).cpu().numpy(),
    )
