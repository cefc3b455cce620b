"""Ends a process whose parent was killed. `lacuna serve` cannot stop its children then.

A child holds the writing end of a pipe (`LACUNA_EXIT_REASON_FD`). The kernel closes the reading end
when the parent ends, however that happens, and the child notices.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time

log = logging.getLogger("lacuna")

_LOOK_MS = 1_000
EXIT_ORPHANED = 75


def end_with_it(descriptor: int | None, grace: float) -> None:
    """Watch the parent from a thread. When it has ended, end this process as SIGTERM does.

    Args:
        descriptor: the writing end of the parent's pipe; None for a process without such a parent.
        grace: seconds after which the process ends in any case.
    """
    if descriptor is None:
        return
    watch = threading.Thread(
        target=_watch, args=(descriptor, os.getppid(), grace), name="parent", daemon=True
    )
    watch.start()


def _watch(descriptor: int, parent: int, grace: float) -> None:
    poll = select.poll()
    poll.register(descriptor, 0)  # the end of the other side is reported all the same
    # Not every system reports it while nobody writes, so the parent's id is compared as well.
    while not poll.poll(_LOOK_MS) and os.getppid() == parent:
        pass
    log.warning("the process that started this one has ended: it ends too")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace)
    log.critical("the process does not stop: it is ended")
    logging.shutdown()
    os._exit(EXIT_ORPHANED)
