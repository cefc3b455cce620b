"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

ENVIRONMENT = {"--server": "LACUNA_SERVER", "--key": "LACUNA_API_KEY"}
Server = Annotated[
    str | None,
    typer.Option(
        envvar=ENVIRONMENT["--server"],
        help="Address of a running service; without it one is started.",
    ),
]
Key = Annotated[
    str | None, typer.Option(envvar=ENVIRONMENT["--key"], help="API key of that service.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Request = Annotated[
    str | None,
    typer.Option(help="More request fields: a JSON object, or @FILE. Options win over it."),
]
