"""Profiles by name: a file on this machine, or an id that a service knows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from service.cli.inputs import read_file
from service.cli.terminal import Status, fail
from service.contract.base import DIGEST_PATTERN
from service.contract.profiles import Profile

if TYPE_CHECKING:
    from service.client import Client

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
def profiles(server: str | None, key: str | None) -> Iterator[Load]:
    """Loads profiles; the service is asked for, or started, at the first id."""
    with ExitStack() as exits:
        client: Client | None = None

        def load(name: str) -> Profile:
            nonlocal client
            if not is_id(name):
                return load_file(name)
            if client is None:
                # Slow to import, and not needed for files.
                from service.cli.connection import connected  # noqa: PLC0415

                client = exits.enter_context(connected(server, key)).client
            return client.read(Profile, f"/v1/profiles/{name}")

        yield load
