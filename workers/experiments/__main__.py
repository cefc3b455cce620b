"""`python -m workers.experiments NAME FILE`: orders of chunks compared at a served model.

The result goes to standard output. Exit status: 0 compared (or estimated), 1 the endpoint, the
questions or the budget do not allow it, 2 the call or a file cannot be used, 130 stopped by Ctrl-C.
Errors are one line.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from lacuna.contract.calibrations import RelevanceScale
from lacuna.contract.errors import InvalidRequest, LacunaError
from lacuna.contract.experiment_requests import ExperimentRequest, OrderName
from lacuna.contract.experiments import ROW_COLUMNS, ExperimentOrder, ExperimentResult
from lacuna.contract.validation import error_message, number_of, whole_of
from lacuna.experiments.doubts import doubts
from lacuna.experiments.files import questions_of
from lacuna.experiments.orders import check
from lacuna.placement.curve import PlacementCurve
from lacuna.placement.profile_curve import of_profile
from service.endpoints.costs import of_experiment
from service.endpoints.table import PREFIX, Endpoint, Endpoints, SettingsInvalid
from workers.endpoints.ledger import FileLedger
from workers.experiments.run import Finding
from workers.experiments.served import run_served


class Unusable(Exception):
    """A file or an option cannot be used; one sentence."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with these arguments, else with the command line's; return the exit status."""
    asked = _parser().parse_args(arguments)
    try:
        endpoint = Endpoints.from_toml(asked.settings.read_text(encoding="utf-8")).find(asked.name)
        request, curve = _request(asked)
        check(request)
        if asked.dry_run:
            _print_cost(request, endpoint, as_json=asked.json)
            return 0
        found = _compared(request, endpoint, curve, asked)
        if asked.csv is not None:
            with asked.csv.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([ROW_COLUMNS, *(row.cells() for row in found.rows)])
        result = found.result
        print(result.model_dump_json(indent=2) if asked.json else _text(result))
        return 0
    except SettingsInvalid as error:
        return _fail(f"{asked.settings}: {error}", 2)
    except (Unusable, OSError, UnicodeDecodeError) as error:
        return _fail(f"{error}", 2)
    except LacunaError as error:
        return _fail(f"{error.code}: {error.detail}", 1)
    except KeyboardInterrupt:
        return _fail("stopped; the same command goes on from here", 130)


def _request(asked: argparse.Namespace) -> tuple[ExperimentRequest, PlacementCurve | None]:
    """The request that files and options make, and the curve of a profile's file."""
    body: dict[str, Any] = {
        "model": PREFIX + asked.name.removeprefix(PREFIX),
        "questions": _lines(asked.file),
        "budget": {
            "max_calls": asked.max_calls, "max_tokens": asked.max_tokens,
            "max_cost": asked.max_cost,
        },
    }  # fmt: skip
    given = {
        "orders": asked.orders and asked.orders.split(","),
        "reference": asked.reference,
        "scoring": asked.scoring,
        "relevance_scale": asked.scale,
        "smallest_effect": asked.smallest_effect,
        "max_answer_tokens": asked.max_answer_tokens,
        "seed": asked.seed,
        "template": asked.template and _template(asked.template),
    }
    body |= {name: value for name, value in given.items() if value is not None}
    curve = None
    if asked.profile is not None:
        curve = _curve(asked.profile)
        body["profile_id"] = curve.profile_id
    try:
        return ExperimentRequest.model_validate(body), curve
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(map(str, fault["loc"]))
        raise Unusable(f"{where}: {error_message(fault)}".removeprefix(": ")) from None


def _curve(path: Path) -> PlacementCurve:
    try:
        return of_profile(path.read_bytes(), None)
    except ValidationError:
        raise Unusable(f"{path} is not a saved profile") from None


def _lines(path: Path) -> list[Any]:
    try:
        return questions_of(path.read_text(encoding="utf-8"), str(path), _json)[0]
    except InvalidRequest as error:
        raise Unusable(error.detail) from None


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{name}: not JSON: {error}") from None


def _template(path: Path) -> dict[str, Any]:
    """Fields of a template: a JSON object, or else the text is a Jinja template."""
    text = path.read_text(encoding="utf-8")
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    return fields if isinstance(fields, dict) else {"jinja": text}


class _Job:
    """A job that tells a terminal how far it is."""

    def progress(self, fraction: float, message: str = "") -> None:
        """Write it over the line before."""
        if sys.stderr.isatty():
            print(f"\r\x1b[K{fraction:4.0%} {message}", end="", file=sys.stderr, flush=True)

    def check(self) -> None:
        """Ctrl-C stops it."""


