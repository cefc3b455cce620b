"""`lacuna calibrate`: from labelled scores to a calibration that `place` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer

from lacuna.client.labels import parse_labels
from lacuna.contract.calibrations import Calibration, CalibrationRequest, RelevanceScale
from lacuna.contract.errors import InvalidRequest
from service.terminal.common import (
    Json,
    Status,
    fail,
    holds,
    out,
    print_json,
    refuse_to_overwrite,
    write,
)
from service.terminal.inputs import (
    Option,
    build_request,
    read_source,
    refuse,
    validated,
)

_SCALES = f"What the scores are: {', '.join(get_args(RelevanceScale))}. Default: score."


def calibrate_scores(
    labels: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A file or `-` for stdin: lines `score,label,question` under such a heading, or "
            "JSON lines with these fields. The label is 1 where the chunk holds the answer, else "
            "0.",
        ),
    ],
    scale: Annotated[str | None, typer.Option(help=_SCALES)] = None,
    family: Annotated[
        str | None, typer.Option(help="auto, logistic or isotonic. Default: auto.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the calibration to this file, for `place`.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit a calibration of retriever scores, and say how far its probabilities can be trusted."""
    from service.answers.placements import calibrate

    try:
        fields = parse_labels(*read_source(labels))
    except InvalidRequest as error:
        fail(error.detail, Status.USAGE)
    options = [Option("--scale", "relevance_scale", scale), Option("--family", "family", family)]
    built = build_request(fields, options)
    if output is not None:
        refuse_to_overwrite(output, _is_calibration, "calibrate")
    request = validated(CalibrationRequest, built)
    try:
        found = calibrate(request)
    except InvalidRequest as error:
        refuse(error, built.names)
    if output is not None:
        write(output, (found.model_dump_json(indent=1) + "\n").encode(), Status.USAGE)
    if as_json:
        print_json(found)
        return
    for line in calibration_report(found):
        out.print(line, soft_wrap=True)
    if output is None:
        out.print("keep it with --output FILE, and give it to `lacuna place --calibration FILE`")


def _is_calibration(path: Path) -> bool:
    return holds(path, "family", "x", "y", "reliability")


def calibration_report(found: Calibration) -> list[str]:
    """How reliable a calibration is, in lines."""
    reliability = found.reliability
    low, high = reliability.calibration_error_low, reliability.calibration_error_high
    better = 1 - reliability.brier / reliability.brier_base if reliability.brier_base else 0.0
    return [
        f"calibration: {found.family}, from {reliability.labels} labels of "
        f"{reliability.questions} questions, {reliability.positives} with the answer",
        f"stated probabilities are {reliability.calibration_error:.3f} off on average, 95% "
        f"interval {low:.3f} to {high:.3f} (questions that it did not see)",
        f"Brier score {reliability.brier:.4f}, {better:.0%} better than the base rate's "
        f"{reliability.brier_base:.4f}",
    ]
