"""`lacuna`: the whole product from a terminal.

Exit statuses: 0 done; 1 the job failed or was refused; 2 wrong usage; 3 the service did not start
or cannot be reached.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, NoReturn

import httpx
import pydantic
import typer
from rich.console import Console

from service.client import Client, Refused
from service.contract.errors import StoreUnavailable
from service.embedded import ensure
from service.local import Stack, StackError
from service.report import progress, report
from service.settings import Settings

app = typer.Typer(
    help="Where in a prompt a language model listens, and where it does not.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_out = Console()
_err = Console(stderr=True)

Server = Annotated[
    str | None,
    typer.Option(
        envvar="LACUNA_SERVER", help="Address of a running service; without it one is started."
    ),
]
Key = Annotated[str | None, typer.Option(envvar="LACUNA_API_KEY", help="API key of that service.")]


@app.command()
def profile(
    model: Annotated[str, typer.Argument(help="Hub id, demo:NAME, local:NAME or preset:NAME.")],
    length: Annotated[int, typer.Option(help="Tokens per document.")] = 256,
    documents: Annotated[int, typer.Option(help="Number of documents.")] = 16,
    weights: Annotated[str, typer.Option(help="pretrained, or random (step 0).")] = "pretrained",
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit.")] = None,
    request: Annotated[str, typer.Option(help="More request fields, as a JSON object.")] = "{}",
    folder: Annotated[Path, typer.Option(help="Where profile.json and profile.svg go.")] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as JSON.")] = False,
    server: Server = None,
    key: Key = None,
) -> None:
    """Measure the influence profile of MODEL and compare it with theory."""
    body: dict[str, Any] = {
        "model": model,
        "sequence_length": length,
        "weights": weights,
        **_object(request),
    }
    body["documents"] = {"count": documents, **body.get("documents", {})}
    if revision is not None:
        body["revision"] = revision
    with ExitStack() as exits:
        url, check = _service(server, exits)
        client = exits.enter_context(Client(url, key))
        try:
            with progress(_err, model) as on_job:
                identifier = client.profile(body, on_job=on_job, check=check)
            text = client.text(f"/v1/profiles/{identifier}")
            (folder / "profile.json").write_text(text)
            (folder / "profile.svg").write_text(client.text(f"/v1/profiles/{identifier}.svg"))
        except Refused as refusal:
            _fail(str(refusal), 1)
        except StackError as error:
            _fail(str(error), 3)
        except httpx.HTTPError as error:
            _fail(f"the service at {url} does not answer: {error}", 3)
        except OSError as error:
            _fail(f"cannot write the profile: {error}", 1)
    if as_json:
        sys.stdout.write(text + "\n")
    else:
        report(_out, json.loads(text))
        _out.print(f"wrote {folder / 'profile.json'} and {folder / 'profile.svg'}")


@app.command()
def rollout(
    request: Annotated[str, typer.Argument(help="Request as JSON, e.g. '{\"layers\": 32}'.")],
    server: Server = None,
    key: Key = None,
) -> None:
    """Theory alone: print the rollout of an architecture as JSON."""
    _post("/v1/rollouts", request, server, key)


@app.command()
def place(
    request: Annotated[str, typer.Argument(help="Placement request as JSON, or @FILE.")],
    server: Server = None,
    key: Key = None,
) -> None:
    """Print the best order of chunks as JSON."""
    _post("/v1/placements", request, server, key)


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help="Id of a profile.")],
    b: Annotated[str, typer.Argument(help="Id of another.")],
    source: Annotated[str, typer.Option(help="Which curve: measured, or a prediction.")] = (
        "measured"
    ),
    server: Server = None,
    key: Key = None,
) -> None:
    """Print how profile B differs from profile A as JSON."""
    query = httpx.QueryParams({"a": a, "b": b, "source": source})
    _print(lambda client: client.text(f"/v1/comparisons?{query}"), server, key)


@app.command()
def serve(
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
) -> None:
    """Run gateway, workers and, without LACUNA_REDIS_URL, the embedded store, until Ctrl-C."""
    settings = _settings()
    try:
        with Stack(settings, workers=workers, port=settings.port) as stack:
            _out.print(
                f"Lacuna listens on {stack.url} (documentation: {stack.url}/docs)", soft_wrap=True
            )
            stack.supervise()
    except StackError as error:
        _fail(str(error), 3)
    except KeyboardInterrupt:
        _out.print("stopped")


@app.command()
def gateway() -> None:
    """Run the HTTP gateway alone."""
    import uvicorn  # noqa: PLC0415

    from service.api.app import create_app  # noqa: PLC0415

    settings = _settings()
    with ExitStack() as exits:
        if settings.embedded:
            settings = _with_embedded(settings, exits)
        uvicorn.run(
            create_app(settings),
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=False,
            server_header=False,
            # Beyond so many connections uvicorn answers 503 by itself, before memory runs out.
            limit_concurrency=4_096,
            # Event streams and waits end only with their jobs.
            timeout_graceful_shutdown=5,
        )


@app.command()
def worker() -> None:
    """Run one worker."""
    os.execv(sys.executable, [sys.executable, "-m", "workers"])


def main() -> None:
    """Entry point of the console script."""
    # A supervisor's SIGTERM ends us as Ctrl-C does: what we started stops with us.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app()


def _service(server: str | None, exits: ExitStack) -> tuple[str, Any]:
    """Address of the service, started here when none is named, and what checks that it lives."""
    if server is not None:
        return server.rstrip("/"), lambda: None
    with _err.status("starting the service"):
        try:
            stack = exits.enter_context(Stack(_settings()))
        except StackError as error:
            _fail(str(error), 3)
    return stack.url, stack.check


def _post(path: str, request: str, server: str | None, key: str | None) -> None:
    if request.startswith("@"):
        try:
            request = Path(request[1:]).read_text()
        except (OSError, UnicodeDecodeError) as error:
            _fail(f"cannot read {request[1:]}: {error}", 2)
    _print(lambda client: client.post(path, _object(request)), server, key)


def _print(call: Callable[[Client], str], server: str | None, key: str | None) -> None:
    with ExitStack() as exits:
        url, _ = _service(server, exits)
        client = exits.enter_context(Client(url, key))
        try:
            sys.stdout.write(call(client) + "\n")
        except Refused as refusal:
            _fail(str(refusal), 1)
        except httpx.HTTPError as error:
            _fail(f"the service at {url} does not answer: {error}", 3)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        _fail(f"not JSON: {error}", 2)
    if not isinstance(value, dict):
        _fail("the request must be a JSON object", 2)
    return value


def _settings() -> Settings:
    try:
        return Settings()
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        name = "_".join(str(part) for part in first["loc"]).upper()
        _fail(f"setting LACUNA_{name}: {first['msg']}" if name else first["msg"], 2)


def _with_embedded(settings: Settings, exits: ExitStack) -> Settings:
    try:
        url = exits.enter_context(ensure(settings.data_dir)).url
    except StoreUnavailable as error:
        _fail(error.detail, 3)
    return settings.model_copy(update={"redis_url": pydantic.SecretStr(url)})


def _fail(message: str, status: int) -> NoReturn:
    _err.print(f"lacuna: {message}", style="red", highlight=False, soft_wrap=True, markup=False)
    raise typer.Exit(status)


if __name__ == "__main__":
    main()
