"""What was seen of a model's attention, as numpy arrays, and the kernels that theory rolls out.

`measured_kernel` is the mean kernel of a layer. At lengths where the n x n mean kernel does not fit
into memory, two margins of it are kept per head: the mean weight at each distance i - j, and the
weight on token 0 by query i. The kernel is then the one with both margins and otherwise the least
structure (the maximum-entropy kernel with these margins):

    A[i, 0] = c_i,    A[i, j] = (s_i - c_i) w(i - j) / W_i,    W_i = w(0) + ... + w(i - 1),

with s_i the sum of the row: 1, or less where an attention sink keeps a share. Iterative scaling
finds w (`fit_margins`): the total at distance d of the current kernel is
w(d) * sum_{i > d} (s_i - c_i) / W_i, and w(d) is multiplied by the measured total over this one
(Darroch and Ratcliff, 1972). One step costs O(n) per head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lacuna.theory import kernels as theory
from lacuna.theory.kernels import Kernel
from workers.instrument.attention import BiasSeen

F64 = NDArray[np.float64]
Detail = Literal["mean", "distance"]
"""What is kept of a kernel: its average over heads, or two margins of it per head."""


@dataclass(frozen=True)
class MaskSeen:
    """The mask of one attention layer.

    Attributes:
        kind: a query sees all keys up to itself ("causal"), its last `window` keys with itself
            ("window"), or others ("other": chunks, prefixes, ...).
        window: in keys; None unless the kind is "window".
        visible: how many keys each query sees, [n].
    """

    kind: Literal["causal", "window", "other"]
    window: int | None
    visible: NDArray[np.int64]


@dataclass(frozen=True)
class LayerStatistics:
    """Means over documents for one attention layer of H heads and inputs of n tokens.

    Attributes:
        heads: H.
        weights: [n, n], the kernel averaged over heads; None unless the detail is "mean".
        distance: [H, n], mean weight on the token at each distance, token 0 left out, over the
            queries that have one; None unless the detail is "distance", as the next two.
        first: [H, n], mean weight on token 0, by query.
        row_sums: [H, n], 1, or less where attention sinks draw weight.
        last_row: [H, n], the last query's weights.
        diagonal: [H], mean of `scaling * q.k` on the diagonal, before soft-capping, bias and mask.
        off_diagonal: [H], the same over the visible pairs below the diagonal.
        scaling: the model's factor of q.k.
        mask: what the queries really saw.
        bias: what was added to the logits by position; None without.
    """

    heads: int
    weights: NDArray[np.float32] | None
    distance: F64 | None
    first: F64 | None
    row_sums: F64 | None
    last_row: F64
    diagonal: F64
    off_diagonal: F64
    scaling: float
    mask: MaskSeen
    bias: BiasSeen | None

    def mean_kernel(self) -> F64:
        """[n, n], averaged over heads.

        Raises:
            ValueError: the detail is "distance", so it was not kept.
        """
        if self.weights is None:
            raise ValueError("No kernel was kept: measure with detail 'mean'.")
        return self.weights.astype(np.float64)

    def stochastic_kernel(self) -> F64:
        """`mean_kernel` with rows that sum to 1: sinks keep a share, and float32 rounds."""
        kernel = self.mean_kernel()
        return np.asarray(kernel / kernel.sum(axis=-1, keepdims=True))

    def content(self, scale: Literal["model", "raw"] = "model") -> F64:
        """Mean content logit on the diagonal less off it, [H].

        "model": the model's own logits, ``scaling * q.k``; "raw": q.k without the factor.
        """
        gap = self.diagonal - self.off_diagonal
        return np.asarray(gap if scale == "model" else gap / self.scaling)


@dataclass(frozen=True)
class KernelStatistics:
    """All attention layers, the first nearest the embeddings; K documents of n tokens.

    Attributes:
        layers: one per attention branch.
        documents: K.
        length: n.
        detail: what was kept of each kernel.
    """

    layers: tuple[LayerStatistics, ...]
    documents: int
    length: int
    detail: Detail

    @property
    def last_token_attention(self) -> F64:
        """Mean over layers and heads of the last token's attention row, [n]."""
        rows = np.stack([layer.last_row.mean(0) for layer in self.layers])
        return np.asarray(rows.mean(0))


def join_heads(parts: list[LayerStatistics]) -> LayerStatistics:
    """One layer of several softmax maps (differential attention): heads side by side."""
    first = parts[0]
    if len(parts) == 1:
        return first
    kernels = [part.weights for part in parts if part.weights is not None]
    return LayerStatistics(
        heads=sum(part.heads for part in parts),
        weights=np.mean(kernels, axis=0, dtype=np.float32) if kernels else None,
        distance=_concatenated([part.distance for part in parts]),
        first=_concatenated([part.first for part in parts]),
        row_sums=_concatenated([part.row_sums for part in parts]),
        last_row=np.concatenate([part.last_row for part in parts]),
        diagonal=np.concatenate([part.diagonal for part in parts]),
        off_diagonal=np.concatenate([part.off_diagonal for part in parts]),
        scaling=first.scaling,
        mask=first.mask,
        bias=first.bias,
    )


def _concatenated(arrays: list[F64 | None]) -> F64 | None:
    present = [array for array in arrays if array is not None]
    return np.concatenate(present) if present else None


