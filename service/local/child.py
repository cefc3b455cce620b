"""One child process of a local service: start it, learn why it ended, and start it again.

A child writes why it ends to a pipe whose number it finds in `LACUNA_EXIT_REASON_FD` (see
`service.logs.configure`): one line for each critical event, without secrets. The last line counts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

QUICK_SECONDS = 10.0
"""A process that ends this soon after its start counts as ended quickly."""
LONGEST_PAUSE = 30.0
"""Seconds. A process that ends quickly again and again is started ever later, up to this."""
LOG_BYTES = 10_000_000
"""A log that is longer becomes FILE.1, in place of the one before, and starts empty."""


def rotate(log: Path) -> None:
    """Keep a log that others append to, and its predecessor, below `LOG_BYTES` each.

    The writers keep their file, so it is copied and emptied; a line written in between is lost.
    """
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > LOG_BYTES:
            shutil.copyfile(log, log.with_name(f"{log.name}.1"))
            os.truncate(log, 0)


class Child:
    """A process that is started, and started again when it ends.

    Args:
        name: of the process, for people.
        command: program and arguments.
        log: file to which its output is appended.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.command = command
        self.log = log
        self.quick_ends = 0
        """How many times in a row it ended quickly; as of the latest `schedule_restart`."""
        self._process: subprocess.Popen[bytes] | None = None
        self._reasons, self._written = -1, b""
        self._started_at = 0.0
        self._restart_at: float | None = None

    @property
    def pid(self) -> int:
        """Process id of the latest start."""
        assert self._process is not None
        return self._process.pid

    def start(self, environment: Mapping[str, str], held_open: Sequence[int] = ()) -> None:
        """Start the process.

        Args:
            environment: all its variables, but for the number of its pipe.
            held_open: descriptors that it keeps open.
        """
        self._close_pipe()
        rotate(self.log)
        (self._reasons, writer), self._written = os.pipe(), b""
        # Neither side may ever wait: not a child with much to say, and not we for a child.
        os.set_blocking(self._reasons, False)
        os.set_blocking(writer, False)
        try:
            with self.log.open("ab") as log:
                # A session of its own: Ctrl-C reaches only us, and we stop the children in order.
                self._process = subprocess.Popen(
                    self.command,
                    env={**environment, "LACUNA_EXIT_REASON_FD": str(writer)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(writer, *held_open),
                )
        finally:
            os.close(writer)
        self._started_at = time.monotonic()
        self._restart_at = None

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process is not None and self._process.poll() is not None

    def how_it_ended(self) -> str:
        """One line: the exit status or signal, and the reason that the process gave."""
        assert self._process is not None
        status = self._process.returncode
        how = f"with status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"
        reason = self._reason()
        return f"the {self.name} ended {how}{f': {reason}' if reason else f'; see {self.log}'}"

    def _reason(self) -> str:
        # A process that the child started may still hold the pipe open, so the end may not come.
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._reasons, 65_536):
                self._written += part
        lines = self._written.decode(errors="replace").splitlines()
        return lines[-1] if lines else ""

    def schedule_restart(self) -> float:
        """Decide when to start the process that has ended again; returns in how many seconds.

        At once, unless it ended quickly: then later each time, up to `LONGEST_PAUSE`.
        """
        quick = time.monotonic() - self._started_at < QUICK_SECONDS
        self.quick_ends = self.quick_ends + 1 if quick else 0
        pause = min(LONGEST_PAUSE, 2.0 ** (self.quick_ends - 1)) if quick else 0.0
        self._restart_at = time.monotonic() + pause
        return pause

    @property
    def is_scheduled(self) -> bool:
        """Whether `schedule_restart` was called since the latest start."""
        return self._restart_at is not None

    @property
    def is_due(self) -> bool:
        """Whether the scheduled time has come."""
        return self._restart_at is not None and time.monotonic() >= self._restart_at

    def terminate(self) -> None:
        """Ask the process to end."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> None:
        """Wait until the process has ended; kill it after `seconds`."""
        if self._process is None:
            return
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close_pipe()

    def _close_pipe(self) -> None:
        if self._reasons >= 0:
            os.close(self._reasons)
            self._reasons = -1
