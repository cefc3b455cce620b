"""Profiles by name: a file on this machine, or an id that a service knows.

`lacuna profiles` and `lacuna show`: what is there already.

`lacuna compare`: two profiles beside each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from lacuna.contract.base import DIGEST_PATTERN
from lacuna.contract.profiles import Profile
from service.terminal.common import Status, fail
from service.terminal.inputs import read_file

if TYPE_CHECKING:
    from service.client import Client
from typing import Annotated, cast, get_args

import typer

from lacuna.contract.errors import LacunaError
from lacuna.contract.profiles import ProfilePage, ProfileSummary, Source
from service.terminal import reports as profile_report
from service.terminal.common import Json, Key, Server, err, out, print_json
from service.terminal.inputs import refuse
from service.terminal.reports import clean, comparison_report

Load = Callable[[str], Profile]


def is_id(name: str) -> bool:
    """Whether it names a profile of a service, and no file."""
    return re.fullmatch(DIGEST_PATTERN, name) is not None


def load_file(path: str) -> Profile:
    """A profile that `lacuna profile` or GET /v1/profiles/{id} wrote."""
    if re.fullmatch(r"[0-9a-fA-F]+", path) and not Path(path).exists():
        fail(f"{path:.80} is no file and no id: ids have 32 digits, 0-9 and a-f", Status.USAGE)
    try:
        return Profile.model_validate_json(read_file(path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        reason = f"{where}: {first['msg']}" if where else first["msg"]
        fail(f"{path} holds no profile: {reason}", Status.USAGE)


@contextmanager
def profile_loader(server: str | None, key: str | None) -> Iterator[Load]:
    """Loads profiles; the service is asked for, or started, at the first id."""
    with ExitStack() as exits:
        client: Client | None = None

        def load(name: str) -> Profile:
            nonlocal client
            if not is_id(name):
                return load_file(name)
            if client is None:
                # Slow to import, and not needed for files.
                from service.terminal.connection import connected

                client = exits.enter_context(connected(server, key)).client
            return client.read(Profile, f"/v1/profiles/{name}")

        yield load


_PAGE = 100


def profiles(
    model: Annotated[str | None, typer.Option(help="Only of this model.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="So many at most.")] = 20,
    as_json: Json = False,
    server: Server = None,
    key: Key = None,
) -> None:
    """List the profiles of the service, newest first."""
    from service.terminal.connection import connected

    items: list[ProfileSummary] = []
    query: dict[str, str | int] = {} if model is None else {"model": model}
    with connected(server, key) as connection:
        while True:
            query["limit"] = min(_PAGE, limit - len(items))
            page = connection.client.read(ProfilePage, "/v1/profiles", query)
            items += page.items
            if page.next is None or len(items) >= limit:
                break
            query["cursor"] = page.next
    if as_json:
        print_json(ProfilePage(items=items, next=page.next))
        return
    if items:
        profile_report.listing(out, items)
    else:
        named = "" if model is None else f" of {clean(model)}"
        err.print(f"no profile{named} yet: lacuna profile {clean(model or 'MODEL')}")
    if page.next is not None:
        err.print(f"there are more: --limit {10 * limit}")


def show(
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
        profile_report.profile_report(out, found)


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
    with profile_loader(server, key) as load:
        first, second = load(a), load(b)
    # numpy and scipy are slow to import
    from lacuna import views

    curve = cast(Source, source)
    try:
        curves = [views.curve(profile, curve) for profile in (first, second)]
        answer = views.compare(first, second, source=curve, bins=bins)
    except LacunaError as error:
        refuse(error, {"source": "--source"})
    if as_json:
        print_json(answer)
    else:
        comparison_report(out, answer, *curves)
