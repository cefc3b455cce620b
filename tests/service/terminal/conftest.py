"""The command line in this process, a gateway for it, and profiles on disk."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lacuna.contract.profiles import Profile
from service.local.stack import Stack
from service.settings import Settings
from service.store.connection import connect
from service.terminal import app, common

WIDTH = 100
DEAD_END = "http://127.0.0.1:9"
"""Nobody listens there: a command that needs no service succeeds all the same."""


class Lacuna:
    """Runs commands; a service that one asks for by itself is not there."""

    def __call__(
        self, *arguments: str, stdin: str | bytes | None = None, server: str | None = DEAD_END
    ) -> Result:
        environment = {"LACUNA_SERVER": server, "COLUMNS": str(WIDTH)}
        common.out.width = common.err.width = WIDTH  # who ran the tests may have set another
        result = CliRunner().invoke(app, list(arguments), input=stdin, env=environment)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def prints(self, *arguments: str, **how: Any) -> str:
        """Stdout of a command that succeeds, and says nothing else."""
        result = self(*arguments, **how)
        assert result.exit_code == 0, result.stderr
        assert result.stderr == ""
        return result.stdout

    def fails(self, status: int, *arguments: str, **how: Any) -> str:
        """What a command that fails with this status says: one line on stderr and nothing else."""
        result = self(*arguments, **how)
        assert result.exit_code == status, result.stderr
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        assert line.startswith("lacuna: ")
        return line


@pytest.fixture
def lacuna() -> Lacuna:
    """Runs commands."""
    return Lacuna()


@pytest.fixture
def saved(tmp_path: Path, make_profile: Callable[..., Profile]) -> Callable[..., str]:
    """Writes a profile as `lacuna profile` does; returns the file's name."""

    def save(name: str = "profile.json", **fields: Any) -> str:
        path = tmp_path / name
        path.write_text(make_profile(**fields).model_dump_json())
        return str(path)

    return save


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A gateway and a store without workers: enough for what is stored, and to queue."""
    folder = tmp_path_factory.mktemp("s")
    with Stack(Settings(data_dir=folder, log_format="text"), workers=0) as running:
        yield running


@pytest.fixture
def worker(stack: Stack) -> Iterator[Any]:
    """The worker's side of that queue, by hand, on an empty store."""
    helpers = runpy.run_path(str(Path(__file__).parents[1] / "gateway" / "conftest.py"))
    client = connect(stack.environment["LACUNA_REDIS_URL"])
    client.flushdb()
    yield helpers["Worker"](client)
    client.close()
