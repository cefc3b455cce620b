"""How a worker process puts itself together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.settings import Settings
from service.store.keys import QueueName
from workers.__main__ import queues_of
from workers.faults import EXIT_CONFIG


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


def test_a_worker_whose_device_is_not_there_says_so_and_does_not_start(tmp_path: Path) -> None:
    nobody = {"CUDA_VISIBLE_DEVICES": "", "LACUNA_REDIS_URL": "redis://127.0.0.1:9/0"}
    done = subprocess.run(
        [sys.executable, "-m", "workers"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **nobody, "LACUNA_DEVICE": "cuda", "LACUNA_DATA_DIR": str(tmp_path)},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == EXIT_CONFIG
    (line,) = done.stderr.splitlines()
    said = json.loads(line)
    assert said["level"] == "critical"
    assert said["message"].startswith("LACUNA_DEVICE is cuda, but ")
    assert "traceback" not in said
