"""A tokenizer's own policy: the special tokens around a text, and the tokens of the text."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_PROBE = "a"
_PARTS = 64_000  # characters; the time of slow tokenizers is quadratic in the length of a text


@dataclass(frozen=True)
class Policy:
    """Special tokens that the tokenizer adds before and after every text, by its own rules."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    leading_bos: bool

    def room(self, length: int) -> int:
        """Tokens of the text in a document of `length` tokens; may be negative."""
        return length - len(self.prefix) - len(self.suffix)

    def wrap(self, body: list[int]) -> list[int]:
        """A document: the text's tokens between the special ones."""
        return [*self.prefix, *body, *self.suffix]


def policy(tokenizer: Any) -> Policy:
    """Find the policy by tokenizing a text; not every tokenizer obeys its settings."""
    plain = encode(tokenizer, _PROBE)
    whole = [int(token) for token in tokenizer(_PROBE)["input_ids"]]
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            prefix, suffix = whole[:start], whole[start + len(plain) :]
            break
    else:  # the special tokens change how the text is cut: treat them as part of it
        prefix, suffix = [], []
    bos = tokenizer.bos_token_id
    return Policy(tuple(prefix), tuple(suffix), bool(prefix) and prefix[0] == bos)


def encode(tokenizer: Any, text: str) -> list[int]:
    """Tokens of a text alone, without special tokens."""
    with _quiet():
        return [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]


def encode_beginning(tokenizer: Any, text: str, tokens: int) -> list[int]:
    """At least the first `tokens` tokens of a text, if it has them, without reading all of it.

    It tokenizes longer and longer beginnings until one has enough tokens. The last tokens of a
    beginning depend on where it was cut, so they are left out: what is returned is how the whole
    text begins.
    """
    margin = 32
    size = max(_PARTS, 8 * tokens)
    while size < len(text):
        found = encode(tokenizer, text[:size])[:-margin]
        if len(found) >= tokens:
            return found
        size *= 2
    return encode(tokenizer, text)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the warning that a text is longer than the model's context: we cut it afterwards."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
