"""`lacuna place`: the best order of chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, get_args

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from lacuna.client.chunks import ParsedChunks, parse_chunks
from lacuna.client.offline import curve_of, place_along
from lacuna.contract.base import percent
from lacuna.contract.calibrations import RelevanceScale
from lacuna.contract.errors import InvalidRequest, LacunaError
from lacuna.contract.models import PositionalEncoding
from lacuna.contract.placements import (
    Dropped,
    GainOver,
    Objective,
    Placed,
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
from service.terminal.reports import bar, clean, listed, number, zone_span
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
        typer.Option(help="Layers of an architecture: theory alone. Or with --model."),
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


# What a placement prints

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
    title = f"{answer.strategy.replace('_', ' ')} order (visibility 1 is an even share)"
    table = Table(title=title, box=SIMPLE_HEAD)
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
    # Only the optimum claims to be near the best.
    method = f" ({answer.method}{at_most})" if answer.strategy == "optimal" else ""
    advice = answer.advice
    lines = [
        f"advice: {advice.decision.replace('_', ' ')}: {clean(advice.reason)}",
        *_gains(answer),
        f"value: {number(answer.value)}{method}",
        f"prompt: {answer.prompt_tokens} tokens{_around(answer)}",
        f"dead zone: {zone_span(answer.dead_zone)}",
        f"curve: {_curve(answer)}",
        f"confidence: {confidence.level} ({reasons})",
    ]
    lines.append(f"relevance: {_relevance(answer)}")
    if answer.dropped:
        lines.append(f"dropped: {dropped_words(answer.dropped)}")
    lines += [f"note: {clean(note)}" for note in answer.relevance.notes]
    lines += [f"suggestion: {clean(one.detail)}" for one in answer.suggestions]
    return lines + [f"note: {clean(warning)}" for warning in answer.warnings]


def _around(answer: PlacementResponse) -> str:
    """What stands before and after the chunks, which holds the best places on many models."""
    if not answer.placements:
        return ""
    first, last = answer.placements[0], answer.placements[-1]
    before, after = first.offset, answer.prompt_tokens - last.offset - last.tokens
    if before == after == 0:
        return ", nothing but chunks (--prefix-tokens, --suffix-tokens)"
    return f", {before} before the chunks and {after} after them"


def _curve(answer: PlacementResponse) -> str:
    if answer.profile_id is None:
        return answer.source
    return (
        f"{answer.source}, profile {answer.profile_id} of {answer.confidence.profile_tokens} tokens"
    )


_RULES = {
    "given": "your order",
    "relevance_first": "most relevant first",
    "relevance_last": "most relevant last",
    "zigzag_best_first": "zigzag, best first",
    "zigzag_best_last": "zigzag, best last",
    "document_order": "document order",
}
_WEIGHTS = {
    "probability": "probabilities as given",
    "logit": "logits, turned into probabilities",
    "hit_curve": "by rank: how often the chunk of each rank holds the answer",
    "calibration": "calibrated probabilities",
}


def _gains(answer: PlacementResponse) -> list[str]:
    """What the judged order gains over each rule, with intervals."""
    known = [
        (words, found)
        for name, words in _RULES.items()
        if (found := getattr(answer.gain, name)) is not None
    ]
    if not known:
        return []
    name = answer.advice.name.replace("_", " ")
    judged = "this order" if answer.advice.order is None else f"another order ({name})"
    width = max(len(words) for words, _ in known)
    rows = [f"  over {words:<{width}}  {gain_words(found)}" for words, found in known]
    return [f"gain of {judged} in the visibility of relevant text:", *rows]


def gain_words(found: GainOver) -> str:
    """A gain with its interval: "+3.2% [+1.0%, +5.1%]"."""
    if found.low is None or found.high is None or found.low == found.high:
        return percent(found.value)
    return f"{percent(found.value)} [{percent(found.low)}, {percent(found.high)}]"


def _relevance(answer: PlacementResponse) -> str:
    found = answer.relevance
    length = "lengths may decide" if found.by_length else "lengths do not decide"
    return f"{_WEIGHTS.get(found.basis, found.basis)}; {length}"


def dropped_words(dropped: Sequence[Dropped]) -> str:
    """Ids by reason: "d, e (the prompt may have 80 tokens)"."""
    reasons: dict[str, list[str]] = {}
    for one in dropped:
        reasons.setdefault(one.detail, []).append(one.id)
    return "; ".join(f"{listed(names)} ({clean(why)})" for why, names in reasons.items())
