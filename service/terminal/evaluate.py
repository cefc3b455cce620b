"""`lacuna evaluate`: compare orders of chunks on questions of your own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from lacuna.client.chunks import parse_json
from lacuna.contract.calibrations import RelevanceScale
from lacuna.contract.errors import InvalidRequest
from lacuna.contract.experiment_requests import (
    ExperimentEstimate,
    ExperimentRequest,
    OrderName,
)
from lacuna.contract.experiments import ExperimentOrder, ExperimentResult, RecallByPlace
from lacuna.contract.jobs import Job
from service.terminal.common import (
    Json,
    Key,
    Request,
    Server,
    Status,
    fail,
    holds,
    out,
    print_json,
    refuse_to_overwrite,
    write,
)
from service.terminal.inputs import (
    Built,
    Option,
    build_request,
    names,
    parse_object,
    read_source,
    validated,
)
from service.terminal.reports import bar, clean, counted

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
            help="JSON, one question a line or an array; `-` for stdin. Each has `question`, "
            "`chunks` (each with `id`, `text` and `score`, in the order used today) and `answers`.",
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
    _refuse_file(profile)
    validated(ExperimentRequest, built, lines)
    if csv is not None:
        _check_file("--csv", csv, _is_table)
    if output is not None:
        _check_file("--output", output, _is_result)
    if server is None and not wait:
        fail("--no-wait needs --server: a service started here ends with the command", Status.USAGE)
    if dry_run:
        _estimated(built, server, key, as_json=as_json)
        return
    found = _compared(built, csv, server, key, wait=wait, as_json=as_json)
    if found is None:
        return
    if output is not None:
        _check_file("--output", output, _is_result)  # minutes may have passed
        write(output, (found.model_dump_json(indent=1) + "\n").encode())
    if as_json:
        print_json(found)
    else:
        experiment_report(out, found)


def _check_file(flag: str, path: Path, is_ours: Callable[[Path], bool]) -> None:
    if path.is_dir() or not path.absolute().parent.is_dir():
        fail(f"{flag}: cannot write {path}", Status.USAGE)
    refuse_to_overwrite(path, is_ours, "evaluate", flag)


def _is_table(path: Path) -> bool:
    """Whether the file holds the readings of an experiment."""
    try:
        return path.read_bytes().startswith(b"question,arm,")
    except OSError:
        return False


def _is_result(path: Path) -> bool:
    return holds(path, "verdict", "orders", "controls")


def _questions(source: str) -> tuple[list[Any], dict[int, str]]:
    """The questions of a file, and what to call each of them."""
    from lacuna.experiments.files import questions_of

    text, name = read_source(source)
    try:
        return questions_of(text, name, parse_json)
    except InvalidRequest as error:
        fail(error.detail, Status.USAGE)


def _refuse_file(profile: str | None) -> None:
    """`lacuna place` takes the file of a profile; here the service reads the profile itself."""
    if profile is None or re.fullmatch(r"[0-9a-f]{32}", profile):
        return
    if not Path(profile.removeprefix("@")).is_file():
        return  # the check of the request says what an id is
    fail(
        f"--profile: {profile} is a file; give the id of a profile that the service holds: `id` in "
        "that file, if it measured it. `lacuna profile` measures one and prints its id",
        Status.USAGE,
    )


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
    from lacuna.client.clients import Client
    from service.terminal.connection import submitted

    with submitted(built, Client.submit_experiment, server, key, wait=wait, as_json=as_json) as (
        client,
        answer,
    ):
        found = client.get_experiment(answer.id) if isinstance(answer, Job) else answer
        if found is not None and csv is not None:
            _check_file("--csv", csv, _is_table)
            write(csv, client.experiment_rows(found.id))
    return found


# What an experiment prints

_WORDS = {
    "given": "given",
    "relevance_first": "most relevant first",
    "relevance_last": "most relevant last",
    "zigzag_best_first": "zigzag, best first",
    "zigzag_best_last": "zigzag, best last",
    "document_order": "document order",
    "random_again": "random, another draw",
}
_SCORES = {
    "log_probability": "score: probability of the right answer",
    "contains": "score: share of replies that hold an accepted answer",
    "exact": "score: share of replies that are an accepted answer",
    "regex": "score: share of replies that match",
}


def experiment_report(console: Console, found: ExperimentResult) -> None:
    """Print what an experiment found."""
    console.print(_orders(found))
    for line in _sentences(found):
        console.print(line, soft_wrap=True)


def estimate_report(found: ExperimentEstimate) -> list[str]:
    """What an experiment will take, in lines."""
    lines = [
        f"{counted(found.questions, 'question')}, at most {found.prompts:,} prompts with about "
        f"{found.prompt_tokens:,} tokens"
    ]
    if found.generated_tokens:
        lines.append(f"at most {found.generated_tokens:,} tokens are written")
    if found.calls is not None:
        lines.append(f"at most {found.calls:,} calls of the endpoint")
    if found.multiply_adds is not None:
        lines.append(f"about {found.multiply_adds:.2g} multiply-adds")
    if found.cost is not None:
        lines.append(f"cost: at most {found.cost:.4g}, at the endpoint's prices")
    if found.minutes is not None:
        lines.append(f"about {_minutes(found.minutes)}")
    return [*lines, *(f"note: {clean(warning)}" for warning in found.warnings)]


def _minutes(minutes: float) -> str:
    return f"{minutes * 60:.0f} seconds" if minutes < 2 else f"{minutes:.0f} minutes"


def _orders(found: ExperimentResult) -> Table:
    title = f"{clean(found.model)}: {counted(found.questions, 'question')}"
    table = Table(
        title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False
    )
    table.add_column("order", no_wrap=True)
    for name in ("score", "difference", "95%, all orders", "p", "flips", "nats"):
        table.add_column(name, justify="right", no_wrap=True)
    for order in found.orders:
        table.add_row(*_cells(order, found))
    return table


def _cells(order: ExperimentOrder, found: ExperimentResult) -> list[str]:
    name = clean(_WORDS.get(order.name, order.name.replace("_", " ")))
    score = f"{order.mean:.3f}"
    if order.name == found.reference:
        return [name, score, "reference", "", "", "", ""]
    nats = order.log_difference
    joint = f"{order.joint_low:+z.3f} to {order.joint_high:+z.3f}"
    return [
        name,
        score,
        f"{order.difference.value:+z.3f}",
        joint,
        "<0.001" if order.p < 0.001 else f"{order.p:.3f}",
        f"{order.flips:.0%}",
        "" if nats is None else f"{nats.value:+z.2f}",
    ]


def _sentences(found: ExperimentResult) -> Iterator[str]:
    yield f"verdict: {clean(found.verdict.words)}"
    yield f"{_SCORES[found.scoring]}; difference: less the reference's on the same questions"
    effect = found.minimum_detectable_effect
    verdict = found.verdict
    hopeless = verdict.decision == "not_enough" and verdict.more_questions is None
    if effect is not None and not hopeless:
        yield (
            f"this experiment finds a difference of {effect:.3f} four times in five; "
            f"{found.smallest_effect:g} or more matters to you"
        )
    yield from _controls(found)
    if found.recall_by_place is not None:
        yield "score by the place of the chunk with the answer, first to last:"
        yield from _places(found.recall_by_place)
    if found.calibration is not None:
        yield "calibration of the scores: in the result (--output FILE), for `lacuna place`"
    elif found.calibration_note is not None:
        yield f"no calibration of the scores: {clean(found.calibration_note)}"
    usage = found.usage
    spent = f"read: {usage.prompts:,} prompts, {usage.prompt_tokens:,} tokens"
    yield spent if usage.cost is None else f"{spent}, cost {usage.cost:.4g}"
    if found.lost:
        yield f"left out: {counted(found.lost, 'question')} that not every order answered"
    for warning in found.warnings:
        yield f"note: {clean(warning)}"


def _controls(found: ExperimentResult) -> Iterator[str]:
    same, closed = found.controls.a_a, found.controls.closed_book
    if same is not None:
        gap = same.difference
        words = f"{gap.value:+z.3f} ({gap.low:+z.3f} to {gap.high:+z.3f})"
        said = "a difference where there is none: trust no verdict" if same.found else "as expected"
        yield f"control, the reference against itself: {words}, {said}"
    if closed is not None:
        yield f"control, without chunks: {closed:.3f}"


def _places(found: RecallByPlace) -> Iterator[str]:
    most = max(found.value) or 1.0
    rows = zip(found.depth, found.value, found.low, found.high, found.readings, strict=True)
    for depth, value, low, high, readings in rows:
        yield (
            f"  {depth:4.0%}  {value:.3f} ({low:.3f} to {high:.3f}) {bar(value / most, 16):16} "
            f"{readings:,} readings"
        )
