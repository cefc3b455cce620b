"""`lacuna job` and `cancel`: measurements in the background. `serve`, `gateway` and `worker`: the
parts of a service.

Their needs are imported when they run: no other command waits for them.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ExitStack
from typing import Annotated

import typer

from lacuna.contract.errors import StoreUnavailable
from lacuna.contract.jobs import Job
from service.terminal.common import Json, Key, Server, Status, configured, fail, out, print_json
from service.terminal.reports import job_state
from service.terminal.stored import is_id

Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the job.")]
Host = Annotated[
    str | None,
    typer.Option(help="Address that the gateway listens on (else LACUNA_HOST, else 127.0.0.1)."),
]
Port = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65_535,
        help="Port that the gateway listens on (else LACUNA_PORT, else 8080); 0 takes a free one.",
    ),
]


def show_job(identifier: Id, as_json: Json = False, server: Server = None, key: Key = None) -> None:
    """Print the state of a job, and where its profile is."""
    from service.terminal.connection import connected

    with connected(server, key) as client:
        found = client.job(_job_id(identifier))
    _print_job(found, as_json=as_json)
    if found.failure is not None:
        fail(f"{found.failure.code}: {found.failure.detail}", Status.REFUSED)


def cancel_job(
    identifier: Id, as_json: Json = False, server: Server = None, key: Key = None
) -> None:
    """Withdraw from a job. It stops when nobody else wants it."""
    from service.terminal.connection import connected

    with connected(server, key) as client:
        found = client.cancel(_job_id(identifier))
    _print_job(found, as_json=as_json)


def _print_job(found: Job, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    out.print(f"{found.progress:4.0%} {job_state(found)}", soft_wrap=True)
    if found.profile_id is not None:
        out.print(f"lacuna show {found.profile_id}")


def _job_id(text: str) -> str:
    if not is_id(text):
        fail(f"{text!r:.80} is not the id of a job: 32 hex digits", Status.USAGE)
    return text


def serve(
    host: Host = None,
    port: Port = None,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
) -> None:
    """Run gateway, workers and, without LACUNA_REDIS_URL, the embedded store, until Ctrl-C."""
    from service.local.stack import Stack, StackError

    settings = configured(host=host, port=port)
    try:
        with Stack(settings, workers=workers, endpoints=True, port=settings.port) as stack:
            out.print(
                f"Lacuna listens on {stack.url} (documentation: {stack.url}/docs)", soft_wrap=True
            )
            stack.supervise()
    except StackError as error:
        fail(str(error), Status.UNREACHABLE)
    except KeyboardInterrupt:
        out.print("stopped")


def run_gateway() -> None:
    """Run the HTTP gateway alone."""
    import uvicorn

    from service.local.store import ensure

    settings = configured()
    with ExitStack() as exits:
        if settings.embedded:
            try:
                started = ensure(settings.data_dir, max_bytes=settings.store_max_bytes)
                url = exits.enter_context(started).url
            except StoreUnavailable as error:
                fail(error.detail, Status.UNREACHABLE)
            os.environ["LACUNA_REDIS_URL"] = url
        uvicorn.run(
            "service.gateway.app:factory",  # which reads the settings itself
            factory=True,
            host=settings.host,
            port=settings.port,
            http="service.gateway.server:BoundedHttp",
            ws="none",  # nothing here speaks it
            log_config=None,
            access_log=False,
            server_header=False,
            # Beyond this many connections uvicorn answers 503 by itself, before memory runs out.
            limit_concurrency=4_096,
            # Event streams and waits end only with their jobs.
            timeout_graceful_shutdown=5,
        )
    # The interpreter would wait for every thread, and nobody needs a long computation any more.
    logging.shutdown()
    os._exit(Status.DONE)


def run_worker(
    queue: Annotated[
        str | None, typer.Option(help="auto, cpu, gpu or endpoints (else LACUNA_QUEUE).")
    ] = None,
) -> None:
    """Run one worker."""
    chosen = [] if queue is None else ["--queue", queue]
    os.execv(sys.executable, [sys.executable, "-m", "workers", *chosen])
