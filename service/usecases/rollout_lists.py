"""The lists in a rollout request: how many layers and heads they imply, and as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from service.contract.errors import InvalidRequest
from service.contract.rollouts import (
    MAX_LAYERS,
    ConstantMixing,
    KernelSpec,
    ListMixing,
    PowerLawMixing,
    RolloutRequest,
    TokenMixing,
)
from service.theory import kernels, rollout

F64 = npt.NDArray[np.float64]


def layers_of(request: RolloutRequest, kernel: KernelSpec) -> int | None:
    """The number of layers that the lists in the request imply."""
    if isinstance(request.mixing, ListMixing | TokenMixing):
        return len(request.mixing.lambdas)
    for value in (request.content.diagonal, kernel.slopes):
        if isinstance(value, list) and isinstance(value[0], list):
            return len(value)
    if kernel.matrices is not None and len(kernel.matrices) > 1:
        return min(len(kernel.matrices), MAX_LAYERS)
    return None


def heads_of(request: RolloutRequest, kernel: KernelSpec, layers: int) -> int | None:
    """The number of heads that the lists in the request imply; the clearest list decides."""
    if kernel.type == "measured":
        return 1
    tables = [v for v in (kernel.slopes, request.content.diagonal) if isinstance(v, list)]
    nested = [len(v[0]) for v in tables if isinstance(v[0], list) and len(v[0]) > 1]
    flat = [len(v) for v in tables if not isinstance(v[0], list)]
    per_head = [] if kernel.head_weights is None else [len(kernel.head_weights)]
    if kernel.bias is not None and isinstance(kernel.bias[0], list):
        per_head.append(len(kernel.bias))
    # A flat list as long as there are layers may be one number per layer: it decides last.
    certain = [size for size in flat if size != layers]
    return next(iter(per_head + nested + certain + flat), None)


def has_slopes(kernel: KernelSpec) -> bool:
    """Whether the kernel has ALiBi's linear bias."""
    return kernel.type == "alibi" or (kernel.type == "window" and kernel.slopes is not None)


def slopes_of(kernel: KernelSpec, layers: int, heads: int) -> F64 | None:
    """[T or 1, H], or None without ALiBi."""
    if not has_slopes(kernel):
        return None
    if kernel.slopes is None or kernel.slopes == "standard":
        return kernels.standard_slopes(heads)[None]
    if isinstance(kernel.slopes, str):
        return kernels.geometric_slopes(heads)[None]
    return table("kernel.slopes", kernel.slopes, layers, heads)


def table(
    field: str, value: float | Sequence[float] | Sequence[Sequence[float]], layers: int, heads: int
) -> F64:
    """[T or 1, H] from a number, a list per head or per layer, or a list of lists."""
    if not isinstance(value, Sequence):
        return np.full((1, heads), float(value))
    if not isinstance(value[0], Sequence):
        flat = np.array(value, dtype=np.float64)
        if flat.size == heads:
            return flat[None]
        if flat.size == layers:
            return np.repeat(flat[:, None], heads, axis=1)
        raise InvalidRequest(
            f"`{field}` has {flat.size} numbers: give one per head ({heads}) or per layer "
            f"({layers})",
            field=field,
        )
    widths = {len(row) for row in value if isinstance(row, Sequence)}
    if len(value) not in (1, layers) or widths - {1, heads}:
        raise InvalidRequest(
            f"`{field}` must have one list per layer ({layers}) with one number per head ({heads})",
            field=field,
        )
    rows = [np.broadcast_to(np.array(row, dtype=np.float64), (heads,)) for row in value]
    return np.array(rows)


def mixing_of(
    request: RolloutRequest, layers: int, assumptions: list[str]
) -> tuple[F64, bool | None]:
    """[T] or [T, n], and whether the schedule's sum diverges with depth; None for a list."""
    mixing = request.mixing
    if isinstance(mixing, ConstantMixing):
        if "mixing" not in request.model_fields_set:
            assumptions.append(
                f"lambda = {mixing.value:g} in every layer (trained models: about 4 in sum)"
            )
        return rollout.constant(layers, mixing.value), mixing.value > 0
    if isinstance(mixing, PowerLawMixing):
        schedule = rollout.power_law(layers, mixing.initial, mixing.exponent)
        return schedule, mixing.initial > 0 and mixing.exponent <= 1
    if len(mixing.lambdas) != layers:
        raise InvalidRequest(
            f"`mixing.lambdas` has {len(mixing.lambdas)} entries for {layers} layers",
            field="mixing.lambdas",
        )
    if isinstance(mixing, TokenMixing):
        wrong = {len(row) for row in mixing.lambdas} - {request.sequence_length}
        if wrong:
            raise InvalidRequest(
                f"`mixing.lambdas` by token must have {request.sequence_length} numbers per layer",
                field="mixing.lambdas",
            )
    return np.array(mixing.lambdas, dtype=np.float64), None
