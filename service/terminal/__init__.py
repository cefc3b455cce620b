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

from service.terminal import calibrate, evaluate, place, profile, rollout, run, stored
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
    "evaluate": evaluate.evaluate_orders,
    "rollout": rollout.compute_rollout,
    "compare": stored.compare_profiles,
    "profiles": stored.list_profiles,
    "show": stored.show_profile,
    "models": stored.list_models,
    "job": run.show_job,
    "cancel": run.cancel_job,
    "serve": run.serve,
    "gateway": run.run_gateway,
    "worker": run.run_worker,
}
EXAMPLES: dict[str, tuple[str, ...]] = {
    "profile": (
        "lacuna profile demo:smollm2-135m-instruct",
        "lacuna profile Qwen/Qwen2-0.5B --length 1024 --recall --output qwen.json",
        "lacuna profile local:mine --texts contracts.txt --texts letters.jsonl",
        "lacuna profile preset:gpt2 --weights random --server http://127.0.0.1:8080 --no-wait",
    ),
    "place": (
        "lacuna place chunks.csv --profile qwen.json --suffix-tokens 40",
        "lacuna place - --model Qwen/Qwen2-0.5B --allow-theory < chunks.csv",
        "lacuna place chunks.jsonl --layers 24 --max-tokens 4000 --ids",
    ),
    "calibrate": ("lacuna calibrate labelled.csv --output calibration.json",),
    "evaluate": (
        "lacuna evaluate questions.jsonl --model Qwen/Qwen2-0.5B-Instruct --dry-run",
        "lacuna evaluate questions.jsonl --model local:mine --template prompt.j2 --csv rows.csv",
    ),
    "rollout": (
        "lacuna rollout --model bloom-176b --length 2048",
        "lacuna rollout --layers 32 --heads 32 --positions alibi --lambda 0.1",
    ),
    "compare": ("lacuna compare before.json after.json",),
    "profiles": ("lacuna profiles --model Qwen/Qwen2-0.5B --limit 5",),
    "show": ("lacuna show profile.json",),
    "models": ("lacuna models --server http://127.0.0.1:8080",),
    "job": ("lacuna job 0123456789abcdef0123456789abcdef --server http://127.0.0.1:8080",),
    "cancel": ("lacuna cancel 0123456789abcdef0123456789abcdef --server http://127.0.0.1:8080",),
    "serve": ("lacuna serve", "lacuna serve --port 9000 --workers 2"),
    "gateway": ("LACUNA_REDIS_URL=redis://redis:6379/0 lacuna gateway",),
    "worker": ("LACUNA_REDIS_URL=redis://redis:6379/0 LACUNA_DEVICE=cuda lacuna worker",),
}
"""Under the help of each command; a test parses them."""
for _name, _command in _COMMANDS.items():
    # Typer joins lines of one paragraph.
    app.command(_name, epilog="\n\n".join(["Examples:", *EXAMPLES[_name]]))(_command)


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
