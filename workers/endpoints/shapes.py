"""The shapes in which servers give log-probabilities, each turned into rows of (token, nats).

All functions take parsed JSON of unknown origin and raise EndpointIncapable, in words of this
project, where it is not what it should be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lacuna.contract.errors import (
    EndpointIncapable,
)

LEAST = -1000.0
"""Nats. Servers write -9999 for "none"; no token that a model can write is this improbable."""

Rows = list[tuple[str, float | None]]
"""Tokens in order, each with its log-probability given those before it; None: not given."""


def choice_of(answer: Any) -> dict[str, Any]:
    """The only choice of an answer in OpenAI's shape."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise EndpointIncapable("the answer holds no choice, or more than one")
    return choices[0]


def nats(value: Any) -> float | None:
    """A log-probability, or None where the server gives none (null, -9999, infinite).

    Raises:
        EndpointIncapable: not a number, or above zero by more than rounding.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise EndpointIncapable("a log-probability is not a number")
    if value > 1e-3:
        raise EndpointIncapable(f"a log-probability is above zero: {value:.3g}")
    return min(0.0, float(value)) if value > LEAST else None


def _pairs(tokens: Any, values: Any) -> Rows:
    if not isinstance(tokens, list) or not isinstance(values, list) or len(tokens) != len(values):
        raise EndpointIncapable("tokens and log-probabilities are not lists of one length")
    return [(str(token), nats(value)) for token, value in zip(tokens, values, strict=True)]


def generated_rows(choice: dict[str, Any]) -> Rows:
    """Generated tokens: `logprobs.content` (chat, llama.cpp) or `logprobs.tokens` (completions)."""
    logs = choice.get("logprobs")
    if not isinstance(logs, dict):
        raise EndpointIncapable("no log-probabilities of generated tokens")
    if logs.get("content"):
        return [(str(row["token"]), nats(row["logprob"])) for row in logs["content"]]
    if logs.get("tokens"):
        return _pairs(logs["tokens"], logs.get("token_logprobs"))
    raise EndpointIncapable("no log-probabilities of generated tokens")


def first_list(choice: dict[str, Any]) -> list[list[Any]]:
    """The most probable first tokens with their nats, best first, as [token, nats].

    Entries without a value (-9999) are left out. Tokens that read the same, as halves of characters
    do, are added up.
    """
    logs = choice.get("logprobs")
    if not isinstance(logs, dict):
        raise EndpointIncapable("no log-probabilities of generated tokens")
    if logs.get("content"):
        tops = logs["content"][0].get("top_logprobs") or []
        pairs = [(str(row["token"]), nats(row["logprob"])) for row in tops]
    else:
        tops = (logs.get("top_logprobs") or [{}])[0] or {}
        pairs = [(str(token), nats(value)) for token, value in tops.items()]
    mass: dict[str, float] = {}
    for token, value in pairs:
        if value is not None:
            mass[token] = mass.get(token, 0.0) + math.exp(value)
    if not mass:
        raise EndpointIncapable("the list of most probable tokens is empty")
    if sum(mass.values()) > 1.005:
        raise EndpointIncapable(f"the most probable tokens sum to {sum(mass.values()):.2f}")
    best = sorted(mass.items(), key=lambda item: (-item[1], item[0]))
    return [[token, math.log(value) if value > 0 else LEAST] for token, value in best]


def echoed_rows(answer: Any, text: str, generated: int | None) -> Rows:
    """Prompt tokens of a completion with `echo`, without what was generated after them.

    Args:
        answer: whole answer.
        text: what was sent.
        generated: number of generated tokens by `usage`, or None.
    """
    choice = choice_of(answer)
    said, logs = choice.get("text"), choice.get("logprobs")
    if not isinstance(said, str) or not said.startswith(text) or not isinstance(logs, dict):
        raise EndpointIncapable("`echo` is ignored")
    rows = _pairs(logs.get("tokens"), logs.get("token_logprobs"))
    extra = said[len(text) :]
    for spare in range(3):
        kept, dropped = rows[: len(rows) - spare], rows[len(rows) - spare :]
        same = "".join(token for token, _ in dropped) == extra
        ends = text.endswith("".join(token for token, _ in kept[-2:])) if kept else False
        if ends and (same or spare == generated):
            return kept
    raise EndpointIncapable("the echoed tokens do not spell the prompt")


def prompt_rows(rows: Any) -> Rows:
    """vLLM's `prompt_logprobs`: per token {id: {"logprob", "decoded_token"}}, the first null.

    Where several are listed for one place, the prompt's own token comes first.
    """
    if not isinstance(rows, list) or not rows:
        raise EndpointIncapable("`prompt_logprobs` is ignored")
    own = [next(iter(row.values())) for row in rows if row]
    return [(str(row["decoded_token"]), nats(row["logprob"])) for row in own]


def sglang_rows(answer: Any) -> Rows:
    """SGLang's `meta_info.input_token_logprobs`: [nats, id, token], the first nats null."""
    meta = answer.get("meta_info") if isinstance(answer, dict) else None
    rows = meta.get("input_token_logprobs") if isinstance(meta, dict) else None
    if not isinstance(rows, list) or not rows:
        raise EndpointIncapable("`return_logprob` is ignored")
    if any(row[2] is None for row in rows):
        raise EndpointIncapable("the prompt's tokens come without their texts")
    return [(str(row[2]), nats(row[0])) for row in rows]


def tgi_rows(answer: Any) -> Rows:
    """TGI's `details.prefill`: {"text", "logprob"}, the first logprob null."""
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    details = answer.get("details") if isinstance(answer, dict) else None
    rows = details.get("prefill") if isinstance(details, dict) else None
    if not isinstance(rows, list) or not rows:
        raise EndpointIncapable("`decoder_input_details` is ignored")
    return [(str(row["text"]), nats(row["logprob"])) for row in rows]


def from_end(rows: Rows, answer: str) -> dict[str, Any]:
    """The answer's nats, summed over the last rows, which must spell it exactly.

    Returns {"nats": at most 0, "tokens": how many}.
    """
    spelt, values = "", []
    for token, value in reversed(rows):
        spelt = token + spelt
        values.append(value)
        if len(spelt) >= len(answer):
            break
    return _spelled(spelt, values, answer)


def from_start(rows: Rows, answer: str, tokens: int) -> dict[str, Any]:
    """The answer's nats over the first `tokens` rows, which must spell it exactly."""
    head = rows[:tokens]
    return _spelled("".join(token for token, _ in head), [value for _, value in head], answer)


def _spelled(spelt: str, values: Sequence[float | None], answer: str) -> dict[str, Any]:
    if spelt != answer:
        raise EndpointIncapable("the tokens do not spell the answer")
    given = [value for value in values if value is not None]
    if len(given) != len(values):
        raise EndpointIncapable("a token of the answer has no log-probability (null or -9999)")
    return {"nats": sum(given), "tokens": len(given)}
