"""What a measurement of an endpoint will take: calls, tokens, money, minutes, before it starts.

The gateway answers it to `dry_run` and refuses by it; the worker refuses by it again, once it knows
how the server counts and answers.
"""

from __future__ import annotations

import math
from typing import Protocol

from lacuna.contract.base import rounded
from lacuna.contract.endpoints import EndpointCost, EndpointEstimate, Rung
from lacuna.contract.errors import BudgetSpent
from lacuna.contract.experiment_requests import ExperimentRequest, prompts
from lacuna.contract.experiment_requests import prompt_tokens as experiment_tokens
from lacuna.contract.profile_requests import ProfileRequest, RecallRequest
from service.endpoints.table import Endpoint

COUNTED = 8
"""Prompts of an experiment that are counted where counting is paid for."""
SECONDS_PER_CALL = 2.0
"""Assumed where no call was timed yet: a hosted model, or a small one near by, at 1,000 tokens."""
LADDER_CALLS = 60
"""Calls that finding the readers takes at most, on servers where nothing had to be retried."""
LADDER_PROMPT_TOKENS = 6_000
"""Prompt tokens of those calls."""
SHORT_PROMPT = 96
"""Tokens of a question without context, or with its fact alone; chat template included."""
REPEATED_PROMPTS = 8
"""Prompts that are read twice at each look, with all their questions."""
SEGMENTS = 20
"""Pieces of filler that are counted for one group, about."""
TEXT_TOKENS = 8
"""Tokens that a reply may have where only texts are compared."""
LEAST_AUTO, STEP_AUTO = 24, 8
"""Groups that `auto` reads at first, and adds at each look."""


def estimate(request: ProfileRequest, endpoint: Endpoint) -> EndpointEstimate:
    """What a request takes at least and at most.

    Args:
        request: of an endpoint.
        endpoint: for prices, concurrency and pace.
    """
    least, most = least_cost(request, endpoint), most_cost(request, endpoint)
    return EndpointEstimate(
        endpoint=endpoint.name,
        least=least,
        most=most,
        refused=beyond(least, request.budget),
    )


class Budget(Protocol):
    """Limits of a request; None: no limit of that kind."""

    @property
    def max_calls(self) -> int | None:
        """Most HTTP requests."""

    @property
    def max_tokens(self) -> int | None:
        """Most prompt and generated tokens, added up."""

    @property
    def max_cost(self) -> float | None:
        """Most money, in the currency of the settings' prices."""


def refuse_beyond(
    cost: EndpointCost,
    budget: Budget | None,
    instead: str = "measure fewer groups or a shorter length",
) -> None:
    """Refuse what a budget does not allow.

    Args:
        cost: what is needed.
        budget: of the request.
        instead: what else would help.

    Raises:
        BudgetSpent: names the limit and what is needed.
    """
    if (reason := beyond(cost, budget)) is not None:
        raise BudgetSpent(
            f"`budget`: {reason}: raise it, or {instead}",
            field="budget",
        )


def beyond(cost: EndpointCost, budget: Budget | None) -> str | None:
    """The first limit that a cost exceeds, in words; None if it fits."""
    if budget is None:
        return None
    tokens = cost.prompt_tokens + cost.generated_tokens
    if budget.max_calls is not None and cost.calls > budget.max_calls:
        return f"{cost.calls:,} calls are needed, the limit is {budget.max_calls:,}"
    if budget.max_tokens is not None and tokens > budget.max_tokens:
        return f"{tokens:,} tokens are needed, the limit is {budget.max_tokens:,}"
    if budget.max_cost is not None and cost.cost > budget.max_cost:
        return f"the cost is {cost.cost:.4g}, the limit is {budget.max_cost:g}"
    return None


