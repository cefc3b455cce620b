"""The curve that an architecture is born with, for placements without a measurement."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from lacuna.architectures.table import find
from lacuna.contract.models import ModelDescription
from lacuna.contract.placements import Architecture
from lacuna.contract.profiles import ProfileBody
from lacuna.theory import kernels, rollout

F64 = npt.NDArray[np.float64]

_CACHED = 64
_THEORY_COST = 1e8
"""Length x layers x heads up to which a theory curve is computed at the prompt's own length."""
_WINDOW_COST = 40
"""How much dearer a windowed ALiBi kernel is."""


def architecture_of(body: ProfileBody) -> Architecture | None:
    """What a profile (of untrained weights, say) tells about its model's architecture; None for a
    model behind an endpoint."""
    model: ModelDescription = body.model
    layers, heads, positions = model.attention_layers, model.heads, model.positional_encoding
    if layers is None or heads is None or positions is None:
        return None
    mixing = Architecture.model_fields["mixing"].default
    if body.mixing is not None and body.mixing.lambda_:
        mixing = float(np.mean(body.mixing.lambda_)) or mixing
    return Architecture(
        layers=max(1, layers),
        heads=heads,
        positional_encoding=positions,
        window=model.window,
        mixing=mixing,
    )


def architecture_by_name(model: str) -> Architecture | None:
    """The architecture of a model of the table, with the usual mixing."""
    found = find(model)
    if found is None:
        return None
    return Architecture(
        layers=found.layers,
        heads=found.heads,
        positional_encoding=found.positional_encoding,
        window=found.window,
    )


def theory_length(architecture: Architecture, length: int) -> int:
    """Tokens at which the curve of an architecture is computed for a prompt of `length`."""
    cost = architecture.layers
    if architecture.positional_encoding == "alibi":
        cost *= architecture.heads * (1 if architecture.window is None else _WINDOW_COST)
    return max(1, min(length, int(_THEORY_COST / cost)))


@lru_cache(maxsize=_CACHED)
def from_architecture(architecture: Architecture, length: int) -> F64:
    """Residual rollout of the positional kernel alone [S], at the prompt's own length where the
    cost allows, else at the largest length that it allows. Shape [n] or shorter, read-only."""
    n = theory_length(architecture, length)
    if architecture.positional_encoding == "alibi":
        slopes = kernels.standard_slopes(architecture.heads)
        kernel = kernels.alibi(n, slopes, window=architecture.window)
    else:
        kernel = kernels.uniform(n, window=architecture.window)
    mixing = np.full(architecture.layers, architecture.mixing)
    influence: F64 = rollout.rollout([kernel] * architecture.layers, mixing)
    influence.setflags(write=False)
    return influence
