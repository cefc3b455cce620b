"""Theory from architecture parameters alone: from wire request to theory and back."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from service.contract.curves import Collapse, DeadZone, Force, Shape
from service.contract.errors import InvalidRequest
from service.contract.profile_requests import PredictionName
from service.contract.rollouts import (
    CesaroReport,
    DepthWidth,
    KernelMonotonicity,
    RolloutPrediction,
    RolloutRequest,
    RolloutResponse,
)
from service.theory import cesaro, rollout, shape
from service.theory.curve import Curve
from service.usecases.rollout_bounds import check_kernel, check_work
from service.usecases.rollout_curves import Curves
from service.usecases.rollout_inputs import Inputs, resolve
from service.usecases.rollout_summary import summarise

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
