"""The embedded store: started, reused, stopped by its starter, kept on disk."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from lacuna.contract.errors import StoreUnavailable
from service.local import guard, store
from service.store.connection import connect, connect_async


def client(server: store.EmbeddedServer) -> redis.Redis:
    return redis.Redis.from_url(server.url)


def test_it_is_private_durable_and_never_evicts(short_dir: Path) -> None:
    with store.ensure(short_dir / "data") as server:
        assert server.started
        assert stat.S_IMODE((short_dir / "data").stat().st_mode) == 0o700
        assert stat.S_IMODE((short_dir / "data" / "redis.sock").stat().st_mode) == 0o700
        settings = client(server).config_get()
        assert settings["port"] == "0"
        assert settings["appendonly"] == "yes"
        assert settings["appendfsync"] == "everysec"
        assert settings["maxmemory-policy"] == "noeviction"


def test_what_it_holds_survives_a_stop(short_dir: Path) -> None:
    with store.ensure(short_dir) as server:
        client(server).set("k", "v")
    assert not (short_dir / "redis.sock").exists()
    with store.ensure(short_dir) as server:
        assert client(server).get("k") == b"v"


def test_a_running_one_is_reused_and_left_running(short_dir: Path) -> None:
    with store.ensure(short_dir) as first:
        with store.ensure(short_dir) as second:
            assert not second.started
            assert second.url == first.url
        assert client(first).ping()


def test_its_starter_leaves_it_to_those_who_still_use_it(short_dir: Path) -> None:
    starter = store.ensure(short_dir)
    user, last = store.ensure(short_dir), store.ensure(short_dir)
    starter.close()
    user.close()
    assert client(last).ping()
    last.close()
    assert store._ABANDONED_PROCESSES.pop().wait(10) == 0
    with store.ensure(short_dir) as another:
        assert another.started


def test_one_that_was_killed_is_started_again_with_its_data(short_dir: Path) -> None:
    with store.ensure(short_dir, fsync="always") as server:
        client(server).set("kept", "1")
        assert not server.revive()
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while not server.revive():
            assert time.monotonic() < deadline
        assert client(server).get("kept") == b"1"


def test_closing_twice_does_no_harm(short_dir: Path) -> None:
    server = store.ensure(short_dir)
    server.close()
    server.close()
    with store.ensure(short_dir) as fresh:
        server.close()
        assert client(fresh).ping()


OWNER = (
    "import sys, time, pathlib; from service.local import store as embedded; "
    "s = embedded.ensure(pathlib.Path(sys.argv[1]), fsync='always'); print(s.pid, flush=True); "
    "time.sleep(60)"
)


@pytest.fixture
def killed_owner(short_dir: Path) -> Iterator[Callable[[], int]]:
    """Starts a process with a store and, when called, kills it; the process id of the store."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(short_dir)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())

    def kill() -> int:
        owner.kill()
        owner.wait()
        return pid

    yield kill
    kill()
    owner.stdout.close()


def gone(server: Path) -> bool:
    end = time.monotonic() + 20
    while store.is_running(server):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_one_whose_owner_was_killed_is_left_to_those_who_use_it(
    short_dir: Path, killed_owner: Callable[[], int]
) -> None:
    with store.ensure(short_dir) as server:
        pid = killed_owner()
        time.sleep(2 * guard.PAUSE_SECONDS)
        assert not server.started
        assert client(server).info("server")["process_id"] == pid
        # Its descriptor in another process does as well.
        holder = subprocess.Popen(["sleep", "60"], pass_fds=[server.held_open])
        server._use.close()  # as if this process were killed
        time.sleep(2 * guard.PAUSE_SECONDS)
        assert client(server).ping()
        holder.kill()
        holder.wait()
        assert gone(short_dir)


def test_one_that_nobody_is_left_to_use_ends_and_keeps_its_data(
    short_dir: Path, killed_owner: Callable[[], int]
) -> None:
    connection = redis.Redis(unix_socket_path=f"{short_dir}/redis.sock")
    connection.set("kept", "1")
    connection.close()
    killed_owner()
    assert gone(short_dir)
    with store.ensure(short_dir) as server:
        assert server.started
        assert client(server).get("kept") == b"1"


