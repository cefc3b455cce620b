"""`lacuna place`: the best order of chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, get_args

import typer

from lacuna.contract.errors import InvalidRequest, LacunaError
from lacuna.contract.placements import Objective, PlacementRequest, PlacementResponse, Source
from lacuna.contract.profiles import Profile
from service.terminal import chunks as reading
from service.terminal.common import Json, Key, Server, Status, emit, err, fail, out, print_json
from service.terminal.inputs import Built, Option, build, checked, numbers, read, refuse
from service.terminal.reports import clean, listed, placement_report
from service.terminal.stored import is_id, load_file

_SOURCES = f"Which curve of the profile: {', '.join(get_args(Source))}."
_OBJECTIVES = f"What to maximise: {', '.join(get_args(Objective))}."


def place(
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
    given = reading.parse(*read(chunks))
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
    built = build(given.fields, options)
    if not {"profile_id", "model", "density", "architecture"} & set(built.body):
        fail("say whose curve to follow: --profile, --model or --density", Status.USAGE)
    request = checked(PlacementRequest, built, given.lines)
    if saved is None and (request.profile_id is not None or request.model is not None):
        answer = _asked(request, built.names, server, key)
    else:
        answer = _computed(request, saved, built)
    _show(answer, request, ids=ids, as_json=as_json)


def _asked(
    request: PlacementRequest, names: Mapping[str, str], server: str | None, key: str | None
) -> PlacementResponse:
    """The answer of a service, which knows profiles and tokenizers."""
    from service.terminal.connection import connected

    body = request.model_dump(mode="json", exclude_defaults=True)
    body.setdefault("chunks", [])
    with connected(server, key, names=names) as connection:
        return connection.client.post(PlacementResponse, "/v1/placements", body)


def _computed(request: PlacementRequest, saved: Profile | None, built: Built) -> PlacementResponse:
    """The same answer without a service: the curve is at hand."""
    from lacuna.placement import curve as curves
    from lacuna.placement.answer import place as put

    try:
        if any(chunk.tokens is None for chunk in request.chunks):
            raise InvalidRequest(
                "`text` needs a tokenizer, and a file has none: give `tokens`, or the profile's id",
                field="chunks.text",
            )
        if saved is not None:
            curve = curves.of_body(saved, request.source)
        elif request.density is not None:
            curve = curves.of_density(request.density)
        else:
            assert request.architecture is not None
            curve = curves.of_architecture(request.architecture)
        return put(request, curve)
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
            fail(f"--ids: {broken!r:.80} is more than a line; take --json", Status.REFUSED)
        if answer.dropped:
            err.print(f"lacuna: did not fit: {listed(answer.dropped)}", soft_wrap=True)
        if answer.confidence.level == "low":
            reasons = clean("; ".join(answer.confidence.reasons))
            err.print(f"lacuna: confidence: low ({reasons})", soft_wrap=True)
        emit(answer.order)
    else:
        placement_report(out, answer, {chunk.id: chunk.relevance for chunk in request.chunks})
