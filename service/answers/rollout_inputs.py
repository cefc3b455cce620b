"""From a rollout request to arrays and kernels: presets, defaults, shapes, bounds.

The lists in a rollout request: how many layers and heads they imply, and as arrays.

What a rollout request may ask for: kernels that fit, and work that ends in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lacuna.architectures.table import find
from lacuna.contract.errors import InvalidRequest, TooLarge
from lacuna.contract.rollouts import (
    MAX_HEADS,
    MAX_LAYERS,
    MAX_MEASURED_LENGTH,
    MAX_PROFILE_LENGTH,
    MAX_WORK,
    ConstantMixing,
    KernelSpec,
    ListMixing,
    PowerLawMixing,
    RolloutRequest,
    TokenMixing,
)
from lacuna.theory import kernels, rollout
from lacuna.theory.kernels import Kernel

F64 = npt.NDArray[np.float64]
DEFAULT_ALIBI_HEADS = 16


@dataclass(frozen=True, eq=False)
class Inputs:
    """A request with everything filled in.

    Args:
        slopes: [T or 1, H], or None without ALiBi.
        diagonal: [T or 1, H], content logits of a token with itself.
        mixing: [T], or [T, n] per token.
        diverges: whether the schedule's sum diverges with depth; None for a list
            and for measured kernels.
    """

    request: RolloutRequest
    kernel: KernelSpec
    length: int
    layers: int
    heads: int
    slopes: F64 | None
    diagonal: F64
    mixing: F64
    diverges: bool | None
    assumptions: tuple[str, ...]

    @property
    def has_content(self) -> bool:
        """Whether any content logit differs from 0."""
        return bool(self.diagonal.any())

    @property
    def layer_mixing(self) -> F64:
        """[T]: lambda per layer, averaged over tokens."""
        return self.mixing if self.mixing.ndim == 1 else np.asarray(self.mixing.mean(axis=1))

    @property
    def mean_mixing(self) -> float:
        """Mean lambda over layers and tokens: the closed form's `a`."""
        return float(np.clip(self.mixing.mean(), 0.0, 1.0))

    def kernels(self, *, content: bool) -> list[Kernel]:
        """One kernel per layer, with or without the content logits.

        Raises:
            InvalidRequest: the theory refuses a combination of fields.
        """
        diagonal = self.diagonal if content else np.zeros((1, self.heads))
        try:
            if self.kernel.type == "measured":
                return self._measured()
            if self.kernel.type == "distance":
                return self._repeat([self._distance(row) for row in diagonal])
            slopes = self.slopes
            if slopes is None:
                if not diagonal.any():
                    return self._repeat([self.uniform(self.kernel.window)])
                slopes = np.zeros((1, self.heads))
            rows = max(len(slopes), len(diagonal))
            pairs = zip(
                np.broadcast_to(slopes, (rows, self.heads)),
                np.broadcast_to(diagonal, (rows, self.heads)),
                strict=True,
            )
            return self._repeat([self._alibi(s, d) for s, d in pairs])
        except ValueError as error:
            raise InvalidRequest(f"`kernel`: {error}", field="kernel") from error

    def uniform(self, window: int | None = None) -> Kernel:
        """Equal weights under the request's mask."""
        mask = self.request.mask
        return kernels.uniform(self.length, window=window, mask=mask.type, prefix=mask.prefix)

    def _alibi(self, slopes: F64, diagonal: F64) -> Kernel:
        mask = self.request.mask
        return kernels.alibi(
            self.length,
            slopes,
            diagonal,
            window=self.kernel.window,
            temperature=self.kernel.temperature,
            head_weights=self.kernel.head_weights,
            mask=mask.type,
            prefix=mask.prefix,
        )

    def _distance(self, diagonal: F64) -> Kernel:
        assert self.kernel.bias is not None
        bias = np.array(self.kernel.bias, dtype=np.float64)
        return kernels.distance(
            self.length,
            np.broadcast_to(bias, (self.heads, bias.shape[-1])),
            self.kernel.sink_bias,
            diagonal=diagonal,
            window=self.kernel.window,
            temperature=self.kernel.temperature,
            head_weights=self.kernel.head_weights,
        )

    def _measured(self) -> list[Kernel]:
        matrices = self.kernel.matrices or []
        return self._repeat([kernels.measured(matrix) for matrix in matrices])

    def _repeat(self, rows: list[Kernel]) -> list[Kernel]:
        return rows * self.layers if len(rows) == 1 else rows


