"""What a rollout request may ask for: kernels that fit, and work that ends in seconds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.contract.errors import InvalidRequest, TooLarge
from service.contract.rollouts import MAX_MEASURED_LENGTH, MAX_PROFILE_LENGTH, MAX_WORK
from service.usecases import rollout_cost
from service.usecases.rollout_inputs import Inputs

_MOMENT_SHARE = 0.5


def check_work(inputs: Inputs, rollouts: int, *, second_moment: bool) -> None:
    """Refuse what would keep a thread busy for more than a few seconds.

    Args:
        rollouts: number of curves over all heads.

    Raises:
        TooLarge: names the limit and the product.
    """
    work = rollout_cost.rollouts(inputs, rollouts)
    moment = rollout_cost.second_moment(inputs) if second_moment and work <= MAX_WORK else 0.0
    work += moment
    if work <= MAX_WORK:
        return
    advice = "lower `sequence_length`, `layers`, `heads` or the number of `predictions`"
    field = "sequence_length"
    if moment > _MOMENT_SHARE * work:
        field = "predictions"
        advice = "most of it is `second_moment`: leave it out, or lower `layers` or `heads`"
        if np.any(inputs.request.gains.mlp):
            advice += "; without `gains.mlp` it takes less than half"
    raise TooLarge(
        f"length x layers x heads x rollouts is {work:.3g} (weighted by the cost of the kernel: "
        f"about nanoseconds), above the limit of {MAX_WORK:.3g}: {advice}",
        field=field,
    )


def check_kernel(inputs: Inputs) -> None:
    """Refuse kernels that do not fit the mask, the heads or the length.

    Raises:
        InvalidRequest: names the field.
    """
    spec, mask = inputs.kernel, inputs.request.mask
    if mask.prefix is not None and mask.prefix > inputs.length:
        raise InvalidRequest(
            f"`mask.prefix` must not exceed `sequence_length` ({inputs.length})",
            field="mask.prefix",
        )
    if spec.type in {"distance", "measured"} and mask.type != "causal":
        raise InvalidRequest(
            f"kernel type `{spec.type}` goes with the causal mask only", field="mask.type"
        )
    if spec.head_weights is not None and len(spec.head_weights) != inputs.heads:
        raise InvalidRequest(
            f"`kernel.head_weights` must have one number per head ({inputs.heads})",
            field="kernel.head_weights",
        )
    if spec.head_weights is not None and not any(spec.head_weights):
        raise InvalidRequest("`kernel.head_weights` must not all be 0", field="kernel.head_weights")
    if spec.bias is not None:
        _check_bias(spec.bias, inputs.heads)
    if spec.matrices is not None:
        _check_matrices(spec.matrices, inputs)


def _check_bias(bias: Sequence[float] | Sequence[Sequence[float]], heads: int) -> None:
    lists = [row for row in bias if isinstance(row, Sequence)]
    lengths = {len(row) for row in lists} or {len(bias)}
    if len(lengths) > 1 or max(lengths) > MAX_PROFILE_LENGTH or (lists and len(lists) != heads):
        raise InvalidRequest(
            f"`kernel.bias` must be one list of up to {MAX_PROFILE_LENGTH} numbers, or one such "
            f"list per head ({heads}), all of one length",
            field="kernel.bias",
        )


def _check_matrices(matrices: Sequence[Sequence[Sequence[float]]], inputs: Inputs) -> None:
    n = inputs.length
    if n > MAX_MEASURED_LENGTH:
        raise InvalidRequest(
            f"`sequence_length` must not exceed {MAX_MEASURED_LENGTH} for measured kernels",
            field="sequence_length",
        )
    square = all(len(matrix) == n and all(len(row) == n for row in matrix) for matrix in matrices)
    if len(matrices) not in (1, inputs.layers) or not square:
        raise InvalidRequest(
            f"`kernel.matrices` must be one matrix or one per layer ({inputs.layers}), each "
            f"{n} x {n} as `sequence_length` says",
            field="kernel.matrices",
        )
    for number, matrix in enumerate(matrices):
        ahead = np.argwhere(np.triu(matrix, 1) > 0)
        if ahead.size:
            row, column = ahead[0].tolist()
            raise InvalidRequest(
                f"`kernel.matrices[{number}][{row}][{column}]` must be 0: under the causal mask no "
                "token sees a later one",
                field="kernel.matrices",
            )
    if inputs.has_content:
        raise InvalidRequest(
            "measured kernels contain the content already: leave `content` out", field="content"
        )