def guards(folder: Path) -> int:
    """How many guards of a folder run."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            found += guard.__file__.encode() in path.read_bytes() and (
                str(folder).encode() in path.read_bytes()
            )
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs Linux's /proc")
def test_its_guard_ends_with_it(short_dir: Path) -> None:
    with store.ensure(short_dir):
        assert guards(short_dir) == 1
    end = time.monotonic() + 20
    while guards(short_dir):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_its_memory_is_bounded(short_dir: Path) -> None:
    with store.ensure(short_dir, max_bytes=50_000_000) as server:
        assert client(server).config_get("maxmemory") == {"maxmemory": "50000000"}
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        while not server.revive():
            time.sleep(0.01)
        assert client(server).config_get("maxmemory") == {"maxmemory": "50000000"}
    with store.ensure(short_dir) as server:
        assert int(client(server).config_get("maxmemory")["maxmemory"]) == store.MAX_BYTES


def test_a_stale_socket_is_no_obstacle(short_dir: Path) -> None:
    server = store.ensure(short_dir)
    assert server.pid is not None
    subprocess.run(["kill", f"-{signal.SIGKILL.value}", str(server.pid)], check=True)
    time.sleep(0.1)
    assert (short_dir / "redis.sock").exists()
    server.close()
    with store.ensure(short_dir) as fresh:
        assert fresh.started
        assert client(fresh).ping()


def test_two_at_once_start_one(short_dir: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        servers = list(pool.map(lambda _: store.ensure(short_dir), range(4)))
    assert [server.started for server in servers].count(True) == 1
    for server in sorted(servers, key=lambda server: server.started):
        server.close()


def test_a_path_too_long_for_a_socket_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="LACUNA_DATA_DIR"):
        store.ensure(tmp_path / ("x" * 120))


def test_a_broken_data_folder_is_said(short_dir: Path) -> None:
    (short_dir / "appendonlydir").write_text("not a folder")
    with pytest.raises(StoreUnavailable, match="did not start"):
        store.ensure(short_dir)


def test_it_works_for_both_kinds_of_client(short_dir: Path) -> None:
    with store.ensure(short_dir) as server:

        async def ping() -> bool:
            client = connect_async(server.url)
            answer = await client.ping()
            await client.aclose()
            return bool(answer)

        assert asyncio.run(ping())
        assert connect(server.url).ping()


def test_one_that_is_silent_is_not_taken_for_gone(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.ensure(short_dir) as server:
        assert server.pid is not None
        client(server).set("accepted", "1")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            monkeypatch.setattr(store, "START_SECONDS", 0.1)
            with pytest.raises(StoreUnavailable, match="runs but did not answer"):
                store.ensure(short_dir)
            assert not server.revive()
        finally:
            os.kill(server.pid, signal.SIGCONT)
        with store.ensure(short_dir) as second:
            assert not second.started
            assert client(second).get("accepted") == b"1"


def test_one_that_takes_no_more_clients_is_not_started_again(short_dir: Path) -> None:
    with store.ensure(short_dir) as first, store.ensure(short_dir) as adopter:
        only = client(first)
        only.config_set("maxclients", 1)
        assert not adopter.revive()
        assert not first.revive()
        assert only.ping()
        only.config_set("maxclients", 100)


def test_one_that_is_just_ending_is_followed_by_another(short_dir: Path) -> None:
    first = store.ensure(short_dir)
    process = first._process
    assert process is not None
    client(first).set("kept", "1")
    # It writes to disk, its socket gone already: neither may a second start beside it, nor the
    # caller be refused.
    (short_dir / "redis.sock").unlink()
    process.terminate()
    with store.ensure(short_dir) as second:
        assert second.started
        assert process.poll() is not None
        assert client(second).get("kept") == b"1"
    # It was left to the first, who stops it though it started another.
    assert client(first).ping()
    first.close()
    assert store._ABANDONED_PROCESSES.pop().wait(10) == 0


def test_who_looks_does_not_take_another_who_looks_for_the_server(short_dir: Path) -> None:
    with open(short_dir / store.ALIVE, "a") as looked:
        fcntl.flock(looked, fcntl.LOCK_SH)
        assert not store.is_running(short_dir)