def mask_seen(visible: NDArray[np.int64], first: NDArray[np.int64]) -> MaskSeen:
    """Classify a mask.

    Args:
        visible: how many keys each query sees, [n].
        first: which is the first of them, [n].
    """
    rows = np.arange(len(visible))
    contiguous = bool((first == rows + 1 - visible).all())
    if contiguous and bool((visible == rows + 1).all()):
        return MaskSeen("causal", None, visible)
    window = int(visible.max())
    if contiguous and bool((visible == np.minimum(rows + 1, window)).all()):
        return MaskSeen("window", window, visible)
    return MaskSeen("other", None, visible)


def measured_kernel(layer: LayerStatistics) -> Kernel:
    """A layer's mean kernel over documents and heads, as the rollout needs it: rows sum to 1.

    Where it was not kept, the kernel with the same margins takes its place.
    """
    if layer.weights is None:
        assert layer.distance is not None
        assert layer.first is not None
        return fit_margins(layer.distance, layer.first, layer.row_sums)
    return theory.measured(layer.stochastic_kernel())


class MarginKernel:
    """The kernel of the module's formula from w, c and s, all [H, n].

    It implements `lacuna.theory.kernels.Kernel`. Rows of the head average are scaled to sum 1.
    """

    def __init__(self, weights: F64, first: F64, sums: F64) -> None:
        self._weights = np.asarray(weights, dtype=np.float64)
        below = _below(self._weights)
        only_first = below == 0  # nothing else to see
        only_first[:, 0] = True
        inside = np.where(only_first, sums, first) / sums.mean(0)
        free = sums / sums.mean(0) - inside
        self._first = inside
        self._scale = np.divide(free, below, out=np.zeros_like(below), where=~only_first)

    @property
    def length(self) -> int:
        """Number of tokens n."""
        return int(self._weights.shape[1])

    @property
    def heads(self) -> int:
        """Number of heads H."""
        return int(self._weights.shape[0])

    def apply(self, row: F64) -> F64:
        """Mean over heads of ``row @ A_h``, [n]; a correlation by FFT, O(n log n) per head."""
        n = self.length
        size = 2 * n
        scaled = np.fft.rfft(row * self._scale, size)
        spread = np.fft.irfft(scaled * np.fft.rfft(self._weights, size).conj(), size)[:, :n]
        spread = np.maximum(spread, 0.0) if (row >= 0).all() else spread
        spread[:, 0] = self._first @ row
        return np.asarray(spread.mean(0))

    def dense(self) -> F64:
        """All heads, [H, n, n]."""
        n = self.length
        distance = np.arange(n)[:, None] - np.arange(n)
        seen = self._weights[:, np.maximum(distance, 0)] * (distance >= 0)
        matrix = seen * self._scale[:, :, None]
        matrix[:, :, 0] = self._first
        return np.asarray(matrix)

    def off_diagonal_mass(self) -> float:
        """max_i (1 - A[i, i]) of the head average."""
        diagonal = self._weights[:, :1] * self._scale
        diagonal[:, 0] = self._first[:, 0]
        return float(1 - diagonal.mean(0).min())


def fit_margins(
    distance: F64, first: F64, sums: F64 | None = None, *, steps: int = 500, tolerance: float = 1e-6
) -> MarginKernel:
    """The kernel whose margins are ``distance`` and ``first``.

    Args:
        distance: [H, n], mean weight at each distance over the queries that have one, token 0 left
            out; as `LayerStatistics.distance`.
        first: [H, n] in [0, 1], mean weight on token 0 by query; as `LayerStatistics.first`.
        sums: [H, n], row sums, as `LayerStatistics.row_sums`; None: all 1.
        steps: most steps of iterative scaling.
        tolerance: stop when no distance's total is off by more, relative to it; distances with less
            than a millionth of the weight do not count.
    """
    n = first.shape[1]
    queries = np.maximum(np.arange(n - 1, -1, -1), 0)
    totals = np.asarray(distance, dtype=np.float64) * queries
    sums = np.ones_like(first) if sums is None else sums
    free = np.maximum(sums - first, 0.0)
    free[:, 0] = 0.0
    totals *= free.sum(1, keepdims=True) / np.maximum(totals.sum(1, keepdims=True), 1e-300)
    weights = totals / np.maximum(totals.max(1, keepdims=True), 1e-300)
    heavy = totals > 1e-6 * totals.sum(1, keepdims=True)
    for _ in range(steps):
        below = _below(weights)
        share = np.divide(free, below, out=np.zeros_like(free), where=below > 0)
        model = weights * _above(share)
        factor = np.divide(totals, model, out=np.zeros_like(totals), where=model > 0)
        weights = weights * factor
        weights /= np.maximum(weights.max(1, keepdims=True), 1e-300)
        if not heavy.any() or np.abs(factor[heavy] - 1).max() < tolerance:
            break
    return MarginKernel(weights, first, sums)


def _below(weights: F64) -> F64:
    """W_i = sum of w at distances below i, [H, n]."""
    sums = np.zeros_like(weights)
    np.cumsum(weights[:, :-1], axis=1, out=sums[:, 1:])
    return sums


def _above(share: F64) -> F64:
    """Sum over the queries i > d, [H, n] by d."""
    sums = np.zeros_like(share)
    sums[:, :-1] = np.cumsum(share[:, :0:-1], axis=1)[:, ::-1]
    return sums
