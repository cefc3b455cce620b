"""When reading stops, on made-up gradient norms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lacuna.evidence.sampling import DOCUMENTS
from workers.documents import DocumentSet
from workers.influence.influence import InfluenceResult
from workers.job import measurement


def offered(count: int) -> DocumentSet:
    ids = torch.arange(count * 40).reshape(count, 40)
    return DocumentSet(ids, leading_bos=False, source="random_tokens")


class Measured:
    """Norms of which each document's tail is heavier or lighter by `spread`."""

    def __init__(self, spread: float, count: int) -> None:
        rng = np.random.default_rng(0)
        self.norms = np.ones((count, 40))
        self.norms[:, 30:] *= np.exp(spread * rng.normal(size=(count, 1)))
        self.parts: list[tuple[int, int]] = []

    def __call__(self, start: int, stop: int) -> InfluenceResult:
        self.parts.append((start, stop))
        rows = self.norms[start:stop]
        return InfluenceResult(rows, rows.sum(axis=1), None, len(rows), 1.0)


def test_a_quiet_curve_takes_two_looks() -> None:
    measured = Measured(0.01, 200)
    found = measurement.read_documents(offered(200), measured, most=200)
    assert measured.parts == [(0, 32), (32, 48)]
    assert found.sampled.reason == "narrow"
    assert found.influence.norms.shape == (48, 40)
    assert found.influence.seconds == 2.0
    assert len(found.documents.ids) == 48
    assert found.sampled.half_width is not None
    assert found.sampled.half_width <= DOCUMENTS.target


def test_a_loud_one_takes_all_that_it_may() -> None:
    measured = Measured(3.0, 200)
    found = measurement.read_documents(offered(200), measured, most=70)
    assert measured.parts == [(0, 32), (32, 48), (48, 64), (64, 70)]
    assert found.sampled.reason == "budget"
    assert found.sampled.half_width is not None
    assert found.sampled.needed is not None
    assert found.sampled.half_width > DOCUMENTS.target
    assert found.sampled.needed > 70


@pytest.mark.parametrize("there", [1, 20, 32, 40])
def test_what_there_is_no_more_of_is_said(there: int) -> None:
    measured = Measured(3.0, there)
    found = measurement.read_documents(offered(there), measured, most=64)
    assert measured.parts[-1][1] == len(found.documents.ids) == there
    assert found.sampled.reason == "exhausted"
    assert (found.sampled.half_width is None) == (there < 12)


def test_a_fixed_number_is_read_at_once() -> None:
    measured = Measured(3.0, 50)
    found = measurement.read_documents(offered(50), measured, most=None)
    assert measured.parts == [(0, 50)]
    assert found.sampled.reason == "fixed"
    assert found.sampled.at_double == pytest.approx(
        found.sampled.half_width / np.sqrt(2),
        rel=1e-4,  # type: ignore[operator]
    )
