"""`lacuna rollout`: what theory says of an architecture."""

from __future__ import annotations

from typing import Annotated, Any, get_args

import typer
from rich.console import Console
from rich.table import Table

from lacuna.architectures.table import find
from lacuna.contract.errors import LacunaError
from lacuna.contract.models import PositionalEncoding
from lacuna.contract.profile_requests import PREDICTION_NAMES, PredictionName
from lacuna.contract.rollouts import (
    ARCHITECTURE_NAMES,
    MAX_UNBINNED_LENGTH,
    RolloutRequest,
    RolloutResponse,
)
from lacuna.pictures.terminal import bars, side_by_side
from service.terminal.common import Json, Request, Status, fail, out, print_json
from service.terminal.inputs import (
    Option,
    build_request,
    names,
    numbers,
    parse_object,
    refuse,
    validated,
)
from service.terminal.reports import clean, counted, number, zone_span

_POSITIONS = tuple(name for name in get_args(PositionalEncoding) if name != "other")
_DRAWN_BINS = 1_024
_LENGTH = RolloutRequest.model_fields["sequence_length"].default
_MODELS = f"A known architecture: {', '.join(ARCHITECTURE_NAMES)}."


def compute_rollout(
    given: Annotated[
        str | None,
        typer.Argument(metavar="[REQUEST]", help="The request as JSON, or @FILE. Options win."),
    ] = None,
    model: Annotated[str | None, typer.Option(help=_MODELS)] = None,
    layers: Annotated[int | None, typer.Option(help="Number of layers.")] = None,
    heads: Annotated[int | None, typer.Option(help="Heads of a layer.")] = None,
    length: Annotated[
        int | None,
        typer.Option(help=f"Tokens of the prompt (else {_LENGTH})."),
    ] = None,
    positions: Annotated[
        str | None,
        typer.Option(
            help=f"Positional encoding: {', '.join(_POSITIONS)}. Before training all but alibi "
            "leave attention even."
        ),
    ] = None,
    lambda_: Annotated[
        str | None,
        typer.Option(
            "--lambda", help="Share of attention in a layer's output: a number, or one a layer."
        ),
    ] = None,
    window: Annotated[int | None, typer.Option(help="Tokens that attention reaches back.")] = None,
    predictions: Annotated[
        str | None, typer.Option(help=f"Some of {', '.join(PREDICTION_NAMES)}.")
    ] = None,
    bins: Annotated[
        int | None, typer.Option(help="Number of bins of a curve; a bin holds a mass.")
    ] = None,
    request: Request = None,
    as_json: Json = False,
) -> None:
    """Theory alone: influence curves and dead zones of an architecture. Needs no service."""
    if given is not None and request is not None:
        fail("give the request once: as REQUEST or as --request", Status.USAGE)
    fields = parse_object(given if given is not None else request)
    kernel = _kernel(positions, window, model or fields.get("architecture"))
    options = [
        Option("--model", "architecture", model),
        Option("--layers", "layers", layers),
        Option("--heads", "heads", heads),
        Option("--length", "sequence_length", length),
        *kernel,
        Option("--lambda", "mixing", _mixing(numbers(lambda_, "--lambda"))),
        Option("--predictions", "predictions", names(predictions)),
        Option("--bins", "bins", bins),
    ]
    built = build_request(fields, options)
    if not built.body:
        fail("say which architecture: --layers, --model or a request", Status.USAGE)
    if not as_json and bins is None and isinstance(length, int) and length > MAX_UNBINNED_LENGTH:
        built.body.setdefault("bins", _DRAWN_BINS)  # a chart shows less anyway
    asked = validated(RolloutRequest, built)
    # numpy and scipy are slow to import
    from service.answers.rollouts import compute

    try:
        answer = compute(asked)
    except LacunaError as error:
        refuse(error, built.names)
    if as_json:
        print_json(answer)
    else:
        rollout_report(out, answer)


def _kernel(positions: str | None, window: int | None, model: object) -> list[Option]:
    """The kernel's fields; what options leave open comes from the named architecture."""
    if positions is None and window is None:
        return []
    if positions is not None and positions not in _POSITIONS:
        fail(f"--positions: must be one of {', '.join(_POSITIONS)}", Status.USAGE)
    known = find(model) if isinstance(model, str) else None
    alibi = positions == "alibi" or (
        positions is None and known is not None and known.kernel == "alibi"
    )
    reach = window if window is not None or known is None else known.window
    kind = "window" if reach is not None else "alibi" if alibi else "uniform"
    return [
        Option("--positions" if window is None else "--window", "kernel.type", kind),
        Option("--window", "kernel.window", reach),
        Option("--positions", "kernel.slopes", "standard" if alibi else None),
    ]


def _mixing(values: list[float] | None) -> dict[str, Any] | None:
    if values is None:
        return None
    if len(values) == 1:
        return {"type": "constant", "value": values[0]}
    return {"type": "list", "lambdas": values}


_DRAWN_FIRST: tuple[PredictionName, ...] = (
    "second_moment",
    "measured_kernel",
    "residual_content",
    "residual",
)
"""Predictions whose curve is drawn large, the one that uses most of the request first."""


def rollout_report(console: Console, answer: RolloutResponse) -> None:
    """Print the predictions, the curve that tells most, and what each ingredient does."""
    width = min(console.width, 100)
    console.print(_predictions(answer))
    name = _drawn(answer)
    drawn = answer.predictions[name]
    console.print(f"{name}:")
    console.print(bars(drawn.influence, answer.sequence_length, drawn.dead_zone, width))
    if len(answer.predictions) > 1:
        curves = {name: drawn.influence}
        curves |= {n: p.influence for n, p in answer.predictions.items()}
        console.print(f"\n{side_by_side(curves, answer.sequence_length, width)}")
    console.print(_forces(answer))
    console.print(f"depth: {answer.collapse.verdict}", soft_wrap=True)
    console.print(answer.collapse.evidence, soft_wrap=True)
    for sentence in answer.summary:
        console.print(sentence, soft_wrap=True)
    for assumption in answer.assumptions:
        console.print(f"assumed: {assumption}", soft_wrap=True)


def _drawn(answer: RolloutResponse) -> str:
    known = answer.predictions
    if "residual" in known and known.get("residual_content") == known["residual"]:
        return "residual"
    return next((name for name in _DRAWN_FIRST if name in known), next(iter(known)))


def _predictions(answer: RolloutResponse) -> Table:
    named = f"{clean(answer.architecture)}: " if answer.architecture else ""
    sizes = (answer.layers, "layer"), (answer.heads, "head"), (answer.sequence_length, "token")
    table = Table(title=named + ", ".join(counted(*size) for size in sizes))
    table.add_column("prediction", no_wrap=True)
    table.add_column("dead zone", justify="right", no_wrap=True)
    table.add_column("primacy", justify="right")
    table.add_column("recency", justify="right")
    table.add_column("shape")
    for name, prediction in answer.predictions.items():
        shape = prediction.shape
        table.add_row(
            name,
            zone_span(prediction.dead_zone),
            number(shape.primacy_mass),
            number(shape.recency_mass),
            shape.class_,
        )
    return table


def _forces(answer: RolloutResponse) -> Table:
    table = Table(title="what each ingredient does to the mean position")
    table.add_column("ingredient")
    for name in ("shift", "mean position", "primacy", "recency"):
        table.add_column(name, justify="right")
    for force in answer.forces:
        table.add_row(
            force.name,
            f"{force.shift:+.4f}",
            number(force.mean_position),
            number(force.primacy_mass),
            number(force.recency_mass),
        )
    return table
