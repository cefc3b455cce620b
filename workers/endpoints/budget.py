"""What a measurement of a served model may cost: estimated before, kept to while it runs.

Each call first reserves what it may use at most, as far as that is known; once it is answered, the
reservation is replaced by what the server says it used. A new call is made only if everything spent
and reserved stays within the limits. So the limits are exceeded, if at all, by the calls in flight
whose prompts turn out longer than expected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from lacuna.contract.errors import (
    BudgetSpent,
)
from workers.endpoints.settings import Endpoint
from workers.recall.reader import Rung

SECONDS_PER_CALL = 2.0
"""Assumed where no call was timed yet: a hosted model, or a small one near by, at 1,000 tokens."""
LADDER_CALLS = 60
"""Calls that finding the readers takes at most, on servers where nothing had to be retried."""
LADDER_PROMPT_TOKENS = 6_000
"""Prompt tokens of those calls."""
SHORT_PROMPT = 96
"""Tokens of a question without context, or with its fact alone; chat template included."""


@dataclass(frozen=True)
class Limits:
    """What a request allows; None: no limit of that kind."""

    calls: int | None = None
    """HTTP requests, retries included."""
    tokens: int | None = None
    """Prompt and generated tokens together."""
    money: float | None = None
    """In the currency of the endpoint's prices."""


@dataclass(frozen=True)
class Reservation:
    """Tokens that one call under way may use."""

    prompt_tokens: int
    generated_tokens: int


@dataclass
class Spent:
    """What was used so far; answers taken from the ledger count, their calls do not."""

    calls: int = 0
    retries: int = 0
    replayed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    seconds: float = 0.0
    """Seconds spent waiting for answers, summed over the calls."""


@dataclass
class Budget:
    """Limits of one measurement, what is spent, and what the calls under way may still spend."""

    limits: Limits = field(default_factory=Limits)
    input_price: float = 0.0
    output_price: float = 0.0
    spent: Spent = field(default_factory=Spent)
    _open: list[Reservation] = field(default_factory=list)

    @classmethod
    def of(cls, endpoint: Endpoint, limits: Limits) -> Budget:
        """A fresh budget at the endpoint's prices."""
        return cls(limits, endpoint.input_price, endpoint.output_price)

    @property
    def money(self) -> float:
        """Money spent so far."""
        return self._price(self.spent.prompt_tokens, self.spent.generated_tokens)

    def reserve(self, prompt_tokens: int, generated_tokens: int) -> Reservation:
        """Claim one call and its tokens.

        Raises:
            BudgetSpent: naming the limit that the call would exceed; nothing is claimed then.
        """
        prompt = self.spent.prompt_tokens + sum(r.prompt_tokens for r in self._open)
        generated = self.spent.generated_tokens + sum(r.generated_tokens for r in self._open)
        prompt, generated = prompt + prompt_tokens, generated + generated_tokens
        limits = self.limits
        if limits.calls is not None and self.spent.calls + self.spent.replayed >= limits.calls:
            raise BudgetSpent(f"the limit of {limits.calls:,} calls is reached")
        if limits.tokens is not None and prompt + generated > limits.tokens:
            raise BudgetSpent(f"the next call would exceed the limit of {limits.tokens:,} tokens")
        if limits.money is not None and self._price(prompt, generated) > limits.money:
            raise BudgetSpent(f"the next call would exceed the limit of {limits.money:g} in cost")
        made = Reservation(prompt_tokens, generated_tokens)
        self._open.append(made)
        self.spent.calls += 1
        return made

    def settle(self, made: Reservation, used: Mapping[str, int | None]) -> None:
        """The call was answered, or may have been: count what it used, else what it reserved.

        Args:
            made: what `reserve` gave.
            used: `prompt_tokens`, `generated_tokens`, `cached_tokens`; missing or None is unknown.
        """
        self._forget(made)
        prompt, generated = used.get("prompt_tokens"), used.get("generated_tokens")
        self.spent.prompt_tokens += made.prompt_tokens if prompt is None else prompt
        self.spent.generated_tokens += made.generated_tokens if generated is None else generated
        self.spent.cached_tokens += used.get("cached_tokens") or 0

    def release(self, made: Reservation) -> None:
        """The server turned the call away: it stays counted as a call, its tokens do not."""
        self._forget(made)

    def replay(self, used: Mapping[str, int | None]) -> None:
        """An answer came from the ledger: an earlier start of the same measurement paid for it."""
        self.spent.replayed += 1
        self.spent.prompt_tokens += used.get("prompt_tokens") or 0
        self.spent.generated_tokens += used.get("generated_tokens") or 0
        self.spent.cached_tokens += used.get("cached_tokens") or 0

    def _forget(self, made: Reservation) -> None:
        for index, one in enumerate(self._open):  # by identity: equal ones may be under way
            if one is made:
                del self._open[index]
                return

    def _price(self, prompt: int, generated: int) -> float:
        return (prompt * self.input_price + generated * self.output_price) / 1e6


