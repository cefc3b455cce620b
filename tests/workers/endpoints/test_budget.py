"""Budgets are kept to whatever the order of answers; estimates are upper bounds of plain runs."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacuna.contract.errors import (
    BudgetSpent,
)
from tests.workers.endpoints.fake_dialects import DIALECTS
from tests.workers.endpoints.fake_model import FakeModel
from tests.workers.endpoints.harness import endpoint_of, question, reader_of
from workers.endpoints.budget import Budget, Limits, Reservation, estimate

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


@pytest.mark.parametrize("dialect", ["vllm", "openai", "anthropic"])
def test_a_plain_run_costs_what_was_estimated_or_less(dialect: str) -> None:
    with (
        DIALECTS[dialect](FakeModel()) as server,
        reader_of(server, input_price=2.0, output_price=6.0) as reader,
    ):
        asked = [question(reader.form, 0.5, fact=i, words=300) for i in range(40)]
        length = max(reading.prompt_tokens for reading in reader.read(asked) if reading)
        before = estimate(
            reader.endpoint,
            answers=40,
            length=length,
            rung=reader.rung,
            answer_tokens=8 if reader.rung == "text" else 1,
        )
        spent = reader.budget.spent
    assert spent.calls <= before.calls <= spent.calls + 60
    assert spent.prompt_tokens <= before.prompt_tokens <= spent.prompt_tokens + 6000
    assert spent.generated_tokens <= before.generated_tokens + 60
    assert reader.budget.money <= before.cost <= reader.budget.money * 2


def test_minutes_follow_concurrency_and_requests_per_minute() -> None:
    with DIALECTS["openai"](FakeModel()) as server:
        slow = endpoint_of(server, concurrency=4, requests_per_minute=10)
        fast = endpoint_of(server, concurrency=4)
    asked = {"answers": 540, "length": 1000, "rung": "first_token"}
    assert estimate(slow, **asked).minutes == pytest.approx(60)  # type: ignore[arg-type]
    assert estimate(fast, **asked).minutes == pytest.approx(5)  # type: ignore[arg-type]


def test_an_estimate_names_the_limit_that_it_exceeds() -> None:
    with DIALECTS["openai"](FakeModel()) as server:
        endpoint = endpoint_of(server, input_price=1.0)
    one = estimate(endpoint, answers=100, length=1000, rung="answer")
    assert one.exceeds(Limits()) is None
    assert "160 calls" in (one.exceeds(Limits(calls=159)) or "")
    assert "tokens" in (one.exceeds(Limits(tokens=100_000)) or "")
    assert "cost" in (one.exceeds(Limits(money=0.1)) or "")
    assert one.exceeds(Limits(calls=160, tokens=107_000, money=0.107)) is None
