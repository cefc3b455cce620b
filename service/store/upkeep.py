"""When leases may be judged, and when the server's file has to be rewritten.

`upkeep.lua` holds the steps that change the store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

FORGET_SECONDS = 60.0
"""Shortest time between two rewrites of the store's file, which remove callers' own texts."""
_JITTER_SECONDS = 0.5
"""Two readings of one clock may differ by this much because one of them was late."""
FORGET_AT_ONCE = 100
"""Records of ended jobs that one step of `forget` looks at."""


class Steadiness:
    """Whether a lease that looks expired may be believed to be.

    After an outage, after a restart of the server, or after a jump of its clock every lease looks
    expired, though the workers still work. One lease later those that live have renewed theirs.

    Each process judges for itself. The server's own account of its uptime is of no use: it is a
    difference of two readings of the clock that may have been set.

    Args:
        lease: seconds.
        clock: seconds; only differences count.
    """

    def __init__(self, lease: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease = lease
        self._clock = clock
        self._run = ""
        self._ahead: float | None = None
        # As after an outage: this process may be starting because of one.
        self._since = clock()

    def unsettle(self) -> None:
        """Note an outage."""
        self._since = self._clock()

    def steady(self, facts: Mapping[str, Any]) -> bool:
        """Whether nothing has happened for one lease, as far as this process can know.

        Args:
            facts: the answer to INFO, section server, just received.
        """
        now, run = self._clock(), str(facts.get("run_id", ""))
        # How far the server's clock is ahead of ours changes only when one of them is set.
        ahead = float(facts.get("server_time_usec", 0)) / 1e6 - now
        jump = 0.0 if self._ahead is None else abs(ahead - self._ahead)
        if run != self._run or jump > max(_JITTER_SECONDS, self._lease / 2):
            self._since = now
        self._run, self._ahead = run, ahead
        return now - self._since > self._lease


def texts_left(counts: Sequence[Any], persistence: Mapping[str, Any]) -> int | None:
    """Whether the server's append-only file may still hold callers' own texts of ended jobs.

    Args:
        counts: `TEXTS_DROPPED` and `TEXTS_FORGOTTEN` of the stats, as stored.
        persistence: the answer to INFO, section persistence.

    Returns:
        How many texts were dropped so far, to be noted as forgotten with the rewrite; None when
        there is nothing to rewrite, or no rewrite can start now.
    """
    dropped, forgotten = (int(number or 0) for number in counts)
    if not int(persistence.get("aof_enabled", 1)) or dropped == 0:
        return None
    if int(persistence.get("aof_rewrite_in_progress", 0)):
        return None
    failed = persistence.get("aof_last_bgrewrite_status", "ok") != "ok"
    return dropped if dropped != forgotten or failed else None
