"""How a worker process puts itself together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.settings import Settings
from service.store.keys import QueueName
from workers.__main__ import queues_of


@pytest.mark.parametrize(
    ("queue", "device", "served"),
    [
        ("auto", "cpu", ("cpu",)),
        ("auto", "cuda:0", ("gpu", "cpu")),
        ("cpu", "cuda:0", ("cpu",)),
        ("gpu", "cpu", ("gpu",)),
    ],
)
def test_which_queues_a_worker_serves(
    queue: str, device: str, served: tuple[QueueName, ...]
) -> None:
    assert queues_of(Settings.model_validate({"queue": queue}), device) == served


def test_the_loop_needs_no_torch() -> None:
    program = (
        "import sys, workers.__main__, workers.loop, workers.lease, workers.faults;"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, env=os.environ, check=False)
    assert done.returncode == 0
