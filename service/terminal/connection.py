"""A client of a service: one that runs already, or one that is started for this command."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext

import httpx

from lacuna.client.clients import Client
from lacuna.client.errors import LacunaError, Refused, ServiceAway, UnexpectedAnswer
from service.local.stack import Stack, StackError
from service.terminal.common import ENVIRONMENT, Status, configured, err, fail
from service.terminal.inputs import in_options

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
