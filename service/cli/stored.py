"""`lacuna profiles` and `lacuna show`: what is there already."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.options import Json, Key, Server
from service.cli.saved import profiles as profiles_of
from service.cli.terminal import err, out, print_json
from service.contract.profiles import ProfilePage, ProfileSummary
from service.report import profile as profile_report
from service.report.text import clean

_PAGE = 100


def profiles(
    model: Annotated[str | None, typer.Option(help="Only of this model.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="So many at most.")] = 20,
    as_json: Json = False,
    server: Server = None,
    key: Key = None,
) -> None:
    """List the profiles of the service, newest first."""
    from service.cli.connection import connected  # noqa: PLC0415 - slow to import

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
    with profiles_of(server, key) as load:
        found = load(profile)
    if as_json:
        print_json(found)
    else:
        profile_report.report(out, found)
