"""A client of a service, one that runs already or is started for this command, and its jobs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from shlex import quote
from typing import TypeVar

import httpx

from lacuna.client.clients import Client
from lacuna.client.errors import (
    JobFailed,
    LacunaError,
    Refused,
    ServiceAway,
    UnexpectedAnswer,
)
from lacuna.contract.endpoints import PREFIX
from lacuna.contract.jobs import Job
from service.local.stack import Stack, StackError
from service.terminal.common import (
    ENVIRONMENT,
    Status,
    configured,
    err,
    fail,
    out,
    print_json,
)
from service.terminal.inputs import Built, in_options
from service.terminal.reports import progress

Answer = TypeVar("Answer")
_TIMEOUT_SECONDS = 90.0


@contextmanager
def connected(
    server: str | None,
    key: str | None,
    *,
    workers: int = 0,
    endpoints: bool = False,
    names: Mapping[str, str] | None = None,
) -> Iterator[Client]:
    """A client of the service; its failures become the statuses of the command.

    Args:
        server: address; None starts a service that ends with the block.
        workers: of a service that is started here; reading what is stored needs none.
        endpoints: whether a service that is started here measures endpoints.
        names: what the fields of the request are called on the command line, for refusals.
    """
    try:
        with ExitStack() as exits:
            if server is None:
                stack = exits.enter_context(_started(workers, endpoints=endpoints))
                client = _client(stack.url, key, OwnService(stack.check))
            else:
                client = _client(server, key)
            yield exits.enter_context(client)
    except (StackError, UnexpectedAnswer) as error:
        fail(str(error), Status.UNREACHABLE)
    except ServiceAway as error:
        fail(error.detail, Status.UNREACHABLE if error.status is None else Status.REFUSED)
    except LacunaError as error:
        fail(in_options(error, names or {}), Status.REFUSED)


@contextmanager
def submitted(
    built: Built,
    submit: Callable[..., Answer | Job],
    server: str | None,
    key: str | None,
    *,
    wait: bool,
    as_json: bool,
) -> Iterator[tuple[Client, Answer | Job | None]]:
    """Submit a request: the client, and the answer if it was known, else the job once it is done.

    Args:
        built: the request.
        submit: the client's method for it.
        server: as `connected`; a service that is started here has the worker that the model needs.
        wait: for the job. Otherwise it is printed, and there is None in place of an answer.
        as_json: how a job is printed.
    """
    model = str(built.body["model"])
    served = model.startswith(PREFIX)
    with connected(
        server, key, workers=0 if served else 1, endpoints=served, names=built.names
    ) as client:
        found = submit(client, **built.body)
        if not isinstance(found, Job):
            yield client, found
        elif wait:
            yield client, waited(client, found, model, server)
        else:
            print_job(found, server, as_json=as_json)
            yield client, None


class OwnService(httpx.HTTPTransport):
    """The way to a service that this command started. It ignores the environment's proxies.

    Args:
        check: raises StackError when a process of the service has ended. It is called with each
            request until it raises: what follows, such as a cancel, is still sent.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        super().__init__(trust_env=False)
        self._check: Callable[[], None] | None = check

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The response, or StackError."""
        self._check_once()
        try:
            return super().handle_request(request)
        except httpx.TransportError:
            self._check_once()  # why the gateway is gone says more than that it is
            raise

    def _check_once(self) -> None:
        check, self._check = self._check, None
        if check is not None:
            check()
            self._check = check


@contextmanager
def _started(workers: int, *, endpoints: bool) -> Iterator[Stack]:
    stack = Stack(configured(), workers=workers, endpoints=endpoints, all_cores=True)
    with err.status("starting the service") if err.is_terminal else nullcontext():
        stack.__enter__()
    with ExitStack() as exits:
        exits.push(stack)
        yield stack


def _client(url: str, key: str | None, transport: httpx.BaseTransport | None = None) -> Client:
    """A client that fails at once: at a terminal, people decide themselves whether to try again."""
    try:
        return Client(url, api_key=key, timeout=_TIMEOUT_SECONDS, retries=0, transport=transport)
    except Refused as error:
        if error.field not in ("url", "api_key"):
            fail(error.detail, Status.USAGE)
        option, value = ("--key", key) if error.field == "api_key" else ("--server", url)
        variable = ENVIRONMENT[option]
        blamed = variable if os.environ.get(variable) == value else option
        fail(f"{blamed}: {error.detail}", Status.USAGE)


def waited(client: Client, job: Job, title: str, server: str | None) -> Job:
    """The job once it is done. It is withdrawn if the command stops and the service is its own.

    Args:
        title: of the bar.
        server: address of the service; None if it was started for this command.
    """
    try:
        with progress(err, title) as on_progress:
            return client.wait(job, timeout=math.inf, on_progress=on_progress)
    except JobFailed:  # it has ended
        raise
    except BaseException as error:
        # In the store that outlives a service of ours, it would stand before the next one's work.
        cancelled = server is None and _cancelled(client, job)
        if isinstance(error, KeyboardInterrupt):
            words = "stopped; the job was cancelled" if cancelled else "stopped"
            err.print(words if server is None else _whereabouts(job, server), soft_wrap=True)
        raise


def print_job(job: Job, server: str | None, *, as_json: bool) -> None:
    """Where to find a job that nobody waits for."""
    if as_json:
        print_json(job)
    else:
        out.print(f"job {job.id}: {job.state}", soft_wrap=True)
        out.print(f"{(server or '').rstrip('/')}/v1/jobs/{job.id}", soft_wrap=True)


def _cancelled(client: Client, job: Job) -> bool:
    try:
        client.cancel(job.id)
    except LacunaError:  # what ends us may have ended the service
        return False
    return True


def _whereabouts(job: Job, server: str) -> str:
    where = f"{job.id} --server {quote(server)}"
    return f"the job goes on: lacuna job {where}, or lacuna cancel {where}"
