"""What every dialect's answers say besides the numbers: usage, the model, what went wrong.

Shapes: OpenAI's (`usage`, `model`, `system_fingerprint`), Anthropic's (`usage.input_tokens`),
SGLang's `/generate` (`meta_info`) and TGI's `/generate` (`details`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["again", "key", "quota", "elsewhere", "too_long", "limit_name", "declined"]

AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
"""Statuses after which the same request may succeed."""
NEW_LIMIT = "max_completion_tokens"
"""What newer chat interfaces call `max_tokens`, which they refuse and name this instead."""
_TOO_LONG = (
    "context_length_exceeded",
    "exceed_context_size",
    "context length",
    "context size",
    "context window",
    "max_model_len",
    "prompt is too long",
    "must have less than",
)
_QUOTA = ("insufficient_quota", "billing", "credit balance")


@dataclass(frozen=True)
class Usage:
    """Tokens of one call as the server counts them; None where it does not say."""

    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    cached_tokens: int | None = None

    def as_dict(self) -> dict[str, int | None]:
        """The fields by name, for the ledger and the budget."""
        return asdict(self)


def count_of(value: Any) -> int | None:
    """A number of tokens, or None where it is none (null, text, negative, beyond reason)."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**9:
        return None
    return value


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def usage_of(answer: Any) -> Usage:
    """Tokens that the server says it used, whatever the dialect."""
    if isinstance(answer, list) and len(answer) == 1:  # TGI answers a list for some clients
        answer = answer[0]
    whole = _table(answer)
    used, meta, details = (_table(whole.get(key)) for key in ("usage", "meta_info", "details"))
    if meta:
        return Usage(
            count_of(meta.get("prompt_tokens")),
            count_of(meta.get("completion_tokens")),
            count_of(meta.get("cached_tokens")),
        )
    if details:
        prefill = details.get("prefill")
        return Usage(
            len(prefill) if isinstance(prefill, list) and prefill else None,
            count_of(details.get("generated_tokens")),
        )
    if "input_tokens" in used:  # Anthropic: what came from its cache is counted apart
        cached = count_of(used.get("cache_read_input_tokens")) or 0
        stored = count_of(used.get("cache_creation_input_tokens")) or 0
        read = count_of(used.get("input_tokens"))
        prompt = None if read is None else read + cached + stored
        return Usage(prompt, count_of(used.get("output_tokens")), cached)
    cached_tokens = _table(used.get("prompt_tokens_details")).get("cached_tokens")
    return Usage(
        count_of(used.get("prompt_tokens")),
        count_of(used.get("completion_tokens")),
        count_of(cached_tokens),
    )


@dataclass(frozen=True)
class Served:
    """Which model says that it answered."""

    model: str | None = None
    fingerprint: str | None = None


def served_of(answer: Any) -> Served:
    """The model's name and the server's fingerprint in an answer.

    llama.cpp puts the path of its file there: only the last part of a path is kept.
    """
    whole = _table(answer)
    return Served(_word(whole.get("model")), _word(whole.get("system_fingerprint")))


def _word(value: Any) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    return "".join(c for c in value.replace("\\", "/") if c.isprintable())[-400:]


def basename(served: str | None, asked: str) -> str | None:
    """A served model's name without folders, unless it is the name that was asked for."""
    if served is None or served == asked:
        return served
    return served.rsplit("/", 1)[-1][:128] if served.startswith(("/", ".", "~")) else served[:128]


def fault_of(status: int, answer: Any) -> Kind:
    """What an answer that is no success means; the server's own words go no further than here.

    Args:
        status: HTTP status; 200 for an answer whose body says `error`.
        answer: the parsed body, or None if it is no JSON.
    """
    said = _said(answer)
    if 300 <= status < 400:
        return "elsewhere"
    if status == 402 or any(mark in said for mark in _QUOTA):
        return "quota"
    if status in (401, 403, 407):
        return "key"
    if status in (200, 400, 413, 422, 500) and any(mark in said for mark in _TOO_LONG):
        return "too_long"
    if status in AGAIN:
        return "again"
    return "limit_name" if NEW_LIMIT in said else "declined"


def _said(answer: Any) -> str:
    """Code, type and message of an error, in small letters."""
    whole = _table(answer)
    inner = whole.get("error", whole)
    if isinstance(inner, str):
        return f"{inner} {whole.get('error_type', '')}".lower()
    fields = _table(inner)
    return " ".join(
        str(fields.get(key, "")) for key in ("code", "type", "message", "detail")
    ).lower()