@dataclass(frozen=True)
class Estimate:
    """What a measurement will take. Retries and prefix caches are not foreseen."""

    calls: int
    prompt_tokens: int
    generated_tokens: int
    cost: float
    """In the currency of the endpoint's prices."""
    minutes: float

    def exceeds(self, limits: Limits) -> str | None:
        """The first limit that the estimate exceeds, in words; None if it fits."""
        tokens = self.prompt_tokens + self.generated_tokens
        if limits.calls is not None and self.calls > limits.calls:
            return f"{self.calls:,} calls are needed, the limit is {limits.calls:,}"
        if limits.tokens is not None and tokens > limits.tokens:
            return f"{tokens:,} tokens are needed, the limit is {limits.tokens:,}"
        if limits.money is not None and self.cost > limits.money:
            return f"the cost is {self.cost:.4g}, the limit is {limits.money:g}"
        return None


def estimate(
    endpoint: Endpoint,
    *,
    answers: int,
    length: int,
    rung: Rung,
    answer_tokens: int = 1,
    calls_per_answer: int = 1,
    short_answers: int = 0,
    counting_calls: int = 0,
    counting_tokens: int = 0,
    seconds_per_call: float = SECONDS_PER_CALL,
) -> Estimate:
    """Calls, tokens, cost and minutes of a measurement.

    Args:
        endpoint: prices, concurrency and requests per minute come from here.
        answers: questions asked, each with a prompt of its own.
        length: tokens of each prompt.
        rung: `text` generates `answer_tokens`, the others one token.
        answer_tokens: tokens of an answer, or generated for one.
        calls_per_answer: 1, or `answer_tokens` for the reader that forces one token at a time.
        short_answers: questions without their context besides, of SHORT_PROMPT tokens.
        counting_calls: calls that count tokens; `counting_tokens` are their paid prompt tokens.
        counting_tokens: see above; 0 where the server has a route that counts.
        seconds_per_call: as timed on this endpoint, else an assumption.
    """
    asked, short = answers * calls_per_answer, short_answers * calls_per_answer
    calls = LADDER_CALLS + counting_calls + asked + short
    per_prompt = length + (answer_tokens if rung == "answer" else 0)
    prompt_tokens = LADDER_PROMPT_TOKENS + counting_tokens + asked * per_prompt
    prompt_tokens += short * (SHORT_PROMPT + per_prompt - length)
    generated = calls + ((answers + short_answers) * (answer_tokens - 1) if rung == "text" else 0)
    cost = (prompt_tokens * endpoint.input_price + generated * endpoint.output_price) / 1e6
    minutes = math.ceil(calls / endpoint.concurrency) * seconds_per_call / 60
    if endpoint.requests_per_minute is not None:
        minutes = max(minutes, calls / endpoint.requests_per_minute)
    return Estimate(calls, prompt_tokens, generated, cost, minutes)
