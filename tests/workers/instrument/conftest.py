"""Makes the model builders and layer formulas beside this file importable by the tests here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True, scope="session")
def one_thread_for_all(one_thread: None) -> None:
    """Tiny matrices gain nothing from more threads."""


@pytest.fixture
def ids() -> torch.Tensor:
    """Three documents of 24 tokens, longer than the tiny models' windows."""
    generator = torch.Generator().manual_seed(5)
    return torch.randint(3, 131, (3, 24), generator=generator)
