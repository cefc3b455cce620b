"""Ports of this machine.

Waiting for a store that others run, and saying so.

Why a process ended, by what it wrote: one line out of its log.

A whole service on one machine: embedded store, gateway and workers as child processes.

A root, like `service.terminal`: it reads the environment to hand it down to its children.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import urlsplit

import httpx
import redis

from lacuna.contract.errors import StoreUnavailable
from service.local.store import EmbeddedServer, ensure
from service.settings import Settings
from service.store.connection import connect, is_outage


def check_free(host: str, port: int) -> None:
    """Else whoever listens there already would be taken for the gateway started here.

    Raises:
        OSError: somebody does, or we may not.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise OSError(
                f"cannot listen on {host} port {port} ({error.strerror}): set LACUNA_PORT"
            ) from error


def free_port(host: str) -> int:
    """One that nobody listens on now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


_PAUSE_SECONDS = 0.5


def await_store(url: str, seconds: float, tell: Callable[[str], None]) -> None:
    """Wait until the store answers; it may be starting along with us.

    Args:
        url: its address; told without user and password.
        seconds: how long to wait at most.
        tell: called with one line as soon as it is known that there is something to wait for.

    Raises:
        StoreUnavailable: it did not answer in time, or refuses us; says which store, and why.
    """
    address, client = shown(url), connect(url)
    deadline, told = time.monotonic() + seconds, False
    try:
        while (error := _fault(client)) is not None:
            if isinstance(error, redis.AuthenticationError):  # no outage, though of its class
                raise StoreUnavailable(
                    f"the store at {address} refuses us: user or password in LACUNA_REDIS_URL are "
                    "missing or wrong"
                ) from error
            if not is_outage(error):
                raise StoreUnavailable(f"the store at {address} refuses us: {error}") from error
            if time.monotonic() >= deadline:
                raise StoreUnavailable(
                    f"the store at {address} did not answer in {seconds:.0f} s ({error}): start "
                    "it, correct LACUNA_REDIS_URL, or unset it to use the embedded store"
                ) from error
            if not told:
                tell(f"waiting for the store at {address}: {error}")
                told = True
            time.sleep(_PAUSE_SECONDS)
    finally:
        client.close()


def shown(url: str) -> str:
    """A store's address without user, password and options."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _fault(client: redis.Redis) -> Exception | None:
    try:
        client.ping()
    except (redis.RedisError, OSError) as error:
        return error
    return None


_TEXT = re.compile(r"\d{4}-\d\d-\d\dT\S+ (debug|info|warning|error|critical) +(.*)")
_FIELDS = re.compile(r"\s\slogger=.*")
_MODULES = re.compile(r"(?:\w+\.)+(?=[A-Z]\w*(?::|$))")
_TRACEBACK = "Traceback (most recent call last):"
_SEVERE = {"error", "critical"}
_EMPTY_PHRASES = {"Application startup failed. Exiting."}
"""What uvicorn says after the reason."""


class _Entry(NamedTuple):
    """An event of the log; `level` is empty for what was not logged but printed."""

    level: str
    lines: list[str]


def last_words(written: str) -> str:
    """The reason in one line: the last error that was logged, else the last line that was printed;
    of a traceback the exception alone. Empty where nothing tells.

    Args:
        written: the process's log since its start, in either format of `service.logs`.
    """
    printed = ""
    for entry in reversed(list(_entries(written))):
        said = _line(entry.lines)
        if entry.level in _SEVERE and said and said not in _EMPTY_PHRASES:
            return said
        if not entry.level and not printed:
            printed = said
    return printed


def _entries(written: str) -> Iterator[_Entry]:
    current: _Entry | None = None
    for line in written.splitlines():
        begun = _json(line) or _text(line)
        if begun is None and current is not None and (current.level or _in_traceback(current)):
            current.lines.append(_FIELDS.sub("", line))
            continue
        if current is not None:
            yield current
        current = begun or _Entry("", [line])
    if current is not None:
        yield current


def _in_traceback(entry: _Entry) -> bool:
    """Whether what was printed is a traceback that has not come to its exception."""
    return entry.lines[0] == _TRACEBACK and (
        len(entry.lines) == 1 or entry.lines[-1].startswith((" ", _TRACEBACK))
    )


def _json(line: str) -> _Entry | None:
    try:
        fields = json.loads(line)
        message, trace = str(fields["message"]), str(fields.get("traceback", ""))
        why = f": {fields['why']}" if fields.get("why") else ""
        return _Entry(str(fields["level"]), [*f"{message}{why}".splitlines(), *trace.splitlines()])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _text(line: str) -> _Entry | None:
    found = _TEXT.match(line)
    return None if found is None else _Entry(found[1], [_FIELDS.sub("", found[2])])


def _line(lines: list[str]) -> str:
    """What a person should read of an event."""
    filled = [line for line in lines if line.strip()]
    traces = [number for number, line in enumerate(filled) if line == _TRACEBACK]
    if traces:
        rest = filled[traces[-1] + 1 :]
        raised = next((line for line in rest if not line.startswith(" ")), "")
        return _MODULES.sub("", raised, count=1)
    return filled[0].strip() if filled else ""


_READY_SECONDS = 90.0
_STOP_SECONDS = 8.0
"""Beyond the workers' grace: one killed before it gives its job back costs an attempt."""
_QUICK_SECONDS = 10.0
_QUICK_DEATHS = 3
"""A gateway that dies this often, each time this soon after its start, will not get better."""
_LONGEST_PAUSE = 30.0
"""A worker may: it is the requests that kill it. It is started again, but ever later."""


class StackError(RuntimeError):
    """The service did not start, or one of its processes ended; the message is one line."""


