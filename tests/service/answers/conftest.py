"""Finds the papers' data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def reference() -> Path:
    """The folder with the papers' published configurations and curves.

    It is not part of this repository: LACUNA_REFERENCE_DIR, or `shared/reference` beside it.
    """
    beside = Path(__file__).parents[3].parent / "shared" / "reference"
    folder = Path(os.environ.get("LACUNA_REFERENCE_DIR", beside))
    if not (folder / "rollouts").is_dir():
        pytest.skip("the published reference data is not present (LACUNA_REFERENCE_DIR)")
    return folder
