"""From what was seen of a model's attention to the curves that theory predicts.

Arrays in, arrays out; the formulas stand in `lacuna.theory`, the second-moment rollout's measured
gains in `workers.second_moment.moments`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lacuna.theory import cesaro, kernels, rollout
from lacuna.theory.kernels import Kernel
from workers.attention.statistics import KernelStatistics, LayerStatistics, measured_kernel

F64 = NDArray[np.float64]


class Unavailable(Exception):
    """This prediction cannot be made for this model; the message says why."""


@dataclass(frozen=True)
class Evidence:
    """What predictions are made from.

    Attributes:
        length: n, tokens per document.
        mixing: lambda per attention layer, [T], bottom to top.
        attention: what was seen of the kernels; None when they could not be watched.
        content_scale: "model" for the model's own logits, "raw" for q.k as in the authors' code.
    """

    length: int
    mixing: F64
    attention: KernelStatistics | None
    content_scale: Literal["model", "raw"] = "model"

    def layers(self) -> Sequence[LayerStatistics]:
        """The attention layers, the first nearest the embeddings."""
        if self.attention is None:
            raise Unavailable("the attention of this model could not be watched")
        return self.attention.layers


def predict(name: str, evidence: Evidence) -> F64:
    """One named prediction, [n], sums to 1.

    Raises:
        Unavailable: the evidence does not suffice.
    """
    return _BY_NAME[name](evidence)


def positional(evidence: Evidence) -> list[Kernel]:
    """Kernels of mask and positional encoding alone, as the model's own attention showed them."""
    return [_kernel(layer, evidence.length, 0.0) for layer in evidence.layers()]


def with_content(evidence: Evidence) -> list[Kernel]:
    """The same with the mean content logit of each head on the diagonal."""
    return [
        _kernel(layer, evidence.length, layer.content(evidence.content_scale))
        for layer in evidence.layers()
    ]


def measured(evidence: Evidence) -> list[Kernel]:
    """The mean kernels themselves, averaged over heads and documents.

    For long inputs, whose kernels were not kept, those with the same distance profile and column
    of token 0.
    """
    return [measured_kernel(layer) for layer in evidence.layers()]


def stochastic(kernel: F64) -> F64:
    """Rows scaled to sum 1: attention sinks keep a share for themselves, and float32 rounds."""
    return np.asarray(kernel / kernel.sum(axis=-1, keepdims=True))


def forces(evidence: Evidence) -> list[rollout.Force]:
    """Causal mask, residual stream, positional encoding and content, switched on in turn."""
    mixing = evidence.mixing
    plain = [kernels.uniform(evidence.length)] * mixing.size
    return rollout.forces(
        [
            ("causal_mask", rollout.rollout(plain, np.ones_like(mixing))),
            ("residual", rollout.rollout(plain, mixing)),
            ("positional_encoding", rollout.rollout(positional(evidence), mixing)),
            ("content", rollout.rollout(with_content(evidence), mixing)),
        ]
    )


def collapse(evidence: Evidence) -> rollout.Collapse:
    """Whether the model's own rollout collapses onto the first token."""
    try:
        layers = measured(evidence)
    except Unavailable:
        layers = positional(evidence)
    return rollout.collapse(layers, evidence.mixing, rollout.rollout(layers, evidence.mixing))


def _kernel(layer: LayerStatistics, n: int, diagonal: float | F64) -> Kernel:
    if layer.mask.kind == "other":
        raise Unavailable("the attention mask is neither causal nor a sliding window")
    window = layer.mask.window
    if layer.bias is None:
        if not np.any(diagonal):
            return kernels.uniform(n, window=window)
        return kernels.alibi(n, np.zeros(layer.heads), diagonal, window=window)
    if layer.bias.slopes is not None:
        return kernels.alibi(n, layer.bias.slopes, diagonal, window=window)
    return kernels.distance(n, layer.bias.by_distance, diagonal=diagonal, window=window)


def _cesaro(evidence: Evidence) -> F64:
    return cesaro.finite(evidence.length, evidence.mixing.size, float(evidence.mixing.mean()))


_BY_NAME: dict[str, Callable[[Evidence], F64]] = {
    "attention_only": lambda e: rollout.rollout(positional(e), np.ones_like(e.mixing)),
    "half_residual": lambda e: rollout.rollout(measured(e), np.full_like(e.mixing, 0.5)),
    "residual": lambda e: rollout.rollout(positional(e), e.mixing),
    "residual_content": lambda e: rollout.rollout(with_content(e), e.mixing),
    "measured_kernel": lambda e: rollout.rollout(measured(e), e.mixing),
    "cesaro": _cesaro,
}
