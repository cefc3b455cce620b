"""POST /v1/calibrations over HTTP, and back into a placement."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from lacuna.contract.calibrations import Calibration


def labelled(count: int = 200) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    scores = rng.uniform(0.5, 0.9, count)
    truth = rng.random(count) < (scores - 0.5) / 0.4
    return {
        "scores": scores.tolist(),
        "labels": truth.tolist(),
        "questions": [f"q{i // 5}" for i in range(count)],
    }


async def test_fitted_and_passed_back(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/calibrations", json=labelled())
    assert answer.status_code == 200
    fitted = Calibration.model_validate_json(answer.content)
    assert fitted.reliability.questions == 40
    chunks = [
        {"id": "a", "tokens": 30, "relevance": 0.55},
        {"id": "b", "tokens": 30, "relevance": 0.85},
    ]
    body = {"density": [1, 2], "chunks": chunks, "calibration": answer.json()}
    placed = (await client.post("/v1/placements", json=body)).json()
    assert placed["order"] == ["a", "b"]
    assert placed["relevance"]["by_length"] is True


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"labels": [True]}, "labels", "`labels` has 1 entries"),
        ({"scores": [0.1] * 30, "labels": [True] * 30, "questions": None}, "labels", "at least 20"),
        ({"relevance_scale": "distance"}, "labels", "direction"),
        ({"family": "spline"}, "family", "must be"),
        ({"higher": True}, "higher", "unknown field"),
    ],
)
async def test_refusals(
    client: httpx.AsyncClient, change: dict[str, Any], field: str, words: str
) -> None:
    answer = await client.post("/v1/calibrations", json=labelled() | change)
    assert answer.status_code == 422
    problem = answer.json()
    assert words in str(problem)
    assert problem["errors"][0]["field"] == field


@pytest.mark.parametrize(
    "change",
    [
        {"x": [1.0]},
        {"x": [1.0, 0.0]},
        {"family": "isotonic", "x": [1.0, 1.0], "y": [0.1, 0.2]},
        {"family": "isotonic", "x": [1.0, 2.0], "y": [0.1, 1.2]},
    ],
)
async def test_a_map_that_is_none_is_refused(
    client: httpx.AsyncClient, change: dict[str, Any]
) -> None:
    fitted = (await client.post("/v1/calibrations", json=labelled())).json()
    chunks = [{"id": "a", "tokens": 30, "relevance": 0.55}]
    body = {"density": [1, 2], "chunks": chunks, "calibration": fitted | change}
    answer = await client.post("/v1/placements", json=body)
    assert answer.status_code == 422
