"""A child process: what is learnt from its end, and when it is started again."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.local import child as module
from service.local.child import Child, rotate

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


def test_a_log_is_bounded_while_its_writer_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOG_BYTES", 1_000)
    log = tmp_path / "x.log"
    rotate(log)  # there is none yet
    with log.open("ab", buffering=0) as writer:
        for number in range(5):
            writer.write(b"%d" % number + b"x" * 1_500)
            rotate(log)
        writer.write(b"last\n")
    assert log.read_bytes() == b"last\n"
    assert log.with_name("x.log.1").read_bytes() == b"4" + b"x" * 1_500
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.log", "x.log.1"]


def test_a_child_may_keep_a_descriptor_open(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    child = Child("c", [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "c.log")
    child.start(os.environ, [writer])
    os.close(writer)
    os.set_blocking(reader, False)
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    child.terminate()
    child.wait(20)
    assert os.read(reader, 1) == b""
    os.close(reader)
