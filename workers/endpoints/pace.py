"""When the next call may start: so many a minute, and not before the server is ready again."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


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

    async def turn(self) -> None:
        """Return when the next call may start."""
        start = max(self._clock(), self._next)
        self._next = start + self._gap
        while (wait := max(start, self._held) - self._clock()) > 0:
            await self._sleep(wait)

    def hold(self, seconds: float) -> None:
        """Start no call for so long."""
        self._held = max(self._held, self._clock() + seconds)


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
