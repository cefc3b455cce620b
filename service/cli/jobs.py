"""`lacuna job` and `lacuna cancel`: measurements that nobody waits for."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.options import Json, Key, Server
from service.cli.saved import is_id
from service.cli.terminal import Status, fail, out, print_json
from service.contract.jobs import Job
from service.report.progress import standing

Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the job.")]


def job(identifier: Id, as_json: Json = False, server: Server = None, key: Key = None) -> None:
    """Print how a job stands, and where its profile is."""
    from service.cli.connection import connected  # noqa: PLC0415 - slow to import

    with connected(server, key) as connection:
        found = connection.client.read(Job, f"/v1/jobs/{_id(identifier)}")
    _show(found, as_json=as_json)
    if found.failure is not None:
        fail(f"{found.failure.code}: {found.failure.detail}", Status.REFUSED)


def cancel(identifier: Id, as_json: Json = False, server: Server = None, key: Key = None) -> None:
    """Withdraw from a job; it stops when nobody else wants it."""
    from service.cli.connection import connected  # noqa: PLC0415 - slow to import

    with connected(server, key) as connection:
        found = connection.client.cancel(_id(identifier))
    _show(found, as_json=as_json)


def _show(found: Job, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    out.print(f"{found.progress:4.0%} {standing(found)}", soft_wrap=True)
    if found.profile is not None:
        out.print(f"lacuna show {found.profile.rpartition('/')[2]}")


def _id(text: str) -> str:
    if not is_id(text):
        fail(f"{text!r:.80} is no id of a job: 32 hex digits", Status.USAGE)
    return text
