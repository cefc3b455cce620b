"""Theory from architecture parameters alone: from a rollout request to its answer.

`compute` is where it starts. `rollout_inputs` fills in the request, `rollout_limits` bounds it;
`Curves` computes each curve once; `summarise` says in sentences what they mean for someone who
writes a prompt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import assert_never

import numpy as np
import numpy.typing as npt

from lacuna.contract.profile_requests import COSTLY_PREDICTION, PredictionName
from lacuna.contract.profiles import DeadZone
from lacuna.contract.rollouts import (
    CesaroReport,
    DepthWidth,
    KernelMonotonicity,
    RolloutPrediction,
    RolloutRequest,
    RolloutResponse,
)
from lacuna.theory import cesaro, rollout
from lacuna.theory.curve import Curve
from lacuna.theory.kernels import Kernel
from lacuna.theory.shape import END_SHARE
from lacuna.views import collapse_to_wire, force_to_wire, shape_of, zone_of
from service.answers.rollout_inputs import Inputs, resolve
from service.answers.rollout_limits import Deadline, check_kernel, check_predictions, check_size

F64 = npt.NDArray[np.float64]
_DENSITY_POINTS = 100
_MONOTONE_TOLERANCE = 1e-9
_HALF = 0.5
_MARGIN = 0.02
"""Share of the prompt that is too short to put anything into."""


def compute(
    request: RolloutRequest,
    clock: Callable[[], float] = time.monotonic,
    given_up: Callable[[], bool] = lambda: False,
) -> RolloutResponse:
    """Every curve and diagnosis that the request asks for, in full float64.

    Takes milliseconds to seconds. The answer depends on the request alone.

    Args:
        request: validated.
        clock: seconds, for the deadline.
        given_up: whether nobody waits for the answer any more; asked between layers.

    Raises:
        InvalidRequest: fields do not fit each other; names the field.
        TooLarge: a size is beyond its limit, or the time is up; names the limit.
        GivenUp: nobody waits for the answer any more.
    """
    inputs = resolve(request)
    names = request.predictions or _default_names(inputs)
    check_kernel(inputs)
    check_predictions(inputs, names)
    check_size(inputs)
    curves = Curves(inputs, Deadline(clock, given_up))
    predictions: dict[str, RolloutPrediction] = {
        name: _prediction(curves.of(name), request) for name in names
    }
    main = curves.of("residual_content")
    forces = rollout.forces(curves.after_each_force())
    collapse = curves.collapse()
    report = _cesaro(inputs)
    return RolloutResponse(
        architecture=request.architecture,
        sequence_length=inputs.length,
        layers=inputs.layers,
        heads=inputs.heads,
        bins=request.bins,
        predictions=predictions,
        forces=[force_to_wire(f, _binned(f.influence, request), float) for f in forces],
        collapse=collapse_to_wire(collapse, float),
        cesaro=report,
        monotone=_monotone(inputs),
        summary=summarise(inputs, main, zone_of(main, request.threshold, float), report),
        assumptions=list(inputs.assumptions),
    )


def _default_names(inputs: Inputs) -> list[PredictionName]:
    names: list[PredictionName] = ["attention_only", "residual", "residual_content", "cesaro"]
    return [*names, "measured_kernel"] if inputs.kernel.type == "measured" else names


class Curves:
    """Curves by name, each computed once and before the deadline."""

    def __init__(self, inputs: Inputs, deadline: Deadline) -> None:
        self._inputs = inputs
        self._deadline = deadline
        self._found: dict[PredictionName, F64] = {}

    @cached_property
    def kernels(self) -> list[Kernel]:
        """One per layer, position alone."""
        return self._inputs.kernels(self._deadline.check, content=False)

    @cached_property
    def kernels_content(self) -> list[Kernel]:
        """The same with content, where there is any."""
        if not self._inputs.has_content:
            return self.kernels
        return self._inputs.kernels(self._deadline.check, content=True)

    def of(self, name: PredictionName) -> F64:
        """[n]. Names that mean the same without content share one computation.

        Raises:
            TooLarge: the time is up.
        """
        if not self._inputs.has_content and name in {"residual_content", "measured_kernel"}:
            name = "residual"
        if name not in self._found:
            self._deadline.during = name
            self._found[name] = self._compute(name)
            self._deadline.during = None
        return self._found[name]

    def after_each_force(self) -> list[tuple[rollout.ForceName, F64]]:
        """The curve after each ingredient is switched on, in [S]'s order."""
        inputs, check = self._inputs, self._deadline.check
        uniform = [inputs.uniform()] * inputs.layers
        return [
            ("causal_mask", rollout.rollout(uniform, np.ones(inputs.layers), check)),
            ("residual", rollout.rollout(uniform, inputs.mixing, check)),
            ("positional_encoding", self.of("residual")),
            ("content", self.of("residual_content")),
        ]

    def collapse(self) -> rollout.Collapse:
        """The depth limit of the curve that uses everything the request says."""
        return rollout.collapse(
            self.kernels_content,
            self._inputs.mixing,
            self.of("residual_content"),
            causal=self._inputs.request.mask.type == "causal",
            diverges=self._inputs.diverges,
            check=self._deadline.check,
        )

    def _compute(self, name: PredictionName) -> F64:
        inputs, check = self._inputs, self._deadline.check
        if name == "attention_only":
            return rollout.rollout(self.kernels, np.ones(inputs.layers), check)
        if name == "half_residual":
            return rollout.rollout(self.kernels, np.full(inputs.layers, _HALF), check)
        if name == "cesaro":
            return cesaro.finite(inputs.length, inputs.layers, inputs.mean_mixing, check)
        if name == COSTLY_PREDICTION:
            return self._second_moment()
        if name == "residual_content":
            return rollout.rollout(self.kernels_content, inputs.mixing, check)
        # `measured_kernel` is the residual rollout over the kernels that the request gives.
        if name == "residual" or name == "measured_kernel":  # noqa: PLR1714 (mypy narrows by ==)
            return rollout.rollout(self.kernels, inputs.mixing, check)
        assert_never(name)

    def _second_moment(self) -> F64:
        # Its filters come from scipy.signal, which takes longer to import than the rest of theory.
        from lacuna.theory import second_moment_architecture

        inputs = self._inputs
        slopes = np.zeros((1, inputs.heads)) if inputs.slopes is None else inputs.slopes
        # [H] for all layers, or [T, H].
        slopes, diagonal = (
            table[0] if len(table) == 1 else table for table in (slopes, inputs.diagonal)
        )
        return second_moment_architecture.from_architecture(
            inputs.length,
            inputs.layers,
            inputs.layer_mixing,
            slopes=slopes / inputs.kernel.temperature,
            diagonal=diagonal / inputs.kernel.temperature,
            mlp_gain=inputs.request.gains.mlp,
            mlp_coherence=inputs.request.gains.mlp_coherence,
            check=self._deadline.check,
        )