class Stack:
    """Gateway and workers on one machine, stopped on exit together with the store if we began it.

    Args:
        settings: what the processes get; `redis_url` unset means the embedded store.
        workers: number of worker processes; none are needed to read what is stored.
        port: port of the gateway; 0 takes a free one.
    """

    def __init__(self, settings: Settings, *, workers: int = 1, port: int = 0) -> None:
        self._settings = settings
        self._port = port or free_port(settings.host)
        self._commands = {"gateway": [sys.executable, "-m", "service.terminal", "gateway"]}
        for number in range(1, workers + 1):
            self._commands[f"worker-{number}"] = [sys.executable, "-m", "workers"]
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._store: EmbeddedServer | None = None
        self._begun: dict[str, tuple[float, int]] = {}
        self._quick_deaths: Counter[str] = Counter()
        self._due: dict[str, float] = {}
        self._exits = contextlib.ExitStack()
        self._threads = _threads(max(1, workers))
        # A gateway without workers is alive but never ready.
        self._probe = "/readyz" if workers else "/healthz"
        self._environment: dict[str, str] = {}
        self._logs = settings.data_dir / "logs"

    @property
    def url(self) -> str:
        """Address of the gateway."""
        host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        return f"http://{host}:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """What the child processes see; the same makes another worker join."""
        return dict(self._environment)

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the children by name."""
        return {name: child.pid for name, child in self._children.items()}

    def __enter__(self) -> Self:
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
            check_free(self._settings.host, self._port)
            store = self._settings.store_url
            if self._settings.embedded:
                self._store = self._exits.enter_context(ensure(self._settings.data_dir))
                store = self._store.url
            else:
                await_store(store, _READY_SECONDS, _tell)
            self._environment = {
                "LACUNA_TORCH_THREADS": str(self._threads),
                **os.environ,
                **self._settings.environment(),
                "LACUNA_REDIS_URL": store,
                "LACUNA_HOST": self._settings.host,
                "LACUNA_PORT": str(self._port),
            }
            self._exits.callback(self._stop_children)
            for name in self._commands:
                self._start(name)
            self._wait_until_ready()
        except (OSError, StoreUnavailable) as error:
            self._exits.close()
            raise StackError(f"the service cannot start: {error}") from error
        except BaseException:
            self._exits.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exits.close()

    def supervise(self, pause: float = 1.0) -> None:
        """Start again whatever ends, the store included, until interrupted.

        Raises:
            StackError: the gateway keeps dying, or the store cannot be started.
        """
        while True:
            time.sleep(pause)
            self._revive_store()
            for name, child in list(self._children.items()):
                if child.poll() is not None:
                    self._start_again(name)

    def _revive_store(self) -> None:
        try:
            if self._store is not None and self._store.revive():
                print("the store had ended: it was started again")
        except StoreUnavailable as error:
            raise StackError(error.detail) from error

    def _start_again(self, name: str) -> None:
        if name not in self._due:
            self._due[name] = time.monotonic() + self._pause(name)
        if time.monotonic() >= self._due[name]:
            del self._due[name]
            self._start(name)

    def _pause(self, name: str) -> float:
        """Seconds until a process that has just ended is started again."""
        quick = time.monotonic() - self._begun[name][0] < _QUICK_SECONDS
        deaths = self._quick_deaths[name] = self._quick_deaths[name] + 1 if quick else 0
        if deaths >= _QUICK_DEATHS and name == "gateway":
            self.check()
        pause = min(_LONGEST_PAUSE, 2.0 ** (deaths - 1)) if deaths else 0.0
        later = f" in {pause:.0f} s" if pause else ""
        print(f"{self._end_of(name)}; starting it again{later}", flush=True)
        return pause

    def check(self) -> None:
        """Raise StackError when a child has ended."""
        for name, child in self._children.items():
            if child.poll() is not None:
                raise StackError(self._end_of(name))

    def _end_of(self, name: str) -> str:
        """How a child ended, with the reason by its log since its latest start."""
        status = self._children[name].returncode
        how = f"with status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"
        with self._log(name).open("rb") as log:
            log.seek(self._begun[name][1])
            reason = last_words(log.read().decode(errors="replace"))
        return f"the {name} ended {how}{f': {reason}' if reason else f'; see {self._log(name)}'}"

    def _start(self, name: str) -> None:
        with self._log(name).open("ab") as log:
            self._begun[name] = (time.monotonic(), log.tell())
            # A session of its own: Ctrl-C reaches us alone, and we stop the children in order.
            self._children[name] = subprocess.Popen(
                self._commands[name],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        missing = "the gateway does not answer"
        while time.monotonic() < deadline:
            self.check()
            with contextlib.suppress(httpx.HTTPError):
                answer = httpx.get(self.url + self._probe, timeout=2.0, trust_env=False)
                if answer.is_success:
                    return
                missing = _detail(answer)
            time.sleep(0.1)
        raise StackError(
            f"the service was not ready after {_READY_SECONDS:.0f} s: {missing}; see {self._logs}"
        )

    def _stop_children(self) -> None:
        for child in self._children.values():
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self._settings.grace_seconds + _STOP_SECONDS
        for child in self._children.values():
            try:
                child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"


def _tell(line: str) -> None:
    """What a command prints on stdout is its result."""
    print(line, file=sys.stderr, flush=True)


def _detail(answer: httpx.Response) -> str:
    """What a problem document says is missing."""
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"the gateway answers {answer.status_code}"


def _threads(workers: int) -> int:
    """Torch threads per worker: the cores are shared, and one is left to everything else.

    Threads that outnumber free cores spin on each other and run many times slower than one.
    """
    return max(1, min(8, (os.cpu_count() or 1) // workers - 1))
