"""Makes the dense rivals in this folder importable, and finds the papers' data."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def reference() -> Path:
    """The folder with the papers' published configurations and curves.

    It is not part of this repository: LACUNA_REFERENCE_DIR, or `shared/reference` next to it.
    """
    default = Path(__file__).parents[3].parent / "shared" / "reference"
    folder = Path(os.environ.get("LACUNA_REFERENCE_DIR", default))
    if not (folder / "rollouts").is_dir():
        pytest.skip("the published reference data is not present (LACUNA_REFERENCE_DIR)")
    return folder
