"""What a rollout may ask for: fields that fit each other, bounded sizes, and a bounded time.

Sizes are bounded so that one layer takes seconds at most. A `Deadline`, which is asked between
layers, bounds the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from lacuna.contract.errors import InvalidRequest, TooLarge
from lacuna.contract.profile_requests import COSTLY_PREDICTION, PredictionName
from lacuna.contract.rollouts import MAX_MEASURED_LENGTH, MAX_PROFILE_LENGTH
from service.answers.rollout_inputs import Inputs

MAX_SECONDS = 10.0
"""Time that one rollout may take."""
MAX_PER_LAYER = 40_000_000
"""Bound on length x heads: one layer then takes a few seconds. A distance profile counts four times
or, where it is long, once for every 256 logits."""
MAX_IN_ALL = 10_000_000_000
"""Bound on length x heads x layers: at a nanosecond each, more cannot end within `MAX_SECONDS`."""
MAX_TABLES = 50_000_000
"""Bound on the numbers (8 bytes each) that layers with kernels of their own keep in memory."""
_DISTANCE, _LOGITS = 4, 256
_TABLE, _SMALLEST_TABLE = 256, 32_768
"""Numbers that an ALiBi kernel keeps: per head, and at least."""


class GivenUp(Exception):
    """Nobody waits for the rollout any more."""


class Deadline:
    """Ends a rollout that takes longer than `MAX_SECONDS`, or that nobody waits for.

    Args:
        clock: seconds; only differences count.
        given_up: whether nobody waits any more.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._clock = clock
        self._given_up = given_up
        self._end = clock() + MAX_SECONDS
        self.during: PredictionName | None = None
        """What is being computed, if it is one prediction."""

    def check(self) -> None:
        """Return at once, or end the rollout.

        Raises:
            TooLarge: the time is up; says what to lower.
            GivenUp: nobody waits any more.
        """
        if self._given_up():
            raise GivenUp
        if self._clock() <= self._end:
            return
        field = "sequence_length"
        advice = "lower `sequence_length`, `layers`, `heads` or the number of `predictions`"
        if self.during == COSTLY_PREDICTION:
            field = "predictions"
            advice = (
                f"leave out `{COSTLY_PREDICTION}`, or lower `layers` or `heads`; with `gains.mlp` "
                "it takes more than twice as long"
            )
        raise TooLarge(
            f"the rollout takes longer than the limit of {MAX_SECONDS:g} seconds: {advice}",
            field=field,
        )


def check_size(inputs: Inputs) -> None:
    """Refuse at once what cannot end in time, or what a deadline between layers cannot stop.

    Raises:
        TooLarge: names the limit and the product.
    """
    bias = inputs.kernel.bias
    logits = 0 if bias is None else min(np.shape(bias)[-1], inputs.length)
    product, factors = inputs.length, "`sequence_length`"
    if inputs.kernel.type == "measured":
        product *= inputs.length
        factors += " squared"
    elif bias is not None:
        times = max(_DISTANCE, -(-logits // _LOGITS))
        product *= inputs.heads * times
        factors += f" x `heads` x {times} (for the logits of `kernel.bias`)"
    elif inputs.slopes is not None or inputs.has_content:
        product *= inputs.heads
        factors += " x `heads`"
    if product > MAX_PER_LAYER:
        raise _too_large(factors, product, MAX_PER_LAYER)
    if product * inputs.layers > MAX_IN_ALL:
        raise _too_large(f"{factors} x `layers`", product * inputs.layers, MAX_IN_ALL)
    own = max(1 if inputs.slopes is None else len(inputs.slopes), len(inputs.diagonal))
    each = inputs.heads * logits if logits else max(inputs.heads * _TABLE, _SMALLEST_TABLE)
    if own > 1 and own * each > MAX_TABLES:
        raise TooLarge(
            f"`layers`: at most {max(1, MAX_TABLES // each)} layers of {inputs.heads} heads can "
            "have slopes or content of their own; give one list for all layers, or fewer",
            field="layers",
        )


def _too_large(factors: str, product: int, limit: int) -> TooLarge:
    return TooLarge(
        f"{factors} is {product:.3g}, above the limit of {limit:.3g}: lower one of them",
        field="sequence_length",
    )


def check_predictions(inputs: Inputs, names: Sequence[PredictionName]) -> None:
    """Refuse predictions that the kernel does not have.

    Raises:
        InvalidRequest: names the field.
    """
    spec = inputs.kernel
    if "measured_kernel" in names and spec.type != "measured":
        raise InvalidRequest(
            "`measured_kernel` needs kernel type `measured`, or a profile of a model",
            field="predictions",
        )
    if COSTLY_PREDICTION not in names:
        return
    plain = spec.type in {"uniform", "alibi"} and spec.window is None
    even = spec.head_weights is None or len(set(spec.head_weights)) == 1
    if not plain or not even or inputs.request.mask.type != "causal":
        raise InvalidRequest(
            f"`{COSTLY_PREDICTION}` needs causal uniform or ALiBi kernels without a window, and "
            "equal head weights",
            field="predictions",
        )
    mlp = inputs.request.gains.mlp
    if isinstance(mlp, list) and len(mlp) != inputs.layers:
        raise InvalidRequest(
            f"`gains.mlp` must be one number or one per layer ({inputs.layers})",
            field="gains.mlp",
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
