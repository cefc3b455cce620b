"""`lacuna`: the whole product from a terminal.

Exit statuses: 0 done; 1 the job failed or was refused; 2 wrong usage; 3 the service did not start
or cannot be reached; 130 Ctrl-C. Results go to stdout, everything else to stderr.

`rollout`, `calibrate`, `place` along a file or a density, and `compare` and `show` of files are
computed here. What needs stored profiles or models asks the service that `--server` or
LACUNA_SERVER names, or starts one. Each command imports its own needs when it runs, so that no
command waits for another's.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer

from service.terminal import calibrate, place, profile, rollout, run, stored
from service.terminal.common import Group, out

__all__ = ["app", "main"]

app = typer.Typer(
    cls=Group,
    help="Where in a prompt a language model listens, and where it does not.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_COMMANDS: dict[str, Callable[..., None]] = {
    "profile": profile.measure_profile,
    "place": place.place_chunks,
    "calibrate": calibrate.calibrate_scores,
    "rollout": rollout.compute_rollout,
    "compare": stored.compare_profiles,
    "profiles": stored.list_profiles,
    "show": stored.show_profile,
    "job": run.show_job,
    "cancel": run.cancel_job,
    "serve": run.serve,
    "gateway": run.run_gateway,
    "worker": run.run_worker,
}
for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)


def main() -> None:
    """Entry point of the console script."""
    # A supervisor's SIGTERM ends us as Ctrl-C does: what we started stops with us.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # So does a terminal that closes, unless nohup asked otherwise.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    app(prog_name="lacuna")


def _print_version(asked: bool) -> None:
    if asked:
        out.print(f"lacuna {version('lacuna-service')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    pass
