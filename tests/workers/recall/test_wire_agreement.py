from __future__ import annotations

import numpy as np

from workers.recall.wire import MIN_GROUPS, rank_agreement

SHAPE = np.array([0.5, 0.2, 0.1, 0.15, 0.3, 0.6])


def test_equal_orders_agree_and_opposite_ones_do_not() -> None:
    draw = np.random.default_rng(0)
    recall = SHAPE + draw.normal(0, 0.05, (64, 6))
    same = rank_agreement(recall, 2 * SHAPE + draw.normal(0, 0.05, (64, 6)))
    assert same is not None
    assert same.low > 0.7
    assert same.value > 0.9
    other = rank_agreement(recall, -SHAPE + draw.normal(0, 0.05, (64, 6)))
    assert other is not None
    assert other.high < -0.7


def test_a_flat_curve_says_nothing() -> None:
    draw = np.random.default_rng(1)
    found = rank_agreement(draw.normal(0.5, 0.1, (64, 6)), SHAPE + np.zeros((64, 6)))
    assert found is not None
    assert found.high - found.low > 0.8


def test_documents_are_drawn_too() -> None:
    draw = np.random.default_rng(2)
    recall = SHAPE + draw.normal(0, 0.01, (64, 6))
    # Documents that disagree among themselves: their mean has the order, few of them do.
    rows = SHAPE + draw.normal(0, 1.0, (8, 1, 6)) * np.ones((1, 64, 1))
    wavering = rank_agreement(recall, rows)
    sure = rank_agreement(recall, np.broadcast_to(rows.mean(axis=0), (64, 6)))
    assert wavering is not None
    assert sure is not None
    assert wavering.high - wavering.low > sure.high - sure.low + 0.3


def test_few_groups_or_places_give_nothing() -> None:
    rows = np.random.default_rng(3).uniform(size=(MIN_GROUPS, 6))
    assert rank_agreement(rows, rows) is not None
    assert rank_agreement(rows[1:], rows[1:]) is None
    assert rank_agreement(rows[:, :2], rows[:, :2]) is None
    assert rank_agreement(rows, np.ones_like(rows)) is None
