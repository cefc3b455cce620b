"""`lacuna profile`: measure a model, and write its profile and picture."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, NamedTuple, get_args

import typer
from pydantic import BaseModel

from lacuna.contract.errors import LacunaError as RequestRefused
from lacuna.contract.jobs import Job
from lacuna.contract.profile_requests import (
    COSTLY_PREDICTION,
    PREDICTION_NAMES,
    Documents,
    Objective,
    ProfileRequest,
)
from lacuna.contract.profiles import Profile
from lacuna.contract.recall import Probe
from service.answers.endpoints import estimated
from service.terminal.common import (
    Json,
    Key,
    Request,
    Server,
    Status,
    configured,
    emit,
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
    count,
    names,
    parse_object,
    parse_texts,
    refuse,
    validated,
)
from service.terminal.reports import estimate_table, profile_report


def _choices(model: type[BaseModel], name: str) -> str:
    return ", ".join(get_args(model.model_fields[name].annotation))


_LENGTH = ProfileRequest.model_fields["sequence_length"].default
Length = Annotated[int | None, typer.Option(help=f"Tokens per document (else {_LENGTH}).")]
Count = Annotated[
    object,
    typer.Option(
        parser=count,
        metavar="INTEGER|auto",
        help="Number of documents; auto, the default, reads until the curve is known.",
    ),
]
DocumentSource = Annotated[
    str | None, typer.Option(help=f"What the model reads: {_choices(Documents, 'source')}.")
]
Corpus = Annotated[
    str | None, typer.Option(help="Folder below LACUNA_CORPUS_DIR; implies --source corpus.")
]
Texts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="Texts of your own, which the service keeps only for the measurement: a text file, a "
        "JSON list, or JSON lines; may be given several times. Implies --source inline.",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(help=f"{_choices(ProfileRequest, 'weights')} (the papers' step 0)."),
]
Differentiated = Annotated[
    str | None, typer.Option(help=f"What is differentiated: {', '.join(get_args(Objective))}.")
]
Target = Annotated[
    str | None, typer.Option(help="Continuation; implies --objective target_logprob.")
]
Predictions = Annotated[
    str | None,
    typer.Option(help=f"Some of {', '.join(PREDICTION_NAMES)} (else all but {COSTLY_PREDICTION})."),
]
Recall = Annotated[
    bool,
    typer.Option("--recall", help="Measure recall by depth as well (takes several times as long)."),
]
Probes = Annotated[
    str | None,
    typer.Option(
        "--probes",
        "--probe",
        help=f"What is recalled, some of {', '.join(get_args(Probe))}; implies --recall.",
    ),
]
Groups = Annotated[
    object,
    typer.Option(
        parser=count,
        metavar="INTEGER|auto",
        help="Groups of facts to recall; implies --recall.",
    ),
]
Dtype = Annotated[str | None, typer.Option(help=f"{_choices(ProfileRequest, 'dtype')}.")]
Positions = Annotated[
    str | None,
    typer.Option(help=f"{_choices(ProfileRequest, 'positional_encoding')} (an ablation)."),
]
Priority = Annotated[str | None, typer.Option(help=f"{_choices(ProfileRequest, 'priority')}.")]
Folder = Annotated[
    Path | None, typer.Option(help="Folder for profile.json and profile.svg (else here).")
]
Output = Annotated[
    Path | None,
    typer.Option(help="File for the JSON; the picture goes next to it, with the ending .svg."),
]
Wait = Annotated[bool, typer.Option(help="Wait for the profile, or print the job and stop.")]


_TITLES = (b"Influence profile of", b"Recall by depth of")
"""Of our pictures."""
MaxCalls = Annotated[int | None, typer.Option(help="Most calls of an endpoint.")]
MaxTokens = Annotated[int | None, typer.Option(help="Most tokens of an endpoint, in and out.")]
MaxCost = Annotated[
    float | None, typer.Option(help="Most money for an endpoint, in its prices' currency.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what an endpoint would take, and measure nothing.")
]


class Files(NamedTuple):
    """Where a profile goes."""

    profile: Path
    picture: Path


def measure_profile(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Hub id, demo:NAME, local:NAME, preset:NAME or endpoint:NAME.",
        ),
    ],
    length: Length = None,
    documents: Count = None,
    source: DocumentSource = None,
    corpus: Corpus = None,
    texts: Texts = None,
    weights: Weights = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.")] = None,
    objective: Differentiated = None,
    target: Target = None,
    predictions: Predictions = None,
    recall: Recall = False,
    probes: Probes = None,
    groups: Groups = None,
    max_calls: MaxCalls = None,
    max_tokens: MaxTokens = None,
    max_cost: MaxCost = None,
    dry_run: DryRun = False,
    dtype: Dtype = None,
    positional_encoding: Positions = None,
    priority: Priority = None,
    request: Request = None,
    folder: Folder = None,
    output: Output = None,
    wait: Wait = True,
    as_json: Json = False,
    server: Server = None,
    key: Key = None,
) -> None:
    """Measure the influence profile of MODEL and compare it with theory."""
    fields = parse_object(request)
    with_recall = recall or probes is not None or groups is not None
    recalled = fields.get("recall") or ({} if with_recall else None)
    options = [
        Option("MODEL", "model", model),
        Option("--length", "sequence_length", length),
        Option("--documents", "documents.count", documents),
        Option("--source", "documents.source", source or _implied(corpus, texts)),
        Option("--texts", "documents.texts", parse_texts(texts)),
        Option("--corpus", "documents.name", corpus),
        Option("--weights", "weights", weights),
        Option("--revision", "revision", revision),
        Option("--seed", "seed", seed),
        Option("--objective", "objective", objective or (target and "target_logprob")),
        Option("--target", "target", target),
        Option("--predictions", "predictions", names(predictions)),
        Option("--recall", "recall", recalled),
        Option("--probes", "recall.probes", names(probes)),
        Option("--groups", "recall.groups", groups),
        Option("--max-calls", "budget.max_calls", max_calls),
        Option("--max-tokens", "budget.max_tokens", max_tokens),
        Option("--max-cost", "budget.max_cost", max_cost),
        Option("--dtype", "dtype", dtype),
        Option("--positional-encoding", "positional_encoding", positional_encoding),
        Option("--priority", "priority", priority),
    ]
    built = build_request(fields, options)
    asked = validated(ProfileRequest, built)
    if dry_run:
        _estimated(asked, built, server, key, as_json=as_json)
        return
    if server is None and not wait:
        fail("--no-wait needs --server: a service started here ends with the command", Status.USAGE)
    files = _files(folder, output)
    document = _measured(built, files, server, key, wait=wait, as_json=as_json)
    if document is None:
        return
    if as_json:
        emit([document.decode()])
    else:
        profile_report(out, Profile.of_answer(document))
        out.print(f"wrote {files.profile} and {files.picture}", soft_wrap=True)


def _implied(corpus: str | None, texts: list[str] | None) -> str | None:
    if texts:
        return "inline"
    return "corpus" if corpus is not None else None


def _estimated(
    asked: ProfileRequest, built: Built, server: str | None, key: str | None, *, as_json: bool
) -> None:
    """Print what an endpoint would take. Without a server the settings here answer."""
    if not asked.of_endpoint:
        fail("--dry-run estimates endpoint:NAME alone", Status.USAGE)
    if server is None:
        try:
            found = estimated(asked, configured().endpoint_table)
        except RequestRefused as error:
            refuse(error, built.names)
    else:
        from service.terminal.connection import connected

        with connected(server, key, names=built.names) as client:
            found = client.estimate(**built.body)
    if as_json:
        print_json(found)
    else:
        out.print(estimate_table(found))
        if found.refused is not None:
            out.print(f"the limits do not allow it: {found.refused}", soft_wrap=True)


def _measured(
    built: Built, files: Files, server: str | None, key: str | None, *, wait: bool, as_json: bool
) -> bytes | None:
    """The profile as it was written, or None if only its job is known."""
    from lacuna.client.clients import Client
    from service.terminal.connection import submitted

    with submitted(built, Client.submit, server, key, wait=wait, as_json=as_json) as (
        client,
        found,
    ):
        if found is None:
            return None
        profile_id = (found.profile_id or "") if isinstance(found, Job) else found.id
        document, picture = client.export(profile_id, "json"), client.export(profile_id, "svg")
    _check_ours(files)  # minutes may have passed
    write(files.profile, document)
    write(files.picture, picture)
    return document


def _files(folder: Path | None, output: Path | None) -> Files:
    """Where to write. Faults are found before minutes are spent on measuring."""
    if folder is not None and output is not None:
        fail("--folder and --output exclude each other", Status.USAGE)
    path = output if output is not None else (folder or Path()) / "profile.json"
    if path.is_dir():
        fail(f"cannot write {path}: it is a folder", Status.USAGE)
    files = Files(path, path.with_suffix(".svg"))
    if path == files.picture:
        fail(
            "--output: the picture goes next to the JSON, with the ending .svg: name it .json",
            Status.USAGE,
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"cannot make the folder {path.parent}: {error.strerror}", Status.USAGE)
    for path in files:
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            fail(f"cannot write {path}", Status.USAGE)
    _check_ours(files)
    return files


def _check_ours(files: Files) -> None:
    refuse_to_overwrite(files.profile, _is_profile, "profile")
    refuse_to_overwrite(files.picture, _is_picture, "profile")


def _is_profile(path: Path) -> bool:
    return holds(path, "id", "model", "measured")


def _is_picture(path: Path) -> bool:
    """Whether the file holds the picture of a profile."""
    try:
        with path.open("rb") as file:
            head = file.read(1_000)
            return any(title in head for title in _TITLES)
    except OSError:
        return False
