"""`lacuna compare`: two profiles beside each other."""

from __future__ import annotations

from typing import Annotated, cast, get_args

import typer

from service.cli.options import Json, Key, Server
from service.cli.request import refuse
from service.cli.saved import profiles
from service.cli.terminal import out, print_json
from service.contract.errors import LacunaError
from service.contract.views import Source
from service.report.comparison import report

_SOURCES = f"Which curve: {', '.join(get_args(Source))}."


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A profile: its id, or its profile.json.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    source: Annotated[str, typer.Option(help=_SOURCES)] = "measured",
    bins: Annotated[
        int,
        typer.Option(min=1, max=1_000, help="Bins of the difference, and of unequal lengths."),
    ] = 100,
    as_json: Json = False,
    server: Server = None,
    key: Key = None,
) -> None:
    """Print how profile B differs from profile A. Two files need no service."""
    with profiles(server, key) as load:
        first, second = load(a), load(b)
    # numpy and scipy are slow to import
    from service.usecases import comparisons, views  # noqa: PLC0415

    curve = cast(Source, source)
    try:
        curves = [views.curve(profile, curve) for profile in (first, second)]
        answer = comparisons.compare(first, second, source=curve, bins=bins)
    except LacunaError as error:
        refuse(error, {"source": "--source"})
    if as_json:
        print_json(answer)
    else:
        report(out, answer, *curves)
