"""Stops an embedded store that nobody uses any more: its users may have been killed.

A process of its own, started next to the server as `python guard.py FOLDER`; it needs the standard
library alone. Every process that uses the server holds a shared lock on a file, which the kernel
releases however that process ends. The guard looks whether it can have the lock to itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
import time
from typing import IO

LOCK, USERS, SOCKET = "redis.lock", "redis.users", "redis.sock"
PAUSE_SECONDS = 2.0
STOP_SECONDS = 15.0


def main(folder: str) -> None:
    """Wait until nobody uses the server in the folder, stop it, and end."""
    os.chdir(folder)  # a socket's path is bounded
    with open(LOCK, "a") as start, open(USERS, "a") as users:
        while True:
            time.sleep(PAUSE_SECONDS)
            # Starting, joining and leaving take the first lock: nobody can do so meanwhile.
            if not locked(start):
                continue
            try:
                if locked(users) and stopped():
                    return
            finally:
                fcntl.flock(users, fcntl.LOCK_UN)
                fcntl.flock(start, fcntl.LOCK_UN)


def locked(file: IO[str]) -> bool:
    """Take the lock of a file if nobody has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def stopped() -> bool:
    """Tell the server to write its data and end; whether it has ended."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(STOP_SECONDS)
        try:
            connection.connect(SOCKET)
        except OSError:
            return True  # it ended by itself, or was stopped by its last user
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"SHUTDOWN\r\n")
            try:
                # It answers only when it refuses, as while it reads its data.
                return connection.recv(1_000) == b""
            except TimeoutError:
                return False
    return True


if __name__ == "__main__" and os.fork() == 0:  # the process that started it need not wait
    main(sys.argv[1])
