"""The curves of one rollout request, by name."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from service.contract.profile_requests import PredictionName
from service.theory import cesaro, rollout
from service.theory.kernels import Kernel
from service.usecases.rollout_inputs import Inputs

F64 = npt.NDArray[np.float64]
_HALF = 0.5


class Curves:
    """Curves by name, each computed once."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._found: dict[str, F64] = {}

    @cached_property
    def kernels(self) -> list[Kernel]:
        """One per layer, position alone."""
        return self._inputs.kernels(content=False)

    @cached_property
    def kernels_content(self) -> list[Kernel]:
        """The same with content, where there is any."""
        return self._inputs.kernels(content=True) if self._inputs.has_content else self.kernels

    @property
    def main(self) -> F64:
        """The curve that uses everything the request says."""
        return self.of("residual_content")

    def of(self, name: PredictionName) -> F64:
        """[n]. Names that mean the same without content share one computation."""
        if not self._inputs.has_content and name in {"residual_content", "measured_kernel"}:
            name = "residual"
        if name not in self._found:
            self._found[name] = self._compute(name)
        return self._found[name]

    def after_each_force(self) -> list[tuple[rollout.ForceName, F64]]:
        """The curve after each ingredient is switched on, in [S]'s order."""
        inputs = self._inputs
        uniform = [inputs.uniform()] * inputs.layers
        alone = rollout.rollout(uniform, np.ones(inputs.layers))
        residual = rollout.rollout(uniform, inputs.mixing)
        return [
            ("causal_mask", alone),
            ("residual", residual),
            ("positional_encoding", self.of("residual")),
            ("content", self.main),
        ]

    def _compute(self, name: PredictionName) -> F64:
        inputs = self._inputs
        if name == "attention_only":
            return rollout.rollout(self.kernels, np.ones(inputs.layers))
        if name == "half_residual":
            return rollout.rollout(self.kernels, np.full(inputs.layers, _HALF))
        if name == "residual_content":
            return rollout.rollout(self.kernels_content, inputs.mixing)
        if name == "cesaro":
            return cesaro.finite(inputs.length, inputs.layers, inputs.mean_mixing)
        if name == "second_moment":
            return _second_moment(inputs)
        return rollout.rollout(self.kernels, inputs.mixing)


def _second_moment(inputs: Inputs) -> F64:
    # Its filters come from scipy.signal, which takes longer to import than the rest of theory.
    from service.theory import second_moment_architecture  # noqa: PLC0415

    slopes = np.zeros((1, inputs.heads)) if inputs.slopes is None else inputs.slopes
    temperature = inputs.kernel.temperature
    shape_ = (inputs.layers, inputs.heads)
    return second_moment_architecture.from_architecture(
        inputs.length,
        inputs.layers,
        inputs.layer_mixing,
        slopes=np.broadcast_to(slopes, shape_) / temperature,
        diagonal=np.broadcast_to(inputs.diagonal, shape_) / temperature,
        mlp_gain=inputs.request.gains.mlp,
        mlp_coherence=inputs.request.gains.mlp_coherence,
    )
