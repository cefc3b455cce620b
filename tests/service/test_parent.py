"""A process whose parent is killed ends too."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHILD = """
import os, signal, sys, time
from service.parent import end_with_it
{before}
end_with_it(int(os.environ["LACUNA_EXIT_REASON_FD"]), grace={grace})
print("watches", flush=True)
time.sleep(60)
"""
PARENT = """
import os, sys, time
from pathlib import Path
from service.local.child import Child
child = Child("c", [sys.executable, "-c", sys.argv[1]], Path(sys.argv[2]))
child.start(os.environ, [int(sys.argv[3])])
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("before", "grace", "kill_at"),
    [
        ("", 50, "watches"),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", 0.2, "watches"),
        ("time.sleep(1)", 50, ""),  # before it looks for the first time
    ],
    ids=["sigterm", "stubborn", "early"],
)
def test_it_ends_when_its_parent_is_killed(
    tmp_path: Path, before: str, grace: float, kill_at: str
) -> None:
    log = tmp_path / "log"
    # The kernel says when the child has ended: its end of this pipe is closed.
    ended, held = os.pipe()
    child = CHILD.format(before=before, grace=grace)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, child, str(log), str(held)],
        stdout=subprocess.PIPE,
        pass_fds=[held],
        cwd=Path(__file__).parents[2],
    )
    os.close(held)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    try:
        deadline = time.monotonic() + 30
        while kill_at not in log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert select.select([ended], [], [], 0)[0] == []
        parent.kill()
        parent.wait()
        assert select.select([ended], [], [], 30)[0] == [ended]
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
        os.close(ended)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
