"""A whole service on one machine: embedded store, gateway and workers as child processes.

A root, like `service.terminal`: it reads the environment to hand it down to its children.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import httpx
import redis

from lacuna.contract.errors import StoreUnavailable
from service.local.child import Child, rotate
from service.local.store import EmbeddedServer, ensure
from service.settings import Settings
from service.store.connection import connect, is_lasting, is_outage

READY_SECONDS = 90.0
"""How long the store, and then the service, may take to start."""
_STOP_SECONDS = 8.0
"""On top of the workers' grace period: a worker that is killed before it gives its job back costs
the job an attempt."""
_MAX_QUICK_ENDS = 3
"""A gateway that ends quickly this often in a row will not recover. A worker may, because it is the
requests that end it."""
_RETRY_SECONDS = 0.5
ENDPOINT_WORKER = "endpoint-worker"


class StackError(RuntimeError):
    """The service did not start, or one of its processes ended; the message is one line."""


class Stack:
    """Gateway and workers on one machine, stopped on exit together with the store if we started it.

    Args:
        settings: what the processes get; `redis_url` unset means the embedded store.
        workers: number of worker processes; none are needed to read what is stored.
        endpoints: whether one more worker measures the endpoints of the settings, if there are any.
        port: port of the gateway; 0 takes a free one.
        all_cores: the workers may use every core: somebody waits for one job, and the gateway and
            the store have nothing else to do.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        workers: int = 1,
        endpoints: bool = False,
        port: int = 0,
        all_cores: bool = False,
    ) -> None:
        self._settings = settings
        self._port = port or _free_port(settings.host)
        self._logs = settings.data_dir / "logs"
        commands = {"gateway": [sys.executable, "-m", "service.terminal", "gateway"]}
        for number in range(1, workers + 1):
            commands[f"worker-{number}"] = [sys.executable, "-m", "workers"]
        self._key_variables = {
            one.key_variable for one in settings.endpoint_table if one.key_variable is not None
        }
        measures = endpoints and len(settings.endpoint_table) > 0
        if measures:
            commands[ENDPOINT_WORKER] = [sys.executable, "-m", "workers", "--queue", "endpoints"]
        self._children = [
            Child(name, command, self._logs / f"{name}.log") for name, command in commands.items()
        ]
        self._store: EmbeddedServer | None = None
        self._exits = contextlib.ExitStack()
        self._threads = _threads_per_worker(max(1, workers), spare=0 if all_cores else 1)
        # A gateway without workers is alive but never ready.
        self._probe = "/readyz" if workers or measures else "/healthz"
        self._environment: dict[str, str] = {}

    @property
    def url(self) -> str:
        """Address of the gateway."""
        host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        return f"http://{host}:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the child processes; another worker with the same joins the service."""
        return dict(self._environment)

    @property
    def _held_open(self) -> tuple[int, ...]:
        """What keeps the embedded store alive until the children have ended."""
        return () if self._store is None else (self._store.held_open,)

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the children by name: `gateway`, `worker-1`, ..."""
        return {child.name: child.pid for child in self._children}

    def __enter__(self) -> Self:
        try:
            self._start()
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

    def _start(self) -> None:
        self._logs.mkdir(parents=True, exist_ok=True)
        _check_free(self._settings.host, self._port)
        store = self._settings.store_url
        if self._settings.embedded:
            self._store = self._exits.enter_context(
                ensure(self._settings.data_dir, max_bytes=self._settings.store_max_bytes)
            )
            store = self._store.url
        else:
            wait_for_store(store, READY_SECONDS, _print_to_stderr)
        self._environment = {
            "LACUNA_TORCH_THREADS": str(self._threads),
            # Threads that wait sleep. Where other programs want the cores too, threads that spin
            # make two of them three to five times slower than one.
            "OMP_WAIT_POLICY": "PASSIVE",
            **os.environ,
            **self._settings.environment(),
            "LACUNA_REDIS_URL": store,
            "LACUNA_HOST": self._settings.host,
            "LACUNA_PORT": str(self._port),
        }
        self._exits.callback(self._stop_children)
        for child in self._children:
            child.start(self._environment_of(child), self._held_open)
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        missing = "the gateway does not answer"
        while time.monotonic() < deadline:
            self.check()
            with contextlib.suppress(httpx.HTTPError):
                answer = httpx.get(self.url + self._probe, timeout=2.0, trust_env=False)
                if answer.is_success:
                    return
                missing = _problem_detail(answer)
            time.sleep(0.1)
        raise StackError(
            f"the service was not ready after {READY_SECONDS:.0f} s: {missing}; see {self._logs}"
        )

    def check(self) -> None:
        """Raise StackError when a child has ended."""
        for child in self._children:
            if child.has_ended:
                raise StackError(child.how_it_ended())

    def supervise(self, pause: float = 1.0) -> None:
        """Start again whatever ends, the store included, and bound the logs, until interrupted.

        Args:
            pause: seconds between two looks.

        Raises:
            StackError: the gateway keeps ending, or the store cannot be started.
        """
        while True:
            time.sleep(pause)
            self._rotate_logs()
            self._revive_store()
            for child in self._children:
                if child.has_ended:
                    self._start_again(child)

    def _revive_store(self) -> None:
        try:
            if self._store is not None and self._store.revive():
                print("the store had ended: it was started again")
        except StoreUnavailable as error:
            raise StackError(error.detail) from error

    def _start_again(self, child: Child) -> None:
        if not child.is_scheduled:
            pause, how = child.schedule_restart(), child.how_it_ended()
            if child.name == "gateway" and child.quick_ends >= _MAX_QUICK_ENDS:
                raise StackError(how)
            later = f" in {pause:.0f} s" if pause else ""
            print(f"{how}; starting it again{later}", flush=True)
        if child.is_due:
            child.start(self._environment_of(child), self._held_open)

    def _environment_of(self, child: Child) -> dict[str, str]:
        """Only the endpoints' worker gets their keys."""
        hidden = set() if child.name == ENDPOINT_WORKER else self._key_variables
        return {name: value for name, value in self._environment.items() if name not in hidden}

    def _rotate_logs(self) -> None:
        for log in [child.log for child in self._children]:
            rotate(log)
        if self._store is not None:
            rotate(self._store.log)

    def _stop_children(self) -> None:
        for child in self._children:
            child.terminate()
        deadline = time.monotonic() + self._settings.grace_seconds + _STOP_SECONDS
        for child in self._children:
            child.wait(max(0.1, deadline - time.monotonic()))


