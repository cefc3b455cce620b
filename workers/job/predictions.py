"""The curves that theory predicts from what was seen of a model's attention: arrays in, arrays out.

To add a prediction, add its function to `BY_NAME` and its name to
`lacuna.contract.profile_requests`. The formulas are in `lacuna.theory`; the second moment needs the
model itself and has its own folder, `workers.second_moment`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lacuna.contract.profile_requests import PredictionName
from lacuna.theory import cesaro, kernels, rollout
from lacuna.theory.kernels import Kernel
from workers.attention.statistics import KernelStatistics, LayerStatistics, measured_kernel

F64 = NDArray[np.float64]


class Unavailable(Exception):
    """The prediction cannot be made for this model; the message says why."""


@dataclass(frozen=True)
class PredictionInputs:
    """What all predictions are computed from.

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


def predict(name: PredictionName, inputs: PredictionInputs) -> F64:
    """The prediction of that name, [n], sums to 1.

    Raises:
        Unavailable: the attention was not seen, or has a mask that theory does not cover.
    """
    return BY_NAME[name](inputs)


def positional_kernels(inputs: PredictionInputs) -> list[Kernel]:
    """Kernels of mask and positional encoding alone, as seen in the model's own attention."""
    return [_kernel(layer, inputs.length, 0.0) for layer in inputs.layers()]


def content_kernels(inputs: PredictionInputs) -> list[Kernel]:
    """The same with the mean content logit of each head on the diagonal."""
    return [
        _kernel(layer, inputs.length, layer.content(inputs.content_scale))
        for layer in inputs.layers()
    ]


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


def measured_kernels(inputs: PredictionInputs) -> list[Kernel]:
    """The mean kernels over heads and documents; see `measured_kernel` for long inputs."""
    return [measured_kernel(layer) for layer in inputs.layers()]


def _cesaro(inputs: PredictionInputs) -> F64:
    return cesaro.finite(inputs.length, inputs.mixing.size, float(inputs.mixing.mean()))


BY_NAME: dict[PredictionName, Callable[[PredictionInputs], F64]] = {
    "attention_only": lambda e: rollout.rollout(positional_kernels(e), np.ones_like(e.mixing)),
    "half_residual": lambda e: rollout.rollout(measured_kernels(e), np.full_like(e.mixing, 0.5)),
    "residual": lambda e: rollout.rollout(positional_kernels(e), e.mixing),
    "residual_content": lambda e: rollout.rollout(content_kernels(e), e.mixing),
    "measured_kernel": lambda e: rollout.rollout(measured_kernels(e), e.mixing),
    "cesaro": _cesaro,
}
"""All but `COSTLY_PREDICTION`."""


def forces(inputs: PredictionInputs) -> list[rollout.Force]:
    """Causal mask, residual stream, positional encoding and content, switched on in turn."""
    mixing = inputs.mixing
    plain = [kernels.uniform(inputs.length)] * mixing.size
    return rollout.forces(
        [
            ("causal_mask", rollout.rollout(plain, np.ones_like(mixing))),
            ("residual", rollout.rollout(plain, mixing)),
            ("positional_encoding", rollout.rollout(positional_kernels(inputs), mixing)),
            ("content", rollout.rollout(content_kernels(inputs), mixing)),
        ]
    )


def collapse(inputs: PredictionInputs) -> rollout.Collapse:
    """Whether the model's own rollout collapses onto the first token."""
    layers = measured_kernels(inputs)
    return rollout.collapse(layers, inputs.mixing, rollout.rollout(layers, inputs.mixing))
