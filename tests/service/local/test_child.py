"""A child process: what is learnt from its end, and when it is started again."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.local import child as module
from service.local.child import Child

Start = Callable[[str], Child]
SAY = "import os; pipe = int(os.environ['LACUNA_EXIT_REASON_FD']); os.write(pipe, {!r}); "


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a Python program as the child `worker-1`."""
    started: list[Child] = []

    def run(code: str) -> Child:
        child = Child("worker-1", [sys.executable, "-c", code], tmp_path / "worker-1.log")
        child.start(os.environ)
        started.append(child)
        return child

    yield run
    for child in started:
        child.terminate()
        child.wait(20)


def ended(child: Child) -> str:
    deadline = time.monotonic() + 60
    while not child.has_ended:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return child.how_it_ended()


def test_the_last_line_of_its_pipe_is_the_reason(start: Start) -> None:
    child = start(SAY.format(b"an older one\nno such device\n") + "raise SystemExit(78)")
    assert ended(child) == "the worker-1 ended with status 78: no such device"


def test_without_a_reason_the_log_is_named(start: Start, tmp_path: Path) -> None:
    child = start("print('no luck'); raise SystemExit(9)")
    assert ended(child) == f"the worker-1 ended with status 9; see {tmp_path / 'worker-1.log'}"
    assert (tmp_path / "worker-1.log").read_text() == "no luck\n"


def test_one_that_is_killed_from_outside_is_told_by_the_signal(start: Start) -> None:
    child = start("import time; time.sleep(60)")
    os.kill(child.pid, 9)
    assert ended(child).startswith("the worker-1 ended by SIGKILL; see ")


def test_the_reason_of_an_earlier_run_is_forgotten(start: Start) -> None:
    child = start(SAY.format(b"once\n") + "raise SystemExit(1)")
    assert ended(child).endswith(": once")
    child.command = [sys.executable, "-c", "raise SystemExit(2)"]
    child.start(os.environ)
    assert ended(child).startswith("the worker-1 ended with status 2; see ")


def test_a_process_of_its_own_that_lives_on_does_not_hold_us_up(start: Start) -> None:
    """It holds the pipe open, so the end of the pipe never comes."""
    sleeper = "import subprocess as s; s.Popen(['sleep', '20'], pass_fds=(pipe,)); "
    child = start(SAY.format(b"gone\n") + sleeper + "raise SystemExit(3)")
    began = time.monotonic()
    assert ended(child) == "the worker-1 ended with status 3: gone"
    assert time.monotonic() - began < 15


def test_a_full_pipe_does_not_hold_up_the_child(start: Start) -> None:
    code = (
        "import os\nfor _ in range(9):\n try: os.write(pipe, b'x' * 65536)\n except OSError: pass"
    )
    setup = "import os; pipe = int(os.environ['LACUNA_EXIT_REASON_FD']); "
    assert "ended with status 0" in ended(start(setup + f"exec({code!r})"))


def test_no_descriptor_is_left_behind(start: Start) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    child = start("")
    before = count()
    for _ in range(5):
        ended(child)
        child.start(os.environ)
    assert count() == before
    child.wait(20)
    assert count() == before - 1


def test_one_that_ends_quickly_is_started_ever_later(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = start("")
    ended(child)
    assert not child.is_scheduled
    assert [child.schedule_restart() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert child.is_scheduled
    assert not child.is_due
    assert child.quick_ends == 7
    monkeypatch.setattr(module, "QUICK_SECONDS", 0.0)
    assert child.schedule_restart() == 0
    assert child.is_due
    assert child.quick_ends == 0
    child.start(os.environ)
    assert not child.is_scheduled


def test_one_that_does_not_stop_is_killed(start: Start) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); "
    child = start(code + "time.sleep(60)")
    while not child.log.read_text():
        time.sleep(0.01)
    child.terminate()
    child.wait(0.2)
    assert child.has_ended
