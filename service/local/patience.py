"""Waiting for a store that others run, and saying so."""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import urlsplit

import redis

from service.contract.errors import StoreUnavailable
from service.store.connection import connect, is_outage

_PAUSE_SECONDS = 0.5


def await_store(url: str, seconds: float, tell: Callable[[str], None]) -> None:
    """Wait until the store answers; it may be starting along with us.

    Args:
        url: its address; told without user and password.
        seconds: how long to wait at most.
        tell: called with one line as soon as it is known that there is something to wait for.

    Raises:
        StoreUnavailable: it did not answer in time, or refuses us; says which store, and why.
    """
    address, client = shown(url), connect(url)
    deadline, told = time.monotonic() + seconds, False
    try:
        while (error := _fault(client)) is not None:
            if isinstance(error, redis.AuthenticationError):  # no outage, though of its class
                raise StoreUnavailable(
                    f"the store at {address} refuses us: user or password in LACUNA_REDIS_URL are "
                    "missing or wrong"
                ) from error
            if not is_outage(error):
                raise StoreUnavailable(f"the store at {address} refuses us: {error}") from error
            if time.monotonic() >= deadline:
                raise StoreUnavailable(
                    f"the store at {address} did not answer in {seconds:.0f} s ({error}): start "
                    "it, correct LACUNA_REDIS_URL, or unset it to use the embedded store"
                ) from error
            if not told:
                tell(f"waiting for the store at {address}: {error}")
                told = True
            time.sleep(_PAUSE_SECONDS)
    finally:
        client.close()


def shown(url: str) -> str:
    """A store's address without user, password and options."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _fault(client: redis.Redis) -> Exception | None:
    try:
        client.ping()
    except (redis.RedisError, OSError) as error:
        return error
    return None
