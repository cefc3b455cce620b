"""What was seen of a model's attention, as numpy arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from workers.instrument.positional_bias import BiasSeen

F64 = NDArray[np.float64]
Detail = Literal["per_head", "mean", "distance"]


@dataclass(frozen=True)
class MaskSeen:
    """The mask of one attention layer.

    ``visible`` [n]: how many keys each query sees. ``kind``: "causal" (all up to itself), "window"
    (its last ``window`` keys, itself included), "other" (chunks, prefixes, ...).
    """

    kind: Literal["causal", "window", "other"]
    window: int | None
    visible: NDArray[np.int64]


@dataclass(frozen=True)
class LayerStatistics:
    """Means over documents for one attention layer of H heads and inputs of n tokens.

    ``weights``: [H, n, n] (detail per_head; [H, b, b] when binned) or [n, n] (mean), else None.
    ``distance`` [H, n]: mean weight on the token at that distance, token 0 left out, over the
    queries that have one. ``first`` [H, n]: mean weight on token 0, by query. ``row_sums`` [H, n]:
    1, less with sinks. All three None except for detail distance.
    ``last_row`` [H, n]: the last query's weights.
    ``diagonal``, ``off_diagonal`` [H]: mean of ``scaling * q.k`` before soft-capping, bias and
    mask, on the diagonal and over the visible pairs below it. Rows sum to less than 1 with sinks.
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

    def head_kernels(self) -> F64:
        """[H, n, n] (or [H, b, b] binned); only for detail per_head."""
        if self.weights is None or self.weights.ndim != 3:
            raise ValueError("Kernels per head were not kept: measure with detail 'per_head'.")
        return self.weights.astype(np.float64)

    def mean_kernel(self) -> F64:
        """[n, n], averaged over heads; not for detail distance."""
        if self.weights is None:
            raise ValueError("No kernel was kept: measure with detail 'per_head' or 'mean'.")
        weights = self.weights.astype(np.float64)
        return np.asarray(weights.mean(0)) if weights.ndim == 3 else weights

    def content(self, scale: Literal["model", "raw"] = "model") -> F64:
        """Mean content logit on the diagonal less off it, [H].

        "model": the model's own logits, ``scaling * q.k``; "raw": q.k without the factor.
        """
        gap = self.diagonal - self.off_diagonal
        return np.asarray(gap if scale == "model" else gap / self.scaling)


@dataclass(frozen=True)
class KernelStatistics:
    """All attention layers, the first nearest the embeddings."""

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
    weights = [part.weights for part in parts]
    per_head = first.weights is not None and first.weights.ndim == 3
    joined: NDArray[np.float32] | None = None
    if first.weights is not None:
        arrays = [w for w in weights if w is not None]
        joined = np.concatenate(arrays) if per_head else np.mean(arrays, axis=0, dtype=np.float32)
    return LayerStatistics(
        heads=sum(part.heads for part in parts),
        weights=joined,
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
    """Classify a mask by how many keys each query sees and which is the first of them."""
    rows = np.arange(len(visible))
    contiguous = bool((first == rows + 1 - visible).all())
    if contiguous and bool((visible == rows + 1).all()):
        return MaskSeen("causal", None, visible)
    window = int(visible.max())
    if contiguous and bool((visible == np.minimum(rows + 1, window)).all()):
        return MaskSeen("window", window, visible)
    return MaskSeen("other", None, visible)
