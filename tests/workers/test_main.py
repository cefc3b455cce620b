"""How a worker process puts itself together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from service.settings import Settings
from service.store.keys import QueueName
from workers.__main__ import _secrets, queues_of


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


def test_every_secret_of_the_settings_is_masked() -> None:
    settings = Settings(
        redis_url=SecretStr("redis://user:p%40ssw0rd@host:6379/0"),
        api_keys=("0123456789abcdef",),
        hub_token=SecretStr("hf_token"),
    )
    assert {"p%40ssw0rd", "p@ssw0rd", "0123456789abcdef", "hf_token"} <= set(_secrets(settings))


def test_the_loop_needs_no_torch() -> None:
    program = (
        "import sys, workers.__main__, workers.loop, workers.lease, workers.faults;"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, env=os.environ, check=False)
    assert done.returncode == 0
