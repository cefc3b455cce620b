"""`lacuna rollout`: what theory says of an architecture."""

from __future__ import annotations

from typing import Annotated, Any, get_args

import typer

from lacuna.architectures.table import find
from lacuna.contract.errors import LacunaError
from lacuna.contract.models import PositionalEncoding
from lacuna.contract.profile_requests import PREDICTION_NAMES
from lacuna.contract.rollouts import ARCHITECTURE_NAMES, MAX_UNBINNED_LENGTH, RolloutRequest
from service.terminal.common import Json, Request, Status, fail, out, print_json
from service.terminal.inputs import Option, build, checked, names, numbers, parse_object, refuse
from service.terminal.reports import rollout_report

_POSITIONS = tuple(name for name in get_args(PositionalEncoding) if name != "other")
_DRAWN_BINS = 1_024
_LENGTH = RolloutRequest.model_fields["sequence_length"].default
_MODELS = f"A known architecture: {', '.join(ARCHITECTURE_NAMES)}."


def rollout(
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
    bins: Annotated[int | None, typer.Option(help="Curves as masses of so many bins.")] = None,
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
    built = build(fields, options)
    if not built.body:
        fail("say which architecture: --layers, --model or a request", Status.USAGE)
    if not as_json and bins is None and isinstance(length, int) and length > MAX_UNBINNED_LENGTH:
        built.body.setdefault("bins", _DRAWN_BINS)  # a chart shows less anyway
    asked = checked(RolloutRequest, built)
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
