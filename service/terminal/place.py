"""`lacuna place`: the best order of chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, get_args

import typer

from lacuna.client.chunks import ParsedChunks, parse_chunks
from lacuna.client.offline import curve_of, place_along
from lacuna.contract.calibrations import RelevanceScale
from lacuna.contract.errors import InvalidRequest, LacunaError
from lacuna.contract.models import PositionalEncoding
from lacuna.contract.placements import (
    Objective,
    PlacementRequest,
    PlacementResponse,
    Source,
    Strategy,
)
from lacuna.contract.profiles import Profile
from service.terminal.common import Json, Key, Server, Status, emit, err, fail, out, print_json
from service.terminal.inputs import (
    Built,
    Option,
    build_request,
    count,
    numbers,
    parse_object,
    read_source,
    refuse,
    validated,
)
from service.terminal.placement_report import dropped_words, placement_report
from service.terminal.reports import clean
from service.terminal.stored import is_id, load_file

_SOURCES = f"Which curve of the profile: {', '.join(get_args(Source))}."
_OBJECTIVES = f"What to maximise: {', '.join(get_args(Objective))}."
_SCALES = f"What the relevances are: {', '.join(get_args(RelevanceScale))}. Default: score."
_STRATEGIES = f"Which order: {', '.join(get_args(Strategy))}. Default: advised."


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
    layers: Annotated[
        int | None,
        typer.Option(help="Theory alone, of an architecture with so many layers; or with --model."),
    ] = None,
    heads: Annotated[
        int | None, typer.Option(help="Heads of a layer; only ALiBi depends on them.")
    ] = None,
    positions: Annotated[
        str | None,
        typer.Option(help=f"Positional encoding: {', '.join(get_args(PositionalEncoding))}."),
    ] = None,
    window: Annotated[int | None, typer.Option(help="Tokens that attention reaches back.")] = None,
    allow_theory: Annotated[
        bool,
        typer.Option(
            "--allow-theory",
            help="With --model: without a profile, follow the theory of its architecture.",
        ),
    ] = False,
    source: Annotated[str | None, typer.Option(help=_SOURCES)] = None,
    objective: Annotated[str | None, typer.Option(help=_OBJECTIVES)] = None,
    prefix_tokens: Annotated[int | None, typer.Option(help="Tokens before the chunks.")] = None,
    suffix_tokens: Annotated[int | None, typer.Option(help="Tokens after them.")] = None,
    separator_tokens: Annotated[int | None, typer.Option(help="Tokens between two.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Bound of the whole prompt.")] = None,
    max_chunks: Annotated[
        str | None,
        typer.Option(metavar="INTEGER|auto", help="Keep at most this many chunks; auto decides."),
    ] = None,
    scale: Annotated[str | None, typer.Option(help=_SCALES)] = None,
    calibration: Annotated[
        str | None, typer.Option(metavar="FILE", help="What `lacuna calibrate` wrote.")
    ] = None,
    strategy: Annotated[str | None, typer.Option(help=_STRATEGIES)] = None,
    ids: Annotated[
        bool, typer.Option("--ids", "--quiet", "-q", help="Print ids alone, one a line.")
    ] = False,
    as_json: Json = False,
    server: Server = None,
    key: Key = None,
) -> None:
    """Print an order of CHUNKS in which the model listens to what matters.

    Another order than yours is advised only where its gain is certain; --strategy optimal prints
    the best order of the curve all the same.
    """
    if ids and as_json:
        fail("--ids and --json exclude each other", Status.USAGE)
    given = _parsed(chunks)
    saved = None if profile is None or is_id(profile) else load_file(profile)
    options = [
        Option("--profile", "profile_id", profile if saved is None else saved.id),
        Option("--model", "model", model),
        Option("--density", "density", numbers(density, "--density")),
        *_architecture(layers, heads, positions, window),
        Option("--allow-theory", "allow_theory", allow_theory or None),
        Option("--source", "source", source),
        Option("--objective", "objective", objective),
        Option("--prefix-tokens", "prefix_tokens", prefix_tokens),
        Option("--suffix-tokens", "suffix_tokens", suffix_tokens),
        Option("--separator-tokens", "separator_tokens", separator_tokens),
        Option("--max-tokens", "max_tokens", max_tokens),
        Option("--max-chunks", "max_chunks", None if max_chunks is None else count(max_chunks)),
        Option("--scale", "relevance_scale", scale),
        Option("--calibration", "calibration", parse_object(calibration) or None),
        Option("--strategy", "strategy", strategy),
    ]
    built = build_request(given.fields, options)
    if not {"profile_id", "model", "density", "architecture"} & set(built.body):
        fail("say whose curve to follow: --profile, --model, --density or --layers", Status.USAGE)
    request = validated(PlacementRequest, built, given.lines)
    if saved is None and (request.profile_id is not None or request.model is not None):
        answer = _asked(request, built.names, server, key)
    else:
        answer = _computed(request, saved, built)
    _show(answer, request, ids=ids, as_json=as_json)


def _architecture(
    layers: int | None, heads: int | None, positions: str | None, window: int | None
) -> list[Option]:
    """The fields of an architecture; without options those of a request stay as they are."""
    if layers is not None and heads is None:
        if positions == "alibi":
            fail("--positions alibi needs --heads: each head has its own slope", Status.USAGE)
        heads = 1
    return [
        Option("--layers", "architecture.layers", layers),
        Option("--heads", "architecture.heads", heads),
        Option("--positions", "architecture.positional_encoding", positions),
        Option("--window", "architecture.window", window),
    ]


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
            err.print(f"lacuna: dropped: {dropped_words(answer.dropped)}", soft_wrap=True)
        if answer.advice.decision == "undecided":
            err.print(f"lacuna: undecided: {clean(answer.advice.reason)}", soft_wrap=True)
        if answer.confidence.level == "low":
            reasons = clean("; ".join(answer.confidence.reasons))
            err.print(f"lacuna: confidence: low ({reasons})", soft_wrap=True)
        emit(answer.order)
    else:
        placement_report(out, answer, {chunk.id: chunk.relevance for chunk in request.chunks})
