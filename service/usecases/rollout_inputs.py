"""From a rollout request to arrays and kernels: presets, defaults, shapes, bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from service.contract.architectures import ARCHITECTURES
from service.contract.errors import InvalidRequest
from service.contract.rollouts import MAX_HEADS, KernelSpec, RolloutRequest
from service.theory import kernels
from service.theory.kernels import Kernel
from service.usecases.rollout_lists import (
    has_slopes,
    heads_of,
    layers_of,
    mixing_of,
    slopes_of,
    table,
)

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
    preset = None if request.architecture is None else ARCHITECTURES[request.architecture]
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