def _compared(
    request: ExperimentRequest,
    endpoint: Endpoint,
    curve: PlacementCurve | None,
    asked: argparse.Namespace,
) -> Finding:
    kept = asked.ledger or Path(f"{endpoint.name}.answers.jsonl")
    try:
        ledger = FileLedger(kept)
    except BlockingIOError:
        raise BlockingIOError(f"another process asks with {kept}") from None
    try:
        key = endpoint.key(os.environ.get)
        return run_served(request, endpoint, key, _Job(), ledger=ledger, curve=curve)
    finally:
        ledger.close()
        if sys.stderr.isatty():
            print(file=sys.stderr)


def _text(found: ExperimentResult) -> str:
    """The result for people to read."""
    lines = [
        f"{found.model}: {found.questions} questions ({found.lost} lost), {found.scoring}, "
        f"rung {found.rung}, form {found.form}",
        "",
        f"{'order':18} {'score':>7} {'difference':>11}  {'95%, all orders':18} {'flips':>6} "
        f"{'nats':>7}",
        *map(_line, found.orders),
        "",
        found.verdict.words,
    ]
    effect, controls = found.minimum_detectable_effect, found.controls
    if effect is not None:
        lines.append(f"finds a difference of {effect:.3f} four times in five")
    if controls.a_a is not None:
        same = controls.a_a.difference
        lines.append(
            f"the reference again: {same.value:+z.3f} ({same.low:+z.3f} to {same.high:+z.3f})"
        )
    if controls.closed_book is not None:
        lines.append(f"without chunks: {controls.closed_book:.3f}")
    spent = found.usage
    lines.append(
        f"calls {spent.calls:,}, from earlier starts {spent.replayed:,}; tokens in "
        f"{spent.prompt_tokens:,}; cost {spent.cost or 0.0:.4g}"
    )
    return "\n".join([*lines, *(f"note: {one}" for one in found.warnings)])


def _line(one: ExperimentOrder) -> str:
    joint = f"{one.joint_low:+z.3f} to {one.joint_high:+z.3f}"
    return (
        f"{one.name:18} {one.mean:7.3f} {one.difference.value:+z11.3f}  {joint:18} {one.flips:6.1%}"
    )


def _print_cost(request: ExperimentRequest, endpoint: Endpoint, *, as_json: bool) -> None:
    found = of_experiment(request, endpoint)
    if as_json:
        print(found.model_dump_json(indent=2))
        return
    print(
        f"about {found.calls:,} calls, {found.prompt_tokens:,} tokens in, "
        f"{found.generated_tokens:,} out, cost {found.cost:.4g}, {found.minutes:.1f} minutes"
    )
    for warning in doubts(request):
        print(f"note: {warning}")


def _fail(reason: str, status: int) -> int:
    print(" ".join(reason.split()), file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m workers.experiments",
        description="Compare orders of chunks on your own questions at a served model.",
    )
    parser.add_argument("name", help="of the endpoint in the settings, with or without `endpoint:`")
    parser.add_argument("file", type=Path, help="questions as JSON, one a line, or an array")
    parser.add_argument("--settings", type=Path, default=Path("endpoints.toml"))
    parser.add_argument("--orders", help=f"some of {', '.join(get_args(OrderName))}")
    parser.add_argument("--reference", help="what the others are compared with; default given")
    parser.add_argument("--scoring", help="log_probability, contains, exact, regex or auto")
    parser.add_argument("--scale", choices=get_args(RelevanceScale), help="what scores are")
    parser.add_argument("--template", type=Path, help="JSON with its fields, or a Jinja template")
    parser.add_argument("--profile", type=Path, help="a saved profile, for advised and optimal")
    parser.add_argument("--smallest-effect", type=number_of, help="that matters; default .05")
    parser.add_argument("--max-answer-tokens", type=whole_of, help="of a written reply; default 32")
    parser.add_argument("--seed", type=whole_of, help="of random orders")
    parser.add_argument("--max-calls", type=whole_of, help="of all starts together")
    parser.add_argument("--max-tokens", type=whole_of, help="in and out together")
    parser.add_argument("--max-cost", type=number_of, help="in the settings' currency")
    parser.add_argument("--ledger", type=Path, help="keeps answers; default NAME.answers.jsonl")
    parser.add_argument("--csv", type=Path, help="write every reading to this file")
    parser.add_argument("--dry-run", action="store_true", help="print the cost, call nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
