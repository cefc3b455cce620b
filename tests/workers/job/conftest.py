"""Small subjects of a measurement."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lacuna.contract.profile_requests import ProfileRequest
from workers.documents import DocumentSet
from workers.instrument import inspect
from workers.job.measurement import ProfileTask
from workers.models.loaded import LoadedModel

sys.path.insert(0, str(Path(__file__).parents[1] / "instrument"))


@pytest.fixture
def subject(one_thread: None, as_loaded: Callable[..., LoadedModel]) -> Callable[..., ProfileTask]:
    """A tiny model of a family with `count` documents of `length` random tokens."""
    from tiny_families import build

    def make(family: str = "llama", count: int = 3, length: int = 24, **fields: Any) -> ProfileTask:
        generator = torch.Generator().manual_seed(5)
        ids = torch.randint(3, 131, (count, length), generator=generator)
        model = build(family)
        return ProfileTask(
            loaded=as_loaded(model),
            instrumentation=inspect(model),
            documents=DocumentSet(ids, leading_bos=False, source="random_tokens"),
            request=ProfileRequest(model="local:tiny", sequence_length=length, **fields),
            on_progress=lambda _share, _what: None,
            check=lambda: None,
        )

    return make
