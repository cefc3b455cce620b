"""Estimates: what they count, how they grow, and when a budget is refused before any call."""

from __future__ import annotations

from typing import Any

import pytest

from lacuna.contract.endpoints import EndpointBudget
from lacuna.contract.errors import BudgetSpent
from lacuna.contract.profile_requests import ProfileRequest
from lacuna.evidence.sampling import PROBABILITIES
from service.endpoints import costs
from service.endpoints.table import Endpoint
from workers.recall import measure


def endpoint(**fields: Any) -> Endpoint:
    given = {
        "name": "prod",
        "base_url": "http://127.0.0.1:1/v1",
        "model": "m",
        "context_length": 8192,
        "input_price": 2.0,
        "output_price": 6.0,
    }
    return Endpoint.model_validate({**given, **fields})


def request(**fields: Any) -> ProfileRequest:
    given = {"model": "endpoint:prod", "sequence_length": 1000, "recall": {"groups": 24}}
    return ProfileRequest.model_validate({**given, **fields})


def test_the_constants_are_those_of_the_measurement() -> None:
    assert costs.REPEATED_PROMPTS == measure.REPEATED_PROMPTS
    assert (PROBABILITIES.start, PROBABILITIES.step) == (costs.LEAST_AUTO, costs.STEP_AUTO)


def test_calls_tokens_and_money_of_a_plain_run() -> None:
    found = costs.least_cost(request(), endpoint())
    long, short, counted = (24 * 5 + 8) * 5, 2 * 24 * 5, 24 * (1 + 15 + costs.SEGMENTS)
    assert found.calls == costs.LADDER_CALLS + long + short + counted
    assert found.prompt_tokens == costs.LADDER_PROMPT_TOKENS + long * 1000 + short * 96
    assert found.cost == pytest.approx(
        (2 * found.prompt_tokens + 6 * found.generated_tokens) / 1e6, rel=1e-5
    )


def test_more_is_never_cheaper() -> None:
    few, one = costs.estimate(request(), endpoint()), endpoint()
    auto = costs.estimate(request(recall={}), one)
    assert auto.least == few.least
    assert auto.most.calls > few.most.calls >= few.least.calls
    assert few.most.cost > few.least.cost
    two = costs.estimate(request(recall={"probes": ["facts", "pairs"], "groups": 24}), one)
    assert two.least.prompt_tokens > 1.9 * few.least.prompt_tokens
    assert costs.least_cost(request(sequence_length=2000), one).cost > few.least.cost


def test_minutes_follow_concurrency_and_requests_per_minute() -> None:
    calls = costs.least_cost(request(), endpoint()).calls
    fast = costs.least_cost(request(), endpoint(concurrency=4)).minutes
    assert fast == pytest.approx(calls / 4 * 2 / 60, rel=0.01)
    slow = costs.least_cost(request(), endpoint(concurrency=4, requests_per_minute=10)).minutes
    assert slow == pytest.approx(calls / 10, rel=1e-4)


def test_a_budget_names_the_limit_that_does_not_reach() -> None:
    found = costs.least_cost(request(), endpoint())
    tokens = found.prompt_tokens + found.generated_tokens
    fits = {"max_calls": found.calls, "max_tokens": tokens, "max_cost": found.cost}
    assert costs.beyond(found, EndpointBudget.model_validate(fits)) is None
    assert costs.beyond(found, None) is None
    for name, value, words in (
        ("max_calls", found.calls - 1, "calls are needed"),
        ("max_tokens", tokens - 1, "tokens are needed"),
        ("max_cost", found.cost / 2, "the cost is"),
    ):
        budget = EndpointBudget.model_validate({**fits, name: value})
        with pytest.raises(BudgetSpent, match=words) as refused:
            costs.refuse_beyond(found, budget)
        assert refused.value.field == "budget"
