"""The way to a service: one that runs already, or one that is started for this command."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import NamedTuple

import httpx

from service.client import Client, Refused, Unfamiliar
from service.local.stack import Stack, StackError
from service.terminal.common import ENVIRONMENT, Status, configured, err, fail
from service.terminal.inputs import told


class Connection(NamedTuple):
    """A client, and what raises StackError when the service that was started here has ended."""

    client: Client
    check: Callable[[], None]


@contextmanager
def connected(
    server: str | None,
    key: str | None,
    *,
    workers: int = 0,
    names: Mapping[str, str] | None = None,
) -> Iterator[Connection]:
    """A client of the service; its failures become the statuses of the command.

    Args:
        server: address; None starts a service that ends with the block.
        workers: that a service started here has; none are needed to read what is stored.
        names: what the fields of the request are called on the command line, for refusals.
    """
    url = server
    try:
        with ExitStack() as exits:
            check: Callable[[], None] = _nothing
            if server is None:
                stack = exits.enter_context(_started(workers))
                url, check = stack.url, stack.check
            assert url is not None
            client = Client(url.rstrip("/"), _key(key), proxies=server is not None)
            yield Connection(exits.enter_context(client), check)
    except Refused as refusal:
        fail(told(refusal, names or {}), Status.REFUSED)
    except (StackError, Unfamiliar) as error:
        fail(str(error), Status.UNREACHABLE)
    except httpx.UnsupportedProtocol:
        fail(
            f"{_given('--server', server)}: {url!r} does not begin with http:// or https://",
            Status.USAGE,
        )
    except httpx.InvalidURL as error:
        fail(f"{_given('--server', server)}: {url!r} is no address: {error}", Status.USAGE)
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        fail(f"the service at {url} does not answer: {reason}", Status.UNREACHABLE)


@contextmanager
def _started(workers: int) -> Iterator[Stack]:
    stack = Stack(configured(), workers=workers)
    with err.status("starting the service") if err.is_terminal else nullcontext():
        stack.__enter__()
    with ExitStack() as exits:
        exits.push(stack)
        yield stack


def _key(key: str | None) -> str | None:
    if key is not None and not (key.isascii() and key.isprintable()):
        fail(f"{_given('--key', key)}: a key has printable ASCII characters alone", Status.USAGE)
    return key


def _given(option: str, value: str | None) -> str:
    """The option, or the variable of the environment that stands in for it."""
    variable = ENVIRONMENT[option]
    return variable if os.environ.get(variable) == value else option


def _nothing() -> None:
    """Whoever runs a service elsewhere looks after it."""
