"""Real failures of a real device, sorted. Each runs in a process of its own: the device is hurt."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PROGRAM = """
import torch
from workers.faults import Fatal, classify
try:
    {trouble}
    torch.cuda.synchronize()
except Exception as error:
    verdict = classify(error)
    print(verdict.exit_code if isinstance(verdict, Fatal) else verdict.code, flush=True)
import os; os._exit(0)
"""


def verdict(trouble: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(trouble=trouble)],
        cwd=Path(__file__).parents[2],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.strip()


def test_too_large_a_tensor_is_out_of_memory() -> None:
    assert verdict("torch.empty(2**50, dtype=torch.uint8, device='cuda')") == "out_of_memory"


def test_a_device_side_assert_ends_the_process() -> None:
    trouble = "torch.zeros(4, device='cuda')[torch.tensor([9], device='cuda')].sum().item()"
    assert verdict(trouble) == "81"


def test_an_error_that_spares_the_device_fails_the_job_alone() -> None:
    trouble = "torch.ones(2, 3, device='cuda') @ torch.ones(2, 3, device='cuda')"
    assert verdict(trouble) == "internal_error"
