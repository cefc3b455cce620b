"""Theory from architecture parameters alone: from wire request to theory and back.

The curves of one rollout request, by name.

What a rollout means for someone who writes a prompt, in sentences.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np
import numpy.typing as npt

from lacuna.contract.errors import InvalidRequest
from lacuna.contract.profile_requests import PredictionName
from lacuna.contract.profiles import Collapse, DeadZone, Force, Shape
from lacuna.contract.rollouts import (
    CesaroReport,
    DepthWidth,
    KernelMonotonicity,
    RolloutPrediction,
    RolloutRequest,
    RolloutResponse,
)
from lacuna.theory import cesaro, rollout, shape
from lacuna.theory.curve import Curve
from lacuna.theory.kernels import Kernel
from lacuna.theory.shape import END_SHARE
from service.answers.rollout_inputs import Inputs, check_kernel, check_work, resolve

F64 = npt.NDArray[np.float64]
_DENSITY_POINTS = 100
_MONOTONE_TOLERANCE = 1e-9


def compute(request: RolloutRequest) -> RolloutResponse:
    """Every curve and diagnosis that the request asks for. Pure; takes milliseconds to seconds.

    Raises:
        InvalidRequest: fields do not fit each other; names the field.
        TooLarge: length x layers x heads x rollouts is above the limit; names it.
    """
    inputs = resolve(request)
    check_kernel(inputs)
    names = _names(inputs)
    curves = Curves(inputs)
    _check(inputs, names)
    predictions: dict[str, RolloutPrediction] = {
        name: _prediction(curves.of(name), request) for name in names
    }
    main = curves.main
    report = _cesaro(inputs)
    collapse = rollout.collapse(
        curves.kernels_content,
        inputs.mixing,
        main,
        causal=request.mask.type == "causal",
        diverges=inputs.diverges,
    )
    forces = rollout.forces(curves.after_each_force())
    return RolloutResponse(
        architecture=request.architecture,
        sequence_length=inputs.length,
        layers=inputs.layers,
        heads=inputs.heads,
        bins=request.bins,
        predictions=predictions,
        forces=[_force(force, request) for force in forces],
        collapse=Collapse(**dataclasses.asdict(collapse)),
        cesaro=report,
        monotone=_monotone(inputs),
        summary=summarise(inputs, main, _zone(main, request), report),
        assumptions=list(inputs.assumptions),
    )


def _names(inputs: Inputs) -> list[PredictionName]:
    asked = inputs.request.predictions
    if asked is not None:
        return asked
    names: list[PredictionName] = ["attention_only", "residual", "residual_content", "cesaro"]
    return [*names, "measured_kernel"] if inputs.kernel.type == "measured" else names


def _check(inputs: Inputs, names: list[PredictionName]) -> None:
    if "measured_kernel" in names and inputs.kernel.type != "measured":
        raise InvalidRequest(
            "`measured_kernel` needs kernel type `measured`, or a profile of a model",
            field="predictions",
        )
    if "second_moment" in names:
        _check_second_moment(inputs)
    distinct = {"residual", *names} | ({"residual_content"} if inputs.has_content else set())
    if not inputs.has_content:
        distinct -= {"residual_content", "measured_kernel"}
    check_work(
        inputs,
        len(distinct - {"cesaro", "second_moment"}),
        second_moment="second_moment" in names,
    )


def _check_second_moment(inputs: Inputs) -> None:
    spec = inputs.kernel
    plain = spec.type in {"uniform", "alibi"} and spec.window is None
    even = spec.head_weights is None or len(set(spec.head_weights)) == 1
    if not plain or not even or inputs.request.mask.type != "causal":
        raise InvalidRequest(
            "`second_moment` needs causal uniform or ALiBi kernels without a window, and equal "
            "head weights",
            field="predictions",
        )
    mlp = inputs.request.gains.mlp
    if isinstance(mlp, list) and len(mlp) != inputs.layers:
        raise InvalidRequest(
            f"`gains.mlp` must be one number or one per layer ({inputs.layers})",
            field="gains.mlp",
        )


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


def _prediction(influence: F64, request: RolloutRequest) -> RolloutPrediction:
    found = shape.shape(influence)
    fields = dataclasses.asdict(found)
    return RolloutPrediction(
        influence=_binned(influence, request),
        mean_position=Curve(influence).mean_position(),
        dead_zone=_zone(influence, request),
        shape=Shape(class_=fields.pop("name"), **fields),
    )


def _zone(influence: F64, request: RolloutRequest) -> DeadZone | None:
    zone = shape.dead_zone(influence, threshold=request.threshold)
    return None if zone is None else DeadZone(**dataclasses.asdict(zone))


def _force(force: rollout.Force, request: RolloutRequest) -> Force:
    fields = {f.name: getattr(force, f.name) for f in dataclasses.fields(force)}
    fields["influence"] = _binned(force.influence, request)
    return Force(**fields)


def _binned(influence: F64, request: RolloutRequest) -> list[float]:
    values = influence if request.bins is None else Curve(influence).bins(request.bins)
    return [float(value) for value in values.tolist()]


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
    from lacuna.theory import second_moment_architecture

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


_MARGIN = 0.02
"""Share of the prompt that is too short to put anything into."""


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
    if before and after:
        return f"Put what matters before token {zone.start} or after token {zone.end - 1}."
    if before and last_is_heard:
        return f"Put what matters before token {zone.start}, and the question at the very end."
    if before:
        return f"Put what matters before token {zone.start}: the very end is not heard well either."
    if after:
        return f"Put what matters after token {zone.end - 1}."
    heard = ["the very beginning"] * (zone.start > 0) + ["the very end"] * last_is_heard
    apart = f"Apart from {' and '.join(heard)}, no" if heard else "No"
    return f"{apart} place in this prompt is heard well."