def wait_for_store(url: str, seconds: float, tell: Callable[[str], None]) -> None:
    """Wait until the store answers; it may be starting at the same time.

    Args:
        url: its address; messages show it without user and password.
        seconds: how long to wait at most.
        tell: called with one line if there is something to wait for.

    Raises:
        StoreUnavailable: it did not answer in time, or refuses us; says which store, and why.
    """
    address, client = without_credentials(url), connect(url)
    deadline, told = time.monotonic() + seconds, False
    try:
        while (error := _ping(client)) is not None:
            if isinstance(error, redis.AuthenticationError):  # no outage, though of its class
                raise StoreUnavailable(
                    f"the store at {address} refuses us: the user or password in LACUNA_REDIS_URL "
                    "is missing or wrong"
                ) from error
            if is_lasting(error) or not is_outage(error):
                raise StoreUnavailable(f"the store at {address} refuses us: {error}") from error
            if time.monotonic() >= deadline:
                raise StoreUnavailable(
                    f"the store at {address} did not answer in {seconds:.0f} s ({error}): start "
                    "it, correct LACUNA_REDIS_URL, or unset it to use the embedded store"
                ) from error
            if not told:
                tell(f"waiting for the store at {address}: {error}")
                told = True
            time.sleep(_RETRY_SECONDS)
    finally:
        client.close()


def without_credentials(url: str) -> str:
    """A store's address without user, password and options."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _ping(client: redis.Redis) -> Exception | None:
    try:
        client.ping()
    except (redis.RedisError, OSError) as error:
        return error
    return None


def _check_free(host: str, port: int) -> None:
    """Refuse a port that is in use: the process there would be taken for our gateway.

    Raises:
        OSError: it is in use, or we may not listen on it.
    """
    with _socket(host) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise OSError(
                f"cannot listen on {host} port {port} ({error.strerror}): set LACUNA_PORT"
            ) from error


def _free_port(host: str) -> int:
    """A port that nothing listens on now."""
    with _socket(host) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _socket(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)


def _print_to_stderr(line: str) -> None:
    """Standard output is for a command's result."""
    print(line, file=sys.stderr, flush=True)


def _problem_detail(answer: httpx.Response) -> str:
    """What a problem document says is missing."""
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"the gateway answers {answer.status_code}"


def _threads_per_worker(workers: int, spare: int) -> int:
    """Torch threads of each worker: the cores are shared, and `spare` are left to everything else.

    More threads than free cores wait for each other and run many times slower than one.
    """
    return max(1, min(8, (os.cpu_count() or 1) // workers - spare))
