"""When the next call may start: so many a minute, and not before the server is ready again."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Protocol

from service.store.connection import is_outage

log = logging.getLogger(__name__)

LONGEST_SLEEP = 1.0
"""Seconds until a call that waits for its turn asks again at latest."""


class Pace:
    """Spaces the starts of calls evenly, and holds all of them back when the server asks for it."""

    def __init__(
        self,
        per_minute: float | None,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._gap = 60.0 / per_minute if per_minute else 0.0
        self._clock, self._sleep = clock, sleep
        self._next = self._held = float("-inf")

    async def turn(self) -> str:
        """Return when the next call may start, with a token for `done`."""
        start = max(self._clock(), self._next)
        self._next = start + self._gap
        while (wait := max(start, self._held) - self._clock()) > 0:
            await self._sleep(wait)
        return ""

    def done(self, token: str) -> None:
        """The call has ended."""

    def hold(self, seconds: float) -> None:
        """Start no call for so long."""
        self._held = max(self._held, self._clock() + seconds)


class Places(Protocol):
    """Where workers agree on turns (`service.store.endpoints.Turns`)."""

    def turn(self, token: str) -> float:
        """0 if the call may start now, else seconds after which to ask again."""

    def done(self, token: str) -> None:
        """The call has ended."""

    def hold(self, seconds: float) -> None:
        """Let nobody start a call for so long."""


class SharedPace:
    """The same for all workers of an endpoint together; this process alone while the store is away.

    Args:
        places: in the store.
        own: used besides.
        sleep: waits for seconds.
    """

    def __init__(
        self, places: Places, own: Pace, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        self._places, self._own, self._sleep = places, own, sleep

    async def turn(self) -> str:
        """Return when the next call may start, with a token for `done`."""
        token = secrets.token_hex(8)
        while (wait := self._asked(lambda: self._places.turn(token))) > 0:
            await self._sleep(min(wait, LONGEST_SLEEP))
        await self._own.turn()
        return token

    def done(self, token: str) -> None:
        """The call has ended."""
        self._asked(lambda: self._places.done(token))

    def hold(self, seconds: float) -> None:
        """Start no call for so long, in any worker."""
        self._own.hold(seconds)
        self._asked(lambda: self._places.hold(seconds))

    def _asked(self, call: Callable[[], float | None]) -> float:
        try:
            return call() or 0.0
        except Exception as error:
            if not is_outage(error):
                raise
            log.warning("the store is away: this worker keeps the endpoint's pace alone")
            return 0.0


def retry_after(value: str | None) -> float | None:
    """Seconds from a Retry-After header, which holds seconds or a date (RFC 9110, 10.2.3).

    None where there is none, or where it cannot be read.
    """
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            when = parsedate_to_datetime(value)
        except (ValueError, TypeError):
            return None
        aware = when if when.tzinfo else when.replace(tzinfo=UTC)
        seconds = (aware - datetime.now(UTC)).total_seconds()
    return None if math.isnan(seconds) else max(0.0, seconds)
