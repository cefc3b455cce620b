"""A circuit breaker: after some failures in a row, stop asking for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Self


class Breaker:
    """Counts failures in a row. Threads may share it; a copy starts afresh.

    Args:
        failures: in a row after which it opens.
        seconds: for which it stays open. Then one call may try; if that fails, it opens again.
        clock: seconds that only go forward.
    """

    def __init__(
        self,
        failures: int = 3,
        seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit, self._seconds, self._clock = failures, seconds, clock
        self._lock = threading.Lock()
        self._failures = 0
        self._opened = -seconds

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)(self._limit, self._seconds, self._clock)

    def __reduce__(self) -> tuple[type[Self], tuple[int, float]]:
        return type(self), (self._limit, self._seconds)

    def may_try(self) -> bool:
        """Whether to ask now. While open, one call at a time after each `seconds`."""
        with self._lock:
            if self._failures < self._limit:
                return True
            now = self._clock()
            if now - self._opened < self._seconds:
                return False
            self._opened = now
            return True

    def succeeded(self) -> None:
        """Close it."""
        with self._lock:
            self._failures = 0

    def failed(self) -> None:
        """Count one failure."""
        with self._lock:
            self._failures += 1
            if self._failures >= self._limit:
                self._opened = self._clock()
