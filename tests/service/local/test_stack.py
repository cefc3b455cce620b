"""The local service as a supervisor; its main line is in tests/e2e."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from service.local import child as child_module
from service.local import stack as stack_module
from service.local.child import Child
from service.local.stack import Stack, StackError
from service.settings import Settings

SAY = (
    "import os; os.write(int(os.environ['LACUNA_EXIT_REASON_FD']), b'no luck\\n'); "
    "raise SystemExit({})"
)


def stack_of(name: str, folder: Path, code: str) -> Stack:
    """A stack of one process, started."""
    stack = Stack(Settings(data_dir=folder))
    stack._children = [Child(name, [sys.executable, "-c", code], folder / f"{name}.log")]
    stack._children[0].start({})
    return stack


def test_a_gateway_that_keeps_ending_ends_the_service_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(child_module, "LONGEST_PAUSE", 0.1)
    stack = stack_of("gateway", tmp_path, SAY.format(5))
    with pytest.raises(StackError, match=r"^the gateway ended with status 5: no luck$"):
        stack.supervise(pause=0.2)
    said = "the gateway ended with status 5: no luck; starting it again in 0 s\n"
    assert capsys.readouterr().out == 2 * said


def test_a_worker_that_requests_end_is_started_again_however_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "LONGEST_PAUSE", 0.1)
    stack = stack_of("worker-1", tmp_path, "raise SystemExit(9)")
    (worker,) = stack._children
    pids = {stack.pids["worker-1"]}
    deadline = time.monotonic() + 60
    while len(pids) < 6:
        assert time.monotonic() < deadline
        if worker.has_ended:
            stack._start_again(worker)
        pids.add(stack.pids["worker-1"])
        time.sleep(0.01)
    stack._stop_children()


def test_a_worker_that_is_started_again_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stack = stack_of("worker-1", tmp_path, SAY.format(78))
    (worker,) = stack._children
    while not worker.has_ended:
        time.sleep(0.01)
    for _ in range(2):
        stack._start_again(worker)
    said = "the worker-1 ended with status 78: no luck; starting it again in 1 s\n"
    assert capsys.readouterr().out == said
    with pytest.raises(StackError, match=r": no luck$"):
        stack.check()
    stack._stop_children()


def test_a_device_that_is_not_there_ends_the_start_with_the_workers_own_words(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(StackError, match="worker-1 ended with status 78: LACUNA_DEVICE is cuda"):
        Stack(Settings(data_dir=short_dir, device="cuda")).__enter__()


def test_a_service_that_never_gets_ready_says_what_is_missing(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_module, "READY_SECONDS", 25.0)
    stack = Stack(Settings(data_dir=short_dir))
    stack._children[1].command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(StackError, match="not ready after 25 s: no live worker; see "):
        stack.__enter__()
