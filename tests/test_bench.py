"""Every benchmark can be started."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "bench").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_no_script_hides_a_package(script: Path) -> None:
    """A script's own folder comes first when it imports."""
    assert importlib.util.find_spec(script.stem) is None


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_says_what_it_does_and_starts_nothing(script: Path) -> None:
    answer = subprocess.run(
        [sys.executable, script, "--help"], capture_output=True, text=True, check=False, timeout=120
    )
    assert answer.returncode == 0, answer.stderr
    assert "usage:" in answer.stdout
