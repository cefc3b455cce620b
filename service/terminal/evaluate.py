"""`lacuna evaluate`: compare orders of chunks on questions of your own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from lacuna.client.chunks import parse_json
from lacuna.contract.calibrations import RelevanceScale
from lacuna.contract.endpoints import PREFIX
from lacuna.contract.errors import InvalidRequest
from lacuna.contract.experiment_requests import ExperimentRequest, OrderName
from lacuna.contract.experiments import ExperimentResult
from lacuna.contract.jobs import Job
from service.terminal.common import Json, Key, Request, Server, Status, fail, out, print_json
from service.terminal.experiment_report import estimate_report, experiment_report
from service.terminal.inputs import (
    Built,
    Option,
    build_request,
    may_overwrite,
    names,
    parse_object,
    read_source,
    validated,
)
from service.terminal.waiting import print_job, waited

_DEFAULTS = ExperimentRequest.model_fields
_SCORINGS = ", ".join(get_args(_DEFAULTS["scoring"].annotation))
_SCALES = ", ".join(get_args(RelevanceScale))
Template = Annotated[
    str | None,
    typer.Option(
        help="File of the prompt: a Jinja template of the message, or JSON with the fields of "
        "`template`."
    ),
]
Orders = Annotated[
    str | None,
    typer.Option(
        help=f"Some of {', '.join(get_args(OrderName))}. "
        f"Default: {','.join(_DEFAULTS['orders'].default)}."
    ),
]


def evaluate_orders(
    questions: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="JSON lines, or `-` for stdin. Each has `question`, `chunks` (each with `id`, "
            "`text` and `score`, in the order used today) and `answers`.",
        ),
    ],
    model: Annotated[
        str, typer.Option(help="Hub id, demo:NAME, local:NAME, or endpoint:NAME of the service.")
    ],
    orders: Orders = None,
    reference: Annotated[
        str | None, typer.Option(help="What the others are compared with. Default: given.")
    ] = None,
    template: Template = None,
    profile: Annotated[
        str | None, typer.Option(help="Id of the profile that `advised` and `optimal` follow.")
    ] = None,
    scoring: Annotated[str | None, typer.Option(help=f"{_SCORINGS}. Default: auto.")] = None,
    scale: Annotated[
        str | None, typer.Option(help=f"What scores are: {_SCALES}. Default: score.")
    ] = None,
    smallest_effect: Annotated[
        float | None, typer.Option(help="The smallest difference that matters. Default: 0.05.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit.")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32 or bfloat16.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of random orders.")] = None,
    max_calls: Annotated[int | None, typer.Option(help="Most calls of the endpoint.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens, in and out.")] = None,
    max_cost: Annotated[float | None, typer.Option(help="Most money, at its prices.")] = None,
    request: Request = None,
    csv: Annotated[Path | None, typer.Option(help="Write every reading to this file.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the result as JSON.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it will take; run nothing.")
    ] = False,
    wait: Annotated[bool, typer.Option(help="Wait, or print the job and stop.")] = True,
    as_json: Json = False,
    server: Server = None,
    key: Key = None,
) -> None:
    """Try several orders of the chunks on your own questions: which one answers best, if any."""
    fields = parse_object(request)
    fields["questions"], lines = _questions(questions)
    built = build_request(
        fields,
        [
            Option("--model", "model", model),
            Option("--orders", "orders", names(orders)),
            Option("--reference", "reference", reference),
            Option("--template", "template", template and _template(template)),
            Option("--profile", "profile_id", profile),
            Option("--scoring", "scoring", scoring),
            Option("--scale", "relevance_scale", scale),
            Option("--smallest-effect", "smallest_effect", smallest_effect),
            Option("--revision", "revision", revision),
            Option("--dtype", "dtype", dtype),
            Option("--seed", "seed", seed),
            Option("--max-calls", "budget.max_calls", max_calls),
            Option("--max-tokens", "budget.max_tokens", max_tokens),
            Option("--max-cost", "budget.max_cost", max_cost),
            Option("FILE", "questions", fields["questions"]),
        ],
    )
    validated(ExperimentRequest, built, lines)
    if csv is not None:
        _refuse_to_overwrite("--csv", csv, _is_table)
    if output is not None:
        _refuse_to_overwrite("--output", output, _is_result)
    if server is None and not wait:
        fail("--no-wait needs --server: a service started here ends with the command", Status.USAGE)
    if dry_run:
        _estimated(built, server, key, as_json=as_json)
        return
    found = _compared(built, csv, server, key, wait=wait, as_json=as_json)
    if found is None:
        return
    if output is not None:
        _refuse_to_overwrite("--output", output, _is_result)  # minutes may have passed
        _write(output, (found.model_dump_json(indent=1) + "\n").encode())
    if as_json:
        print_json(found)
    else:
        experiment_report(out, found)


def _refuse_to_overwrite(flag: str, path: Path, is_ours: Callable[[Path], bool]) -> None:
    if path.is_dir() or not path.absolute().parent.is_dir():
        fail(f"{flag}: cannot write {path}", Status.USAGE)
    if not may_overwrite(path, is_ours):
        fail(
            f"{path} is there already, and `lacuna evaluate` did not write it: name another file "
            f"with {flag}, or remove it",
            Status.USAGE,
        )


def _is_table(path: Path) -> bool:
    """Whether the file holds the readings of an experiment."""
    try:
        return path.read_bytes().startswith(b"question,arm,")
    except OSError:
        return False


def _is_result(path: Path) -> bool:
    """Whether the file holds the result of an experiment, of whatever version."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and {"verdict", "orders", "controls"} <= found.keys()


def _questions(source: str) -> tuple[list[Any], dict[int, str]]:
    """The questions of a file, and what to call each of them."""
    text, name = read_source(source)
    found: list[Any] = []
    lines: dict[int, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        lines[len(found)] = f"{name} line {number}"
        try:
            found.append(parse_json(line, lines[len(found)]))
        except InvalidRequest as error:
            fail(error.detail, Status.USAGE)
    return found, lines


def _template(path: str) -> dict[str, Any]:
    """Fields of a template from a file: JSON, or the text of a Jinja template."""
    text, _ = read_source(f"@{path.removeprefix('@')}")
    return parse_object(text) if re.match(r'\s*\{\s*["}]', text) else {"jinja": text}


def _estimated(built: Built, server: str | None, key: str | None, *, as_json: bool) -> None:
    from service.terminal.connection import connected

    with connected(server, key, names=built.names) as client:
        found = client.estimate_experiment(**built.body)
    if as_json:
        print_json(found)
    else:
        for line in estimate_report(found):
            out.print(line, soft_wrap=True)


def _compared(
    built: Built,
    csv: Path | None,
    server: str | None,
    key: str | None,
    *,
    wait: bool,
    as_json: bool,
) -> ExperimentResult | None:
    """The result, or None if only its job is known."""
    from service.terminal.connection import connected

    served = str(built.body["model"]).startswith(PREFIX)
    with connected(
        server, key, workers=0 if served else 1, endpoints=served, names=built.names
    ) as client:
        found = client.submit_experiment(**built.body)
        if isinstance(found, Job):
            if not wait:
                print_job(found, server, as_json=as_json)
                return None
            done = waited(client, found, built.body["model"], server)
            found = client.get_experiment(done.id)
        if csv is not None:
            _refuse_to_overwrite("--csv", csv, _is_table)
            _write(csv, client.experiment_rows(found.id))
    return found


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror or error}", Status.REFUSED)