def _prediction(influence: F64, request: RolloutRequest) -> RolloutPrediction:
    return RolloutPrediction(
        influence=_binned(influence, request),
        mean_position=Curve(influence).mean_position(),
        dead_zone=zone_of(influence, request.threshold, float),
        shape=shape_of(influence, float),
    )


def _binned(influence: F64, request: RolloutRequest) -> list[float]:
    values = influence if request.bins is None else Curve(influence).bins(request.bins)
    return [float(value) for value in values.tolist()]


def _cesaro(inputs: Inputs) -> CesaroReport:
    layers, a, threshold = inputs.layers, inputs.mean_mixing, inputs.request.threshold
    positions = np.arange(1, _DENSITY_POINTS + 1) / _DENSITY_POINTS
    density, atom = cesaro.density(positions, layers, a)
    parts = cesaro.decompose(layers, a, threshold)
    depths = sorted({2**k for k in range(layers.bit_length())} | {layers})
    widths = cesaro.width_by_depth(depths, a, threshold)
    return CesaroReport(
        layers=layers,
        a=a,
        positions=positions.tolist(),
        density=density.tolist(),
        atom=atom,
        primacy_tail_mass=parts.primacy_tail_mass,
        dead_zone_mass=parts.dead_zone_mass,
        dead_zone_start=parts.dead_zone_start,
        dead_zone_width=parts.dead_zone_width,
        floor=parts.floor,
        attention_only_dead_zone_start=cesaro.dead_zone_boundary(layers, threshold),
        width_by_depth=[
            DepthWidth(layers=depth, width=width)
            for depth, width in zip(depths, widths.tolist(), strict=True)
        ],
    )