def resolve(request: RolloutRequest) -> Inputs:
    """Defaults and presets filled in, lists expanded.

    Raises:
        InvalidRequest: fields do not fit each other; names the field.
    """
    assumptions: list[str] = []
    kernel, layers, heads = _architecture(request, assumptions)
    slopes = slopes_of(kernel, layers, heads)
    diagonal = table("content.diagonal", request.content.diagonal, layers, heads)
    mixing, diverges = mixing_of(request, layers, assumptions)
    if kernel.type == "measured":
        diverges = None  # what further layers would be like, nobody said
    inputs = Inputs(
        request=request,
        kernel=kernel,
        length=request.sequence_length,
        layers=layers,
        heads=heads,
        slopes=slopes,
        diagonal=diagonal * request.content.scale,
        mixing=mixing,
        diverges=diverges,
        assumptions=(),
    )
    if not inputs.has_content:
        assumptions.append(
            "the matrices hold what content there is: `residual`, `residual_content` and "
            "`measured_kernel` coincide"
            if kernel.type == "measured"
            else "content logits are 0: `residual` and `residual_content` coincide"
        )
    if _idle(inputs):
        assumptions.append("`temperature` and `head_weights` change nothing: all heads are alike")
    if "second_moment" in (request.predictions or []):
        assumptions.append(
            "`second_moment` takes each lambda for that of token 0, where attention averages "
            "nothing away; a mean over tokens, as profiles have it, is smaller"
        )
        if inputs.mixing.ndim == 2:
            assumptions.append("`second_moment` uses the mean of lambda over the tokens")
    return replace(inputs, assumptions=tuple(assumptions))


def _idle(inputs: Inputs) -> bool:
    """Whether the request scales or weighs logits that are all 0, or measured weights."""
    kernel = inputs.kernel
    given = kernel.temperature != 1 or kernel.head_weights is not None
    plain = kernel.type != "distance" and inputs.slopes is None and not inputs.has_content
    return given and plain


def _architecture(request: RolloutRequest, assumptions: list[str]) -> tuple[KernelSpec, int, int]:
    preset = None if request.architecture is None else find(request.architecture)
    kernel = request.kernel
    if kernel is None:
        if preset is None:
            kernel = KernelSpec()
            assumptions.append(
                "uniform attention over the tokens before (no position, no content): what any "
                "model without a positional bias in its logits has at initialisation"
            )
        else:
            kernel = KernelSpec(type=preset.kernel, window=preset.window)
    layers = request.layers or (preset.layers if preset else None) or layers_of(request, kernel)
    if layers is None:
        raise InvalidRequest(
            "`layers` is required unless `architecture` or a list of lambdas gives it",
            field="layers",
        )
    heads = request.heads or heads_of(request, kernel, layers)
    heads = heads or (preset.heads if preset else None)
    if heads is None:
        heads = DEFAULT_ALIBI_HEADS if has_slopes(kernel) else 1
        if heads > 1:
            assumptions.append(f"{heads} heads")
    if heads > MAX_HEADS:
        raise InvalidRequest(f"`heads` must not exceed {MAX_HEADS}", field="heads")
    return kernel, layers, heads


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


_MOMENT_SHARE = 0.5


def check_work(inputs: Inputs, rollouts: int, *, second_moment: bool) -> None:
    """Refuse what would keep a thread busy for more than a few seconds.

    Args:
        rollouts: number of curves over all heads.

    Raises:
        TooLarge: names the limit and the product.
    """
    from service.answers import rollout_cost

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
