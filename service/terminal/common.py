"""What the commands share: options, settings, and how they print and fail.

Results go to stdout, everything else to stderr. A failure is one line.
"""

from __future__ import annotations

import codecs
import contextlib
import inspect
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args, get_type_hints

import pydantic
import typer
from pydantic import BaseModel
from rich.console import Console
from typer.core import TyperGroup

from lacuna.contract.validation import is_number
from lacuna.pictures.terminal import ASCII
from service.settings import Settings, first_fault
from service.terminal.reports import clean

ENVIRONMENT = {"--server": "LACUNA_SERVER", "--key": "LACUNA_API_KEY"}
Server = Annotated[
    str | None,
    typer.Option(
        envvar=ENVIRONMENT["--server"],
        help="Address of a running service. Without it, the command starts one.",
    ),
]
Key = Annotated[
    str | None, typer.Option(envvar=ENVIRONMENT["--key"], help="API key of that service.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Request = Annotated[
    str | None,
    typer.Option(help="More fields of the request: a JSON object, or @FILE. Options win over it."),
]


def configured(**given: Any) -> Settings:
    """The environment's settings, or the end of the command, which names the wrong one.

    Args:
        given: settings of the command line, which win over the environment; None leaves one alone.
    """
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except pydantic.ValidationError as error:
        fail(first_fault(error), Status.USAGE)


_PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "emoji": False}
out = Console(**_PLAIN)
err = Console(stderr=True, **_PLAIN)
_LONGEST = 600


class Status(IntEnum):
    """Exit statuses; the module's docstring of `service.terminal` says what they mean."""

    DONE = 0
    REFUSED = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


def fail(message: str, status: Status) -> NoReturn:
    """End the command with one line on stderr."""
    line = clean(" ".join(message.split()))
    line = line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
    err.print(f"lacuna: {line}", style="red", soft_wrap=True)
    raise typer.Exit(int(status))


def emit(lines: Iterable[str]) -> None:
    """Print for programs: in UTF-8, whatever the terminal's encoding is."""
    raw = "".join(f"{line}\n" for line in lines).encode()
    buffer = getattr(out.file, "buffer", None)
    if buffer is None:
        out.file.write(raw.decode())
    else:
        out.file.flush()
        buffer.write(raw)


def print_json(answer: BaseModel) -> None:
    """Print an answer as one line of JSON, as HTTP has it."""
    # A newer service may have names that this version does not know: no warning is needed.
    emit([answer.model_dump_json(warnings=False)])


def refuse_to_overwrite(
    path: Path, is_ours: Callable[[Path], bool], command: str, flag: str = "--output"
) -> None:
    """End the command if a file is there that the same command did not write before."""
    if path.exists() and path.stat().st_size and not is_ours(path):
        fail(
            f"{path} is there already, and `lacuna {command}` did not write it: name another file "
            f"with {flag}, or remove it",
            Status.USAGE,
        )


def holds(path: Path, *fields: str) -> bool:
    """Whether a file holds a JSON object with these fields, so an answer of some version."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and set(fields) <= found.keys()


def write(path: Path, content: bytes, status: Status = Status.REFUSED) -> None:
    """Write a file, or end the command with this status."""
    try:
        path.write_bytes(content)
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror or error}", status)


class Group(TyperGroup):
    """The commands. Wrong usage is one line; a closed pipe says nothing; Ctrl-C is status 130."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, and leave the process with the command's status."""
        status: Any = Status.DONE
        for stream in (sys.stdout, sys.stderr):
            # What a terminal cannot show becomes the nearest ASCII instead of an error.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors=_NEAREST)
        try:
            status = super().main(
                args, prog_name, complete_var, False, windows_expand_args, **extra
            )
            out.file.flush()
        except (typer.Abort, KeyboardInterrupt):
            status = Status.INTERRUPTED
        except BrokenPipeError:
            status = _leave_the_pipe()
        except OSError as error:
            what = error.filename or "cannot write the output"
            status = _told(f"{what}: {error.strerror or error}", Status.REFUSED)
            _leave_the_pipe()
        except Exception as error:
            # Usage errors of every version of typer, which does not export their class.
            if not hasattr(error, "format_message"):
                raise
            message = _usage(error)
            status = _told(message, Status.USAGE) if message else Status.USAGE
        sys.exit(status if isinstance(status, int) else Status.DONE)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, whose numbers are read as everybody reads them: Python also takes 1_0."""
        command: Any = super().get_command(ctx, cmd_name)
        if command is not None:
            kinds = get_type_hints(inspect.unwrap(command.callback))
            for parameter in command.params:
                kind = kinds.get(parameter.name)
                if not {int, float}.isdisjoint((kind, *get_args(kind))):
                    _read_strictly(parameter)
        return command


def _read_strictly(parameter: Any) -> None:
    """Let a parameter of a command refuse what is no plain number."""
    read = parameter.process_value

    def checked(context: Any, value: Any) -> Any:
        if isinstance(value, str) and not is_number(value.strip()):
            message = f"{value!r:.80} is not a valid number."
            raise typer.BadParameter(message, context, parameter)
        return read(context, value)

    parameter.process_value = checked


_NEAREST = "lacuna.nearest"
_BRAILLE = dict.fromkeys(range(0x2800, 0x2900), "*")
"""What rich draws a spinner with."""


def _nearest(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(ASCII | _BRAILLE)
    return text.encode("ascii", "replace").decode(), error.end


codecs.register_error(_NEAREST, _nearest)


def _usage(error: Any) -> str:
    """What is wrong and where to read on; empty if the help itself was just shown."""
    if not error.format_message():
        return ""
    context = getattr(error, "ctx", None)
    path = "lacuna" if context is None else context.command_path
    return f"{error.format_message().rstrip('.')}; see {path} --help"


def _told(message: str, status: Status) -> Status:
    try:
        fail(message, status)
    except typer.Exit:
        return status


def _leave_the_pipe() -> Status:
    """Nobody reads: drop what is buffered, or writing it would fail when the process ends."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.file.fileno())
    return Status.REFUSED
