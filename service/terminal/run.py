"""`lacuna job` and `lacuna cancel`: measurements that nobody waits for.

`lacuna serve`, `gateway` and `worker`: the parts of a service.

What they are made of is imported when they run: no other command needs it.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ExitStack
from typing import Annotated

import typer
from pydantic import SecretStr

from lacuna.contract.errors import StoreUnavailable
from lacuna.contract.jobs import Job
from service.terminal.common import Json, Key, Server, Status, fail, out, print_json
from service.terminal.reports import standing
from service.terminal.stored import is_id

Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the job.")]


def job(identifier: Id, as_json: Json = False, server: Server = None, key: Key = None) -> None:
    """Print how a job stands, and where its profile is."""
    from service.terminal.connection import connected

    with connected(server, key) as connection:
        found = connection.client.read(Job, f"/v1/jobs/{_id(identifier)}")
    _show(found, as_json=as_json)
    if found.failure is not None:
        fail(f"{found.failure.code}: {found.failure.detail}", Status.REFUSED)


def cancel(identifier: Id, as_json: Json = False, server: Server = None, key: Key = None) -> None:
    """Withdraw from a job; it stops when nobody else wants it."""
    from service.terminal.connection import connected

    with connected(server, key) as connection:
        found = connection.client.cancel(_id(identifier))
    _show(found, as_json=as_json)


def _show(found: Job, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    out.print(f"{found.progress:4.0%} {standing(found)}", soft_wrap=True)
    if found.profile is not None:
        out.print(f"lacuna show {found.profile.rpartition('/')[2]}")


def _id(text: str) -> str:
    if not is_id(text):
        fail(f"{text!r:.80} is no id of a job: 32 hex digits", Status.USAGE)
    return text


def serve(
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
) -> None:
    """Run gateway, workers and, without LACUNA_REDIS_URL, the embedded store, until Ctrl-C."""
    from service.local.stack import Stack, StackError
    from service.terminal.common import configured

    settings = configured()
    try:
        with Stack(settings, workers=workers, port=settings.port) as stack:
            out.print(
                f"Lacuna listens on {stack.url} (documentation: {stack.url}/docs)", soft_wrap=True
            )
            stack.supervise()
    except StackError as error:
        fail(str(error), Status.UNREACHABLE)
    except KeyboardInterrupt:
        out.print("stopped")


def gateway() -> None:
    """Run the HTTP gateway alone."""
    import uvicorn

    from service import logs
    from service.gateway.app import create_app
    from service.local.store import ensure
    from service.terminal.common import configured

    settings = configured()
    logs.configure(settings.log_level, settings.log_format, settings.secrets)
    with ExitStack() as exits:
        if settings.embedded:
            try:
                url = exits.enter_context(ensure(settings.data_dir)).url
            except StoreUnavailable as error:
                fail(error.detail, Status.UNREACHABLE)
            settings = settings.model_copy(update={"redis_url": SecretStr(url)})
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
    # The interpreter would wait for every thread, and a long computation is wanted by nobody now.
    logging.shutdown()
    os._exit(Status.DONE)


def worker() -> None:
    """Run one worker."""
    os.execv(sys.executable, [sys.executable, "-m", "workers"])
