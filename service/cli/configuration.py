"""The environment's settings, or the end of the command."""

from __future__ import annotations

import pydantic

from service.cli.terminal import Status, fail
from service.settings import Settings


def configured() -> Settings:
    """The settings; a wrong one is named in one line."""
    try:
        return Settings()
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        name = "_".join(str(part) for part in first["loc"]).upper()
        fail(f"setting LACUNA_{name}: {first['msg']}" if name else first["msg"], Status.USAGE)
