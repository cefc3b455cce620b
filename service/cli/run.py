"""`lacuna serve`, `gateway` and `worker`: the parts of a service.

What they are made of is imported when they run: no other command needs it.
"""
# ruff: noqa: PLC0415

from __future__ import annotations

import logging
import os
import sys
from contextlib import ExitStack
from typing import Annotated

import typer
from pydantic import SecretStr

from service.cli.terminal import Status, fail, out
from service.contract.errors import StoreUnavailable


def serve(
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
) -> None:
    """Run gateway, workers and, without LACUNA_REDIS_URL, the embedded store, until Ctrl-C."""
    from service.cli.configuration import configured
    from service.local import Stack, StackError

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
    from service.api.app import create_app
    from service.cli.configuration import configured
    from service.embedded import ensure

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
