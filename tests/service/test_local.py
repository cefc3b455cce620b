"""The local service as a supervisor; its main line is in tests/e2e."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from service.local import Stack, StackError
from service.settings import Settings


def test_a_process_that_keeps_dying_ends_the_service_with_its_last_words(tmp_path: Path) -> None:
    stack = Stack(Settings(data_dir=tmp_path))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker-1.log").write_text("of an earlier run\n")
    stack._commands = {"worker-1": [sys.executable, "-c", "print('no luck'); raise SystemExit(5)"]}
    stack._start("worker-1")
    with pytest.raises(StackError, match=r"worker-1 ended with status 5: no luck$"):
        stack.supervise(pause=0.2)
