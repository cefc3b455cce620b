"""The local service as a supervisor; its main line is in tests/e2e."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from service.local import stack as local
from service.local.stack import Stack, StackError
from service.settings import Settings


def stack_of(name: str, folder: Path, code: str) -> Stack:
    """A stack of one process, started."""
    stack = Stack(Settings(data_dir=folder))
    (folder / "logs").mkdir()
    (folder / "logs" / f"{name}.log").write_text("of an earlier run\n")
    stack._commands = {name: [sys.executable, "-c", code]}
    stack._start(name)
    return stack


def test_a_gateway_that_keeps_dying_ends_the_service_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_LONGEST_PAUSE", 0.1)
    stack = stack_of("gateway", tmp_path, "print('no luck'); raise SystemExit(5)")
    with pytest.raises(StackError, match=r"gateway ended with status 5: no luck$"):
        stack.supervise(pause=0.2)


def test_a_worker_that_requests_kill_is_started_again_however_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_LONGEST_PAUSE", 0.1)
    stack = stack_of("worker-1", tmp_path, "raise SystemExit(9)")
    pids = {stack.pids["worker-1"]}
    deadline = time.monotonic() + 60
    while len(pids) < 6:
        assert time.monotonic() < deadline
        if stack._children["worker-1"].poll() is not None:
            stack._start_again("worker-1")
        pids.add(stack.pids["worker-1"])
        time.sleep(0.01)
    stack._stop_children()


def test_a_worker_that_dies_again_and_again_is_started_ever_later(tmp_path: Path) -> None:
    stack = stack_of("worker-1", tmp_path, "")
    stack._children["worker-1"].wait()
    assert [stack._pause("worker-1") for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    stack._begun["worker-1"] = (time.monotonic() - 60, 0)
    assert stack._pause("worker-1") == 0


def test_a_worker_killed_from_outside_is_told_by_the_signal(tmp_path: Path) -> None:
    stack = stack_of("worker-1", tmp_path, "import time; time.sleep(60)")
    stack._children["worker-1"].kill()
    stack._children["worker-1"].wait()
    with pytest.raises(StackError, match=r"^the worker-1 ended by SIGKILL; see .*worker-1.log$"):
        stack.check()


def test_a_worker_that_is_started_again_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = '{"level": "critical", "message": "no such device"}'
    stack = stack_of("worker-1", tmp_path, f"print({line!r}); raise SystemExit(78)")
    stack._children["worker-1"].wait()
    stack._pause("worker-1")
    said = "the worker-1 ended with status 78: no such device; starting it again in 1 s\n"
    assert capsys.readouterr().out == said


def test_a_device_that_is_not_there_ends_the_start_with_the_workers_own_words(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(StackError, match="worker-1 ended with status 78: LACUNA_DEVICE is cuda"):
        Stack(Settings(data_dir=short_dir, device="cuda")).__enter__()


def test_a_service_that_never_gets_ready_says_what_is_missing(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_READY_SECONDS", 8.0)
    stack = Stack(Settings(data_dir=short_dir))
    stack._commands["worker-1"] = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(StackError, match="not ready after 8 s: no live worker; see "):
        stack.__enter__()
