from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from workers.recall import measure, probes
from workers.recall.layout import place
from workers.recall.result import Controls


@pytest.mark.parametrize("name", list(probes.PROBES))
def test_the_closed_book_has_no_fact_and_the_oracle_one(
    name: str, planted: Callable[..., Any]
) -> None:
    groups = probes.PROBES[name](3, 4, 0, 0)
    reader = planted(groups, lambda *_: 0.5)
    for layout in place(groups, 500, reader.count, "last"):
        facts = [item.text for item in layout.group.items]
        closed = measure.closed_book(layout, "plain", "last")
        alone = measure.oracle(layout, "plain", "last")
        for i in range(4):
            assert isinstance(closed[i].prompt, str)
            assert isinstance(alone[i].prompt, str)
            assert not any(fact in closed[i].prompt for fact in facts)
            assert [fact in alone[i].prompt for fact in facts] == [j == i for j in range(4)]
            assert closed[i].answer == alone[i].answer == layout.group.items[i].answer
            pieces = [piece for piece in layout.group.filler[:5] if len(piece) > 20]
            assert not any(piece in alone[i].prompt for piece in pieces)


def test_means_leave_out_what_could_not_be_read() -> None:
    found = Controls(
        closed_book=np.array([[0.1, np.nan], [0.3, 0.2]]),
        oracle=np.array([[0.5, 0.7], [np.nan, 0.9]]),
        repeated=np.array([[0.5, 0.6], [np.nan, 0.1]]),
    )
    assert found.floor == pytest.approx(0.2)
    assert found.ceiling == pytest.approx(0.7)
    assert found.repeat_difference == pytest.approx(0.1)
    assert found.joined(found).closed_book.shape == (4, 2)


def test_repeats_are_spread_over_all_prompts() -> None:
    assert measure.repeats(range(48), 8) == [0, 6, 12, 18, 24, 30, 36, 42]
    assert measure.repeats(range(3), 8) == [0, 1, 2]
