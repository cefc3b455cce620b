"""Where a curve may be read: lengths at which its advice holds."""

from __future__ import annotations

import numpy as np
import pytest

from lacuna.contract.placements import PlacementRequest
from lacuna.placement.answer import place
from lacuna.placement.curve import PlacementCurve, of_density
from lacuna.placement.document_curves import prepare


def measured(tokens: int) -> PlacementCurve:
    rng = np.random.default_rng(0)
    norms = np.linspace(0.1, 3.0, tokens) ** 2 * rng.lognormal(0, 0.2, (64, tokens))
    return PlacementCurve(
        source="measured", basis="measured", level="medium", documents=prepare(norms), length=tokens
    )


def request(prompt: int) -> PlacementRequest:
    each = prompt // 5
    chunks = [{"id": str(i), "tokens": each, "relevance": 0.9 - i / 10} for i in range(5)]
    return PlacementRequest.model_validate({"density": [1.0], "chunks": chunks})


@pytest.mark.parametrize(
    ("prompt", "decision", "warned"),
    [(1_000, "reorder", False), (800, "reorder", False), (1_250, "reorder", False),
     (500, "reorder", True), (8_000, "reorder", True), (490, "undecided", False),
     (8_010, "undecided", False)],
)  # fmt: skip
def test_advice_holds_near_the_length_of_the_profile(
    prompt: int, decision: str, warned: bool
) -> None:
    answer = place(request(prompt), measured(1_000))
    assert answer.advice.decision == decision
    assert any("its sign holds" in warning for warning in answer.warnings) == warned
    if decision == "undecided":
        assert answer.order == ["0", "1", "2", "3", "4"]
        assert "measure nearer" in answer.advice.reason


def test_a_density_has_no_length() -> None:
    curve = of_density([0.2, 1.0, 3.0])
    assert curve.unsure_at(1) is None
    assert curve.length_warnings(1_000_000) == []
