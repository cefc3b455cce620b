"""Running sums over documents of one attention layer's statistics, on the layer's own device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workers.instrument.attention import AttentionCall, wide
from workers.instrument.positional_bias import BiasSeen, bias_of
from workers.measure.kernel_statistics import (
    Detail,
    LayerStatistics,
    MaskSeen,
    mask_seen,
)


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
