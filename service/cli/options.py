"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Server = Annotated[
    str | None,
    typer.Option(
        envvar="LACUNA_SERVER", help="Address of a running service; without it one is started."
    ),
]
Key = Annotated[str | None, typer.Option(envvar="LACUNA_API_KEY", help="API key of that service.")]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Request = Annotated[
    str | None,
    typer.Option(help="More request fields: a JSON object, or @FILE. Options win over it."),
]
