"""`lacuna place`: the best order of chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, get_args

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from lacuna.client.chunks import ParsedChunks, parse_chunks
from lacuna.client.offline import curve_of, place_along
from lacuna.contract.errors import InvalidRequest, LacunaError
from lacuna.contract.placements import (
    Gain,
    Objective,
    Placed,
    PlacementRequest,
    PlacementResponse,
    Source,
)
from lacuna.contract.profiles import Profile
from service.terminal.common import Json, Key, Server, Status, emit, err, fail, out, print_json
from service.terminal.inputs import (
    Built,
    Option,
    build_request,
    numbers,
    read_source,
    refuse,
    validated,
)
from service.terminal.reports import bar, clean, listed, number, zone_span
from service.terminal.stored import is_id, load_file

_SOURCES = f"Which curve of the profile: {', '.join(get_args(Source))}."
_OBJECTIVES = f"What to maximise: {', '.join(get_args(Objective))}."


def place_chunks(
    chunks: Annotated[
        str,
        typer.Argument(
            metavar="CHUNKS",
            help="A file, `-` for stdin, or JSON: lines `id, tokens, relevance`, a list of chunks, "
            "or a whole request.",
        ),
    ],
    profile: Annotated[
        str | None, typer.Option(help="Id of a profile, or its profile.json: needs no service.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Take the profile of the model that suits the prompt best.")
    ] = None,
    density: Annotated[
        str | None, typer.Option(help="A curve of your own, as 1.4,0.9,0.5: needs no service.")
    ] = None,
    source: Annotated[str | None, typer.Option(help=_SOURCES)] = None,
    objective: Annotated[str | None, typer.Option(help=_OBJECTIVES)] = None,
    prefix_tokens: Annotated[int | None, typer.Option(help="Tokens before the chunks.")] = None,
    suffix_tokens: Annotated[int | None, typer.Option(help="Tokens after them.")] = None,
    separator_tokens: Annotated[int | None, typer.Option(help="Tokens between two.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Bound of the whole prompt.")] = None,
    max_chunks: Annotated[int | None, typer.Option(help="Keep so many chunks at most.")] = None,
    lower_is_better: Annotated[
        bool, typer.Option("--lower-is-better", help="The relevances are distances.")
    ] = False,
    ids: Annotated[
        bool, typer.Option("--ids", "--quiet", "-q", help="Print ids alone, one a line.")
    ] = False,
    as_json: Json = False,
    server: Server = None,
    key: Key = None,
) -> None:
    """Print the order of CHUNKS in which the model listens most to what matters."""
    if ids and as_json:
        fail("--ids and --json exclude each other", Status.USAGE)
    given = _parsed(chunks)
    saved = None if profile is None or is_id(profile) else load_file(profile)
    options = [
        Option("--profile", "profile_id", profile if saved is None else saved.id),
        Option("--model", "model", model),
        Option("--density", "density", numbers(density, "--density")),
        Option("--source", "source", source),
        Option("--objective", "objective", objective),
        Option("--prefix-tokens", "prefix_tokens", prefix_tokens),
        Option("--suffix-tokens", "suffix_tokens", suffix_tokens),
        Option("--separator-tokens", "separator_tokens", separator_tokens),
        Option("--max-tokens", "max_tokens", max_tokens),
        Option("--max-chunks", "max_chunks", max_chunks),
        Option("--lower-is-better", "higher_is_better", False if lower_is_better else None),
    ]
    built = build_request(given.fields, options)
    if not {"profile_id", "model", "density", "architecture"} & set(built.body):
        fail("say whose curve to follow: --profile, --model or --density", Status.USAGE)
    request = validated(PlacementRequest, built, given.lines)
    if saved is None and (request.profile_id is not None or request.model is not None):
        answer = _asked(request, built.names, server, key)
    else:
        answer = _computed(request, saved, built)
    _show(answer, request, ids=ids, as_json=as_json)


def _parsed(source: str) -> ParsedChunks:
    try:
        return parse_chunks(*read_source(source))
    except InvalidRequest as error:
        fail(error.detail, Status.USAGE)


def _asked(
    request: PlacementRequest, names: Mapping[str, str], server: str | None, key: str | None
) -> PlacementResponse:
    """The answer of a service, which knows profiles and tokenizers."""
    from service.terminal.connection import connected

    body = request.model_dump(mode="json", exclude_defaults=True, exclude={"chunks"})
    with connected(server, key, names=names) as client:
        return client.place(request.chunks, **body)


def _computed(request: PlacementRequest, saved: Profile | None, built: Built) -> PlacementResponse:
    """The same answer without a service: the curve is at hand."""
    try:
        return place_along(request, curve_of(request, saved))
    except LacunaError as error:
        refuse(error, built.names)


def _show(
    answer: PlacementResponse, request: PlacementRequest, *, ids: bool, as_json: bool
) -> None:
    if as_json:
        print_json(answer)
    elif ids:
        broken = next((name for name in answer.order if len(name.splitlines()) != 1), None)
        if broken is not None:
            fail(f"--ids: {broken!r:.80} has more than one line; use --json", Status.REFUSED)
        if answer.dropped:
            err.print(f"lacuna: did not fit: {listed(answer.dropped)}", soft_wrap=True)
        if answer.confidence.level == "low":
            reasons = clean("; ".join(answer.confidence.reasons))
            err.print(f"lacuna: confidence: low ({reasons})", soft_wrap=True)
        emit(answer.order)
    else:
        placement_report(out, answer, {chunk.id: chunk.relevance for chunk in request.chunks})


_ROWS = 100
"""From each end: both matter, and drawing thousands takes longer than placing them."""


def placement_report(
    console: Console, answer: PlacementResponse, relevance: Mapping[str, float]
) -> None:
    """Print a placement.

    Args:
        relevance: of every chunk, as it was given.
    """
    console.print(_order(answer, relevance))
    for line in _sentences(answer):
        console.print(line, soft_wrap=True)


def _order(answer: PlacementResponse, relevance: Mapping[str, float]) -> Table:
    table = Table(title="best order (visibility 1 is an even share)", box=SIMPLE_HEAD)
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("chunk", overflow="fold")
    for name in ("offset", "tokens", "relevance"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("visibility", no_wrap=True)
    table.add_column("", no_wrap=True)
    most = max((one.visibility for one in answer.placements), default=0.0) or 1.0
    rows = list(enumerate(answer.placements, 1))
    left_out = len(rows) - 2 * _ROWS
    for place, one in rows[:_ROWS] if left_out > 0 else rows:
        table.add_row(str(place), *_cells(one, relevance[one.id], most))
    if left_out > 0:
        table.add_row("…", f"{left_out:,} more: --ids or --json")
        for place, one in rows[-_ROWS:]:
            table.add_row(str(place), *_cells(one, relevance[one.id], most))
    return table


def _cells(one: Placed, relevance: float, most: float) -> list[str]:
    return [
        clean(one.id),
        str(one.offset),
        str(one.tokens),
        number(relevance),
        f"{one.visibility:5.2f} {bar(one.visibility / most)}",
        "dead zone" if one.in_dead_zone else "",
    ]


def _sentences(answer: PlacementResponse) -> list[str]:
    confidence = answer.confidence
    reasons = "; ".join(clean(reason) for reason in confidence.reasons) or confidence.basis
    known = answer.method != "exact" and answer.gap is not None
    at_most = f", at most {answer.gap:.2%} below the best" if known else ""
    lines = [
        f"value: {number(answer.value)} ({answer.method}{at_most}){_gains(answer.gain)}",
        f"prompt: {answer.prompt_tokens} tokens; dead zone: {zone_span(answer.dead_zone)}",
        f"curve: {_curve(answer)}",
        f"confidence: {confidence.level} ({reasons})",
    ]
    if answer.relevance != "as_given":
        lines.append(f"relevance: {answer.relevance}, so that the worst counts 0")
    if answer.dropped:
        lines.append(f"did not fit: {listed(answer.dropped)}")
    lines += [f"suggestion: {clean(one.detail)}" for one in answer.suggestions]
    return lines + [f"note: {clean(warning)}" for warning in answer.warnings]


def _curve(answer: PlacementResponse) -> str:
    if answer.profile_id is None:
        return answer.source
    return (
        f"{answer.source}, profile {answer.profile_id} of {answer.confidence.profile_tokens} tokens"
    )


def _gains(gain: Gain) -> str:
    named = {
        "the given order": gain.given,
        "most relevant first": gain.relevance_first,
        "zigzag": gain.zigzag,
    }
    known = [f"{value:+.1%} over {name}" for name, value in named.items() if value is not None]
    return f"; {', '.join(known)}" if known else ""
