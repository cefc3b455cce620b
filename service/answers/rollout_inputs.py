"""From a rollout request to arrays and kernels: `resolve` fills in what the request leaves open.

The lists in a request may say how many layers and heads there are. They may hold one number per
head, per layer or both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lacuna.architectures.table import find
from lacuna.contract.errors import InvalidRequest
from lacuna.contract.profile_requests import COSTLY_PREDICTION
from lacuna.contract.rollouts import (
    MAX_HEADS,
    MAX_LAYERS,
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
Check = Callable[[], object]
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

    def kernels(self, check: Check, *, content: bool) -> list[Kernel]:
        """One kernel per layer, with or without the content logits.

        Args:
            check: called after each kernel that is built; what it raises ends the work.

        Raises:
            InvalidRequest: the theory refuses a combination of fields.
        """
        diagonal = self.diagonal if content else np.zeros((1, self.heads))
        built = []
        try:
            for kernel in self._distinct(diagonal):
                built.append(kernel)
                check()
        except ValueError as error:
            raise InvalidRequest(f"`kernel`: {error}", field="kernel") from error
        return built * self.layers if len(built) == 1 else built

    def uniform(self, window: int | None = None) -> Kernel:
        """Equal weights under the request's mask."""
        mask = self.request.mask
        return kernels.uniform(self.length, window=window, mask=mask.type, prefix=mask.prefix)

    def _distinct(self, diagonal: F64) -> Iterator[Kernel]:
        """The one kernel that all layers share, or one per layer. `diagonal`: [T or 1, H]."""
        if self.kernel.matrices is not None:
            yield from map(kernels.measured, self.kernel.matrices)
        elif self.kernel.bias is not None:
            yield from map(self._distance, diagonal)
        elif self.slopes is None and not diagonal.any():
            yield self.uniform(self.kernel.window)
        else:
            slopes = np.zeros((1, self.heads)) if self.slopes is None else self.slopes
            yield from map(self._alibi, *np.broadcast_arrays(slopes, diagonal))

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


def resolve(request: RolloutRequest) -> Inputs:
    """Fill in defaults and what the architecture's name says, and expand lists.

    Raises:
        InvalidRequest: fields do not fit each other; names the field.
    """
    assumptions: list[str] = []
    kernel, layers, heads = _architecture(request, assumptions)
    slopes = _slopes(kernel, layers, heads)
    diagonal = _table("content.diagonal", request.content.diagonal, layers, heads)
    mixing, diverges = _mixing(request, layers, assumptions)
    if kernel.type == "measured":
        diverges = None  # nothing is known of further layers
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
    if kernel.type != "measured":
        assumptions.append(
            "no training: trained weights change the curve, so place no chunks by it before you "
            "measure the model"
        )
    return replace(inputs, assumptions=(*assumptions, *_coincidences(inputs)))


def _coincidences(inputs: Inputs) -> Iterator[str]:
    """What the request asks for without effect, or under two names."""
    kernel = inputs.kernel
    if not inputs.has_content:
        yield (
            "the matrices hold what content there is: `residual`, `residual_content` and "
            "`measured_kernel` coincide"
            if kernel.type == "measured"
            else "content logits are 0: `residual` and `residual_content` coincide"
        )
    weighs_heads = kernel.temperature != 1 or kernel.head_weights is not None
    alike = kernel.type != "distance" and inputs.slopes is None and not inputs.has_content
    if weighs_heads and alike:
        yield "`temperature` and `head_weights` change nothing: all heads are alike"
    if COSTLY_PREDICTION in (inputs.request.predictions or []):
        yield (
            "`second_moment` takes each lambda for that of token 0, where attention averages "
            "nothing away; a mean over tokens, as profiles have it, is smaller"
        )
        if inputs.mixing.ndim == 2:
            yield "`second_moment` uses the mean of lambda over the tokens"


def _architecture(request: RolloutRequest, assumptions: list[str]) -> tuple[KernelSpec, int, int]:
    """The kernel, and how many layers and heads."""
    known = None if request.architecture is None else find(request.architecture)
    kernel = request.kernel
    if kernel is None and known is not None:
        kernel = KernelSpec(type=known.kernel, window=known.window)
    elif kernel is None:
        kernel = KernelSpec()
        assumptions.append(
            "uniform attention over the tokens before (no position, no content): what any "
            "model without a positional bias in its logits has at initialisation"
        )
    layers = request.layers or (known.layers if known else None) or _layers(request, kernel)
    if layers is None:
        raise InvalidRequest(
            "`layers` is required unless `architecture` or a list of lambdas gives it",
            field="layers",
        )
    heads = request.heads or _heads(request, kernel, layers) or (known.heads if known else None)
    if heads is None:
        heads = DEFAULT_ALIBI_HEADS if _has_slopes(kernel) else 1
        if heads > 1:
            assumptions.append(f"{heads} heads")
    if heads > MAX_HEADS:
        raise InvalidRequest(f"`heads` must not exceed {MAX_HEADS}", field="heads")
    return kernel, layers, heads


def _layers(request: RolloutRequest, kernel: KernelSpec) -> int | None:
    """The number of layers that the lists in the request imply."""
    if isinstance(request.mixing, ListMixing | TokenMixing):
        return len(request.mixing.lambdas)
    for value in (request.content.diagonal, kernel.slopes):
        if isinstance(value, list) and isinstance(value[0], list):
            return len(value)
    if kernel.matrices is not None and len(kernel.matrices) > 1:
        return min(len(kernel.matrices), MAX_LAYERS)
    return None


def _heads(request: RolloutRequest, kernel: KernelSpec, layers: int) -> int | None:
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


def _has_slopes(kernel: KernelSpec) -> bool:
    """Whether the kernel has ALiBi's linear bias."""
    return kernel.type == "alibi" or (kernel.type == "window" and kernel.slopes is not None)


def _slopes(kernel: KernelSpec, layers: int, heads: int) -> F64 | None:
    """[T or 1, H], or None without ALiBi."""
    if not _has_slopes(kernel):
        return None
    if kernel.slopes is None or kernel.slopes == "standard":
        return kernels.standard_slopes(heads)[None]
    if isinstance(kernel.slopes, str):
        return kernels.geometric_slopes(heads)[None]
    return _table("kernel.slopes", kernel.slopes, layers, heads)


def _table(
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


def _mixing(
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
