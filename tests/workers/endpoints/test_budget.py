"""Budgets are kept to whatever the order of answers."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacuna.contract.errors import BudgetSpent
from workers.endpoints.budget import Budget, Limits, Reservation

STEPS = st.lists(
    st.tuples(st.integers(1, 500), st.integers(1, 20), st.floats(0, 1), st.integers(0, 2)),
    max_size=60,
)


@given(STEPS, st.integers(0, 40), st.integers(0, 8000), st.floats(0, 0.02))
def test_limits_hold_if_reservations_are_upper_bounds(
    steps: list[tuple[int, int, float, int]], calls: int, tokens: int, money: float
) -> None:
    budget = Budget(Limits(calls, tokens, money), 1.0, 3.0)
    open_: list[tuple[Reservation, float]] = []
    for prompt, generated, share, end in steps:
        with contextlib.suppress(BudgetSpent):
            open_.append((budget.reserve(prompt, generated), share))
        if end and open_:
            made, part = open_.pop(0)
            if end == 1:
                used = {"prompt_tokens": int(made.prompt_tokens * part), "generated_tokens": 1}
                budget.settle(made, used)
            else:
                budget.release(made)
        spent = budget.spent
        assert spent.calls <= calls
        assert spent.prompt_tokens + spent.generated_tokens <= tokens
        assert budget.money <= money + 1e-12


def test_what_is_not_said_counts_as_reserved() -> None:
    budget = Budget()
    budget.settle(budget.reserve(100, 8), {"prompt_tokens": None})
    assert (budget.spent.prompt_tokens, budget.spent.generated_tokens) == (100, 8)


def test_equal_reservations_are_two() -> None:
    budget = Budget(Limits(tokens=220))
    first, second = budget.reserve(100, 10), budget.reserve(100, 10)
    budget.release(first)
    budget.reserve(100, 10)
    with pytest.raises(BudgetSpent, match="220 tokens"):
        budget.reserve(1, 0)
    budget.release(second)
    budget.reserve(100, 10)
