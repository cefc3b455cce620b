"""Models behind an HTTP endpoint: what a measurement may cost, will cost and did cost, and which
model answered.

The operator names endpoints in the settings; requests say `endpoint:NAME`. No address and no key
ever crosses HTTP or Redis.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lacuna.contract.base import Digest, Fraction, Wire

PREFIX = "endpoint:"
Rung = Literal["answer", "first_token", "text"]
"""How an answer is read, best first.

`answer`: log-probability of all tokens of the answer.
`first_token`: log-probability of the answer's first token. The same where the answer is one token.
`text`: whether the text that the model writes is right.
"""
Form = Literal["plain", "chat", "continued"]
"""How a prompt is sent.

`plain`: one text, which the answer continues.
`chat`: messages, the last from the user; the model starts its own reply.
`continued`: messages, the last from the assistant and unfinished; the model goes on with it. A
question whose reply has no given beginning comes as in `chat` here too: its last message is the
user's.
"""
CountsBy = Literal["tokenizer", "usage"]
"""Who counts tokens: a route of the server, or the `usage` of calls that are paid for."""


class EndpointBudget(Wire):
    """Limits of one measurement; null: no limit of that kind. Answers that an earlier start paid
    for count too."""

    max_calls: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """HTTP requests, retries included."""
    max_tokens: Annotated[int, Field(ge=1, le=10**15)] | None = None
    """Prompt and generated tokens together."""
    max_cost: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """In the currency of the endpoint's prices."""


class EndpointCost(Wire):
    """What a measurement takes. Retries and prefix caches are not counted."""

    calls: int
    prompt_tokens: int
    generated_tokens: int
    cost: float
    """In the currency of the endpoint's prices."""
    minutes: float
    """At two seconds a call and the endpoint's concurrency and pace."""


class EndpointEstimate(Wire):
    """Answer of POST /v1/profiles with `dry_run`: nothing was asked of the endpoint."""

    endpoint: str
    least: EndpointCost
    """With the fewest groups, on a server that counts tokens and lists probabilities."""
    most: EndpointCost
    """With the most groups, on a server that counts by paid calls and only writes text."""
    refused: str | None
    """Why the budget does not allow it; null where it does."""


class ServedModel(Wire):
    """Which model answered, as far as a server tells, and how it was read."""

    name: str
    """Of the endpoint in the settings."""
    model: str
    """What the settings call the model."""
    served_model: str | None
    """What the server calls it in its answers."""
    fingerprint: str | None
    """The server's `system_fingerprint`."""
    canary: Digest
    """Digest of what the model answers to three fixed prompts. A served model has no revision: this
    stands for one."""
    ways: dict[str, str]
    """How the answers of each probe were read."""
    why_not_higher: dict[str, str]
    """Each way that tells more, with the reason why it does not count."""
    counts_by: CountsBy
    censored: dict[str, Fraction]
    """For each probe, share of answers beyond the server's list of tokens: they count as 0."""
    groups_lost: dict[str, int]
    """For each probe, groups left out since a question had no answer."""


class Spending(Wire):
    """What a measurement of an endpoint took, answers of earlier starts included."""

    calls: int
    """Of the start that ended it."""
    replayed: int
    """Answers that earlier starts had paid for."""
    retries: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    cost: float
    """In the currency of the endpoint's prices."""


class EndpointAbilities(Wire):
    """What was found by trying when the endpoint was last measured."""

    rung: Rung
    """The best that counts."""
    ways: list[str]
    refused: dict[str, str]
    """Each other way, with the reason."""
    counts_by: CountsBy
    served_model: str | None
    found_at: str
    """ISO 8601 in UTC."""


class EndpointListing(Wire):
    """An endpoint of the settings in GET /v1/models."""

    name: str
    """With `endpoint:` in front, as requests have it."""
    model: str
    context_length: int
    form: Literal["chat", "plain"]
    input_price: float
    output_price: float
    abilities: EndpointAbilities | None
    """Null until it was measured once."""