def _monotone(inputs: Inputs) -> list[KernelMonotonicity] | None:
    if inputs.kernel.matrices is None:
        return None
    found = []
    for layer, matrix in enumerate(inputs.kernel.matrices):
        violation = rollout.monotone_violation(matrix)
        found.append(
            KernelMonotonicity(
                layer=layer, violation=violation, monotone=violation <= _MONOTONE_TOLERANCE
            )
        )
    return found


def summarise(
    inputs: Inputs, influence: F64, zone: DeadZone | None, report: CesaroReport
) -> list[str]:
    """Where such a model listens before it has learned anything.

    Args:
        influence: [n], the curve that uses everything the request says.
        zone: its dead zone.
        report: the closed form.
    """
    n = inputs.length
    if n == 1:
        return ["A prompt of one token has no places to compare: all influence is on that token."]
    curve = Curve(influence)
    head = curve.mass(0.0, END_SHARE * n)
    last = float(curve.influence[-1])
    inner = curve.mass(n - max(1.0, END_SHARE * n), n - 1.0)
    half = float(np.searchsorted(curve.cumulative(), 0.5, side="left")) / n
    sentences = [
        f"The first tenth of the prompt gets {head:.1%} of the influence (an even share is 10%); "
        f"the last token keeps {last:.1%}, the rest of the last tenth gets {inner:.1%}.",
        f"Half of all influence comes from the first {min(1.0, half):.1%} of the prompt.",
    ]
    threshold = inputs.request.threshold
    if zone is None:
        sentences.append(f"No stretch of the prompt falls below {threshold:g} of an even share.")
    else:
        last_density = n * float(curve.influence[-1])
        sentences += [_dead(zone, n), _advice(zone, n, last_density >= threshold)]
    same = inputs.kernel.type == "uniform" and inputs.request.mask.type == "causal"
    attention = "" if same and not inputs.has_content else " with uniform causal attention instead"
    layers = "1 layer" if report.layers == 1 else f"{report.layers} layers"
    sentences.append(
        f"In the closed form for {layers}{attention} the dead zone covers "
        f"{report.dead_zone_width:.0%} of the prompt, from {report.dead_zone_start:.0%} on; its "
        f"least density, next to the end, is {report.floor:.2g}."
    )
    return sentences


def _dead(zone: DeadZone, n: int) -> str:
    return (
        f"Dead zone: tokens {zone.start} to {zone.end - 1} of {n} ({zone.fraction:.0%} of the "
        f"prompt) get less than {zone.threshold:g} of an even share, {zone.mean_density:.2g} of it "
        f"on average; the quietest place is {_place(zone.argmin, n)}."
    )


def _place(position: int, n: int) -> str:
    """Where a token stands, in words; the ends by name, which percentages would round into."""
    if position == n - 1:
        return "the last token"
    if position == n - 2:
        return "just before the last token"
    if position == 0:
        return "the first token"
    share = 100 * position / (n - 1)
    if round(share) >= 100:
        return f"{n - 1 - position} tokens before the last"
    return f"at {share:.0f}% of the prompt"


def _advice(zone: DeadZone, n: int, last_is_heard: bool) -> str:
    """Where to put things.

    Args:
        last_is_heard: whether the last token has the density that the zone lacks.
    """
    margin = max(1.0, _MARGIN * n)
    before, after = zone.start > margin, zone.end < n - margin
    best = "The curve's best places are"
    if before and after:
        return f"{best} before token {zone.start} and after token {zone.end - 1}."
    if before and last_is_heard:
        return f"{best} before token {zone.start} and the very end."
    if before:
        return f"{best} before token {zone.start}; the very end is not among them."
    if after:
        return f"{best} after token {zone.end - 1}."
    heard = ["the very beginning"] * (zone.start > 0) + ["the very end"] * last_is_heard
    apart = f"Apart from {' and '.join(heard)}, no" if heard else "No"
    return f"{apart} place in this prompt is heard well."
