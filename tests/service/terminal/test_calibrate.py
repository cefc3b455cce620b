"""`lacuna calibrate`, and what `place` does with its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

CHUNKS = "a, 300, 2.5\nb, 60, 0.5\nc, 150, -1.0\n"


@pytest.fixture
def labels(tmp_path: Path) -> str:
    """Logits of a retriever whose odds are half as certain as they say."""
    rng = np.random.default_rng(0)
    scores = rng.normal(0, 2, 400)
    truth = rng.random(400) < 1 / (1 + np.exp(-scores / 2))
    rows = [
        f"{score:.4f},{int(hit)},q{i // 4}"
        for i, (score, hit) in enumerate(zip(scores, truth, strict=True))
    ]
    path = tmp_path / "labels.csv"
    path.write_text("score,label,question\n" + "\n".join(rows))
    return str(path)


def test_from_labels_to_a_placement(lacuna: Any, tmp_path: Path, labels: str) -> None:
    path = tmp_path / "calibration.json"
    said = lacuna.prints("calibrate", labels, "--output", str(path))
    assert "calibration: logistic, from 400 labels of 100 questions" in said
    assert "off on average, 95% interval" in said
    result = lacuna(
        "place", "-", "--density", "1,2,3", "--calibration", str(path), "--json", stdin=CHUNKS
    )
    answer = json.loads(result.stdout)
    assert answer["relevance"]["basis"] == "calibration"
    calibration = json.loads(path.read_text())
    slope = calibration["y"][1] / calibration["x"][1]
    assert slope == pytest.approx(0.5, abs=0.15)


def test_distances_fall(lacuna: Any, tmp_path: Path, labels: str) -> None:
    turned = tmp_path / "turned.csv"
    lines = Path(labels).read_text().splitlines()
    rows = [line.split(",", 1) for line in lines[1:]]
    turned.write_text("\n".join([lines[0], *(f"{-float(a)},{b}" for a, b in rows)]))
    up = json.loads(lacuna("calibrate", labels, "--json").stdout)
    down = json.loads(lacuna("calibrate", str(turned), "--scale", "distance", "--json").stdout)
    assert down["y"] == pytest.approx(up["y"])
    assert "is the direction right?" in lacuna.fails(1, "calibrate", str(turned))


def test_faults_are_one_clear_line(lacuna: Any, tmp_path: Path, labels: str) -> None:
    assert "line 2: score" in lacuna.fails(2, "calibrate", "-", stdin="score,label\nx,1")
    assert "at least 20" in lacuna.fails(1, "calibrate", "-", stdin="score,label\n1,1\n2,0")
    assert "--scale: must be" in lacuna.fails(2, "calibrate", labels, "--scale", "cosine")
    nowhere = str(tmp_path / "none" / "x.json")
    assert "cannot write" in lacuna.fails(2, "calibrate", labels, "--output", nowhere)


def test_a_file_of_somebody_else_is_never_overwritten(
    lacuna: Any, tmp_path: Path, labels: str
) -> None:
    path = tmp_path / "calibration.json"
    for mine in ('{"x": 1}', "my own"):
        path.write_text(mine)
        line = lacuna.fails(2, "calibrate", labels, "--output", str(path))
        assert "is there already" in line
        assert path.read_text() == mine
    path.unlink()
    for _ in range(2):  # what it wrote itself may be written again
        assert "calibration: " in lacuna.prints("calibrate", labels, "--output", str(path))
