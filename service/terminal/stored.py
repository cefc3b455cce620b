"""`lacuna profiles`, `show` and `compare`: profiles that are there, by file or by id."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer
from rich.console import Console
from rich.table import Table

from lacuna.client.errors import LacunaError, Refused
from lacuna.client.offline import parse_profile
from lacuna.contract.base import DIGEST_PATTERN
from lacuna.contract.comparisons import (
    ComparedCurve,
    ComparedProfile,
    Comparison,
    RecallChange,
)
from lacuna.contract.models import ModelCatalogue
from lacuna.contract.profiles import Interval, Profile, Source
from lacuna.pictures.terminal import side_by_side
from service.terminal.common import Json, Key, Server, Status, err, fail, out, print_json
from service.terminal.inputs import read_file, refuse
from service.terminal.reports import (
    clean,
    counted,
    number,
    profile_list,
    profile_report,
    zone_span,
)

if TYPE_CHECKING:
    from lacuna.client.clients import Client

Load = Callable[[str], Profile]


def is_id(name: str) -> bool:
    """Whether a name is the id of a profile or job of a service, and not a file."""
    return re.fullmatch(DIGEST_PATTERN, name) is not None


def load_file(path: str) -> Profile:
    """A profile that `lacuna profile` or GET /v1/profiles/{id} wrote."""
    if re.fullmatch(r"[0-9a-fA-F]+", path) and not Path(path).exists():
        fail(
            f"{path:.80} is neither a file nor an id: ids have 32 digits, 0-9 and a-f",
            Status.USAGE,
        )
    try:
        return parse_profile(read_file(path), path)
    except Refused as error:
        fail(error.detail, Status.USAGE)


@contextmanager
def profile_loader(server: str | None, key: str | None) -> Iterator[Load]:
    """Loads profiles by name. The service is asked, or started, at the first id."""
    with ExitStack() as exits:
        client: Client | None = None

        def load(name: str) -> Profile:
            nonlocal client
            if not is_id(name):
                return load_file(name)
            if client is None:
                # Slow to import, and not needed for files.
                from service.terminal.connection import connected

                client = exits.enter_context(connected(server, key))
            return client.get_profile(name)

        yield load


def list_profiles(
    model: Annotated[str | None, typer.Option(help="Only of this model.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 20,
    as_json: Json = False,
    server: Server = None,
    key: Key = None,
) -> None:
    """List the profiles of the service, newest first."""
    from service.terminal.connection import connected

    with connected(server, key) as client:
        page = client.profiles(model, limit=limit)
    if as_json:
        print_json(page)
        return
    if page.items:
        profile_list(out, page.items)
    else:
        named = "" if model is None else f" of {clean(model)}"
        err.print(f"no profile{named} yet: lacuna profile {clean(model or 'MODEL')}")
    if page.next is not None:
        err.print(f"there are more: --limit {10 * limit}")


def list_models(as_json: Json = False, server: Server = None, key: Key = None) -> None:
    """List the models that can be measured, and what each worker holds in memory.

    Besides these, any model of the hub can be named.
    """
    from service.terminal.connection import connected

    with connected(server, key) as client:
        found = client.models()
    if as_json:
        print_json(found)
    else:
        model_list(out, found)


def show_profile(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="Its id, or its profile.json.")],
    as_json: Json = False,
    server: Server = None,
    key: Key = None,
) -> None:
    """Print the report of a profile that was made before. A file needs no service."""
    with profile_loader(server, key) as load:
        found = load(profile)
    if as_json:
        print_json(found)
    else:
        profile_report(out, found)


def model_list(console: Console, found: ModelCatalogue) -> None:
    """Print the models by how they are named, and a line for each worker."""
    local = sorted({name for worker in found.workers for name in worker.local})
    for title, names in (
        ("with the service", found.demo),
        ("in the operator's model folder", [f"local:{name}" for name in local]),
        ("behind an API", [one.name for one in found.endpoints]),
        ("architectures, for --weights random", found.presets),
    ):
        if names:
            console.print(f"{title}:")
            for name in names:
                console.print(f"  {clean(name)}", soft_wrap=True)
    console.print("from the hub: any causal language model with safetensors, by its id")
    for worker in found.workers:
        warm = ", ".join(map(clean, worker.warm)) or "no model in memory"
        console.print(
            f"worker {clean(worker.worker)} ({worker.device}, queue {worker.queue}): {warm}",
            soft_wrap=True,
        )
    if not found.workers:
        console.print("no worker is running: a measurement waits until one does")


_SOURCES = f"Which curve: {', '.join(get_args(Source))}, recall (else measured, if both have it)."


def compare_profiles(
    a: Annotated[str, typer.Argument(metavar="A", help="A profile: its id, or its profile.json.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    source: Annotated[str | None, typer.Option(help=_SOURCES)] = None,
    bins: Annotated[
        int,
        typer.Option(min=1, max=1_000, help="Bins of the difference, and of unequal lengths."),
    ] = 100,
    as_json: Json = False,
    server: Server = None,
    key: Key = None,
) -> None:
    """Print how profile B differs from profile A. Two files need no service."""
    with profile_loader(server, key) as load:
        first, second = load(a), load(b)
    # numpy and scipy are slow to import
    from lacuna import comparisons, views

    try:
        asked = cast(ComparedCurve | None, source)
        answer = comparisons.compare(first, second, source=asked, bins=bins)
        curves = []
        if answer.source != "recall":
            curves = [views.curve(profile, answer.source) for profile in (first, second)]
    except LacunaError as error:
        refuse(error, {"source": "--source"})
    if as_json:
        print_json(answer)
    else:
        comparison_report(out, answer, curves)


def comparison_report(
    console: Console, answer: Comparison, curves: Sequence[Sequence[float]]
) -> None:
    """Print a comparison and the two curves.

    Args:
        curves: of both, masses that sum to 1, of any length; none for recall.
    """
    for name, side in (("A", answer.a), ("B", answer.b)):
        facts = f"{clean(side.model)}, {side.weights}, {counted(side.sequence_length, 'token')}"
        console.print(f"{name}: {side.id}, {facts}", soft_wrap=True)
    console.print(f"B against A: {clean(answer.summary)}", soft_wrap=True)
    console.print(_table(answer))
    if answer.verdict == "difference" and answer.source == "measured":
        console.print(_tenths(answer))
    for one in answer.recall:
        console.print(_depths(one))
    console.print(_distance(answer), soft_wrap=True)
    for warning in answer.warnings:
        console.print(f"note: {clean(warning)}", soft_wrap=True)
    tokens = max(answer.a.sequence_length, answer.b.sequence_length)
    if curves:
        shown = dict(zip(("A", "B"), curves, strict=True))
        console.print(side_by_side(shown, tokens, min(console.width, 100)))


def _table(answer: Comparison) -> Table:
    a, b, moved = answer.a, answer.b, answer.dead_zone_change
    table = Table(title=f"{answer.source}, B against A")
    table.add_column("")
    for name in ("A", "B", "change"):
        table.add_column(name, justify="right")
    table.add_row("shape", _shape(a), _shape(b), "")
    table.add_row(
        "primacy mass", number(a.primacy_mass), number(b.primacy_mass),
        _change(answer.primacy_change, answer.primacy_change_band),
    )  # fmt: skip
    table.add_row(
        "recency mass", number(a.recency_mass), number(b.recency_mass),
        _change(answer.recency_change, answer.recency_change_band),
    )  # fmt: skip
    share = "" if moved is None else f"{100 * moved.fraction:+.1f} points"
    zones = [zone_span(side.dead_zone, side.dead_zone_verdict) for side in (a, b)]
    table.add_row("dead zone", *zones, share)
    inside = ["-" if z is None else number(z.mean_density) for z in (a.dead_zone, b.dead_zone)]
    change = "" if moved is None else f"{moved.mean_density:+.4f}"
    table.add_row("mean density inside", *inside, change)
    return table


def _tenths(answer: Comparison) -> Table:
    """Every tenth of the prompt, where a difference was found."""
    table = Table(title="mass on each tenth of the prompt")
    table.add_column("from")
    for name in ("change", "p"):
        table.add_column(name, justify="right")
    for one in answer.masses:
        band = None
        if one.low is not None and one.high is not None:
            band = Interval(low=one.low, high=one.high)
        p = "" if one.p is None else number(one.p)
        table.add_row(f"{one.start:.0%}", _change(one.value, band), p)
    return table


def _depths(found: RecallChange) -> Table:
    """The change of recall at every depth, and of its mean."""
    table = Table(title=f"recall of {clean(found.probe)}, {found.groups} groups")
    table.add_column("depth")
    for name in ("change", "p"):
        table.add_column(name, justify="right")
    for where, one in [*((f"{d.depth:.0%}", d) for d in found.depths), ("all", found.level)]:
        band = None
        if one.low is not None and one.high is not None:
            band = Interval(low=one.low, high=one.high)
        table.add_row(where, _change(one.value, band), "" if one.p is None else number(one.p))
    return table


def _change(value: float, band: Interval | None) -> str:
    if band is None:
        return f"{value:+.4f}"
    return f"{value:+.4f} ({band.low:+.4f} to {band.high:+.4f})"


def _shape(side: ComparedProfile) -> str:
    return side.shape if side.shape_decided else f"undecided ({side.shape})"


def _distance(answer: Comparison) -> str:
    rank = "" if answer.spearman is None else f", Spearman {answer.spearman:.3f}"
    return f"distance: {answer.wasserstein:.4f} (Wasserstein){rank}"
