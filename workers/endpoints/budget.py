"""What a measurement of a served model may cost, kept to while it runs.

Each call first reserves what it may use at most, as far as that is known; once it is answered, the
reservation is replaced by what the server says it used. A new call is made only if everything spent
and reserved stays within the limits. So the limits are exceeded, if at all, by the calls in flight
whose prompts turn out longer than expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lacuna.contract.endpoints import EndpointBudget
from lacuna.contract.errors import BudgetSpent
from service.endpoints.table import Endpoint


@dataclass(frozen=True)
class Limits:
    """What a request allows; None: no limit of that kind."""

    calls: int | None = None
    """HTTP requests, retries included."""
    tokens: int | None = None
    """Prompt and generated tokens together."""
    money: float | None = None
    """In the currency of the endpoint's prices."""

    @classmethod
    def of(cls, asked: EndpointBudget | None) -> Limits:
        """The limits of a request."""
        if asked is None:
            return cls()
        return cls(asked.max_calls, asked.max_tokens, asked.max_cost)


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
