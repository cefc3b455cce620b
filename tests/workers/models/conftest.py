from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workers.models.loaded import LoadOptions


@pytest.fixture
def save(
    tmp_path: Path, tiny_model: Callable[..., Any], make_tokenizer: Callable[..., Any]
) -> Callable[..., Path]:
    """Save a tiny model with its tokenizer as `models/NAME` below the test's folder."""

    def make(name: str = "tiny", family: str = "llama", **changes: Any) -> Path:
        folder = tmp_path / "models" / name
        tiny_model(family, **changes).save_pretrained(folder)
        make_tokenizer("<s> $A").save_pretrained(folder)
        return folder

    return make


@pytest.fixture
def options(tmp_path: Path) -> LoadOptions:
    """Everything below the test's own folder, on the CPU, and a hub that nobody serves."""
    return LoadOptions(
        data_dir=tmp_path / "data",
        model_dir=tmp_path / "models",
        device="cpu",
        hub_endpoint="http://127.0.0.1:9",
        hub_cache=tmp_path / "hub",
    )