def least_cost(
    request: ProfileRequest,
    endpoint: Endpoint,
    *,
    counts_by_usage: bool = False,
    rung: Rung = "first_token",
) -> EndpointCost:
    """With the fewest groups that the request allows.

    Args:
        request: of an endpoint.
        endpoint: for prices, concurrency and pace.
        counts_by_usage: whether counting tokens takes paid calls, for lack of a route that does it.
        rung: how answers are read; `text` generates a few tokens each.
    """
    asked = _recall(request)
    groups = min(LEAST_AUTO, asked.limit) if asked.groups == "auto" else asked.groups
    rung = "text" if asked.scoring == "text" else rung
    return _cost(request, endpoint, groups, 1, counts_by_usage=counts_by_usage, rung=rung)


def most_cost(request: ProfileRequest, endpoint: Endpoint) -> EndpointCost:
    """With the most groups, on a server that counts by paid calls and only writes text."""
    asked = _recall(request)
    looks = 1 + (asked.limit - LEAST_AUTO) // STEP_AUTO if asked.groups == "auto" else 1
    return _cost(request, endpoint, asked.limit, looks, counts_by_usage=True, rung="text")


def _recall(request: ProfileRequest) -> RecallRequest:
    assert request.recall is not None  # a request of an endpoint has it
    return request.recall


def _cost(
    request: ProfileRequest,
    endpoint: Endpoint,
    groups: int,
    looks: int,
    *,
    counts_by_usage: bool,
    rung: Rung,
) -> EndpointCost:
    asked, length = _recall(request), request.sequence_length
    k, probes = asked.depths, len(asked.probes)
    prompts = groups * k
    counted = probes * groups * (1 + 3 * k + SEGMENTS)
    return of_answers(
        endpoint,
        answers=probes * (prompts + min(prompts, looks * REPEATED_PROMPTS)) * k,
        length=length,
        rung=rung,
        answer_tokens=TEXT_TOKENS if rung == "text" else 1,
        short_answers=probes * 2 * prompts,
        counting_calls=counted,
        counting_tokens=32 * counted + probes * groups * length if counts_by_usage else 0,
    )


def of_experiment(request: ExperimentRequest, endpoint: Endpoint) -> EndpointCost:
    """What an experiment takes at most at the endpoint's prices and pace, by characters."""
    count = prompts(request)
    text = request.scoring not in ("auto", "log_probability")
    return of_answers(
        endpoint,
        answers=count,
        length=-(-experiment_tokens(request) // count),
        rung="text" if text else "first_token",
        answer_tokens=request.max_answer_tokens if text else 1,
        counting_calls=COUNTED + (1 if text else 2) * len(request.questions),
    )


def of_answers(
    endpoint: Endpoint,
    *,
    answers: int,
    length: int,
    rung: Rung,
    answer_tokens: int = 1,
    short_answers: int = 0,
    counting_calls: int = 0,
    counting_tokens: int = 0,
) -> EndpointCost:
    """Calls, tokens, cost and minutes of `answers` answers, finding the readers included.

    Args:
        endpoint: prices, concurrency and requests per minute come from here.
        answers: questions asked, each with a prompt of its own.
        length: tokens of each prompt.
        rung: `text` generates `answer_tokens`, the others one token.
        answer_tokens: tokens of an answer, or generated for one.
        short_answers: further questions, without context, of SHORT_PROMPT tokens.
        counting_calls: calls that count tokens.
        counting_tokens: their paid prompt tokens; 0 where the server has a route that counts.
    """
    asked = answers + short_answers
    calls = LADDER_CALLS + counting_calls + asked
    prompt_tokens = LADDER_PROMPT_TOKENS + counting_tokens + short_answers * SHORT_PROMPT
    prompt_tokens += answers * length
    if rung == "answer":
        prompt_tokens += asked * answer_tokens
    generated = calls + (asked * (answer_tokens - 1) if rung == "text" else 0)
    price = prompt_tokens * endpoint.input_price + generated * endpoint.output_price
    minutes = math.ceil(calls / endpoint.concurrency) * SECONDS_PER_CALL / 60
    if endpoint.requests_per_minute is not None:
        minutes = max(minutes, calls / endpoint.requests_per_minute)
    return EndpointCost(
        calls=calls,
        prompt_tokens=prompt_tokens,
        generated_tokens=generated,
        cost=rounded(price / 1e6),
        minutes=rounded(minutes),
    )
