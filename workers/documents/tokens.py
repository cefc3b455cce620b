"""A tokenizer's own policy: the special tokens around a text, and the tokens of the text."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lacuna.contract.errors import ModelUnsupported
from service.panics import failures_as

_PROBES = ("a", "A", "0")
_TRIED = 1_000
"""Tokens of the vocabulary that are tried as probes."""
_CONTEXTS = ("\n", ".", "a", "A")
"""What may stand before a continuation, the one that tokenizers merge least first."""
_PARTS = 64_000  # characters; the time of slow tokenizers is quadratic in the length of a text


@dataclass(frozen=True)
class Policy:
    """Special tokens that the tokenizer adds before and after every text, by its own rules.

    A document has those before it only: after an end token the model would be read where the text
    is over, and not at its last word.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    leading_bos: bool

    def room(self, length: int) -> int:
        """Tokens of the text in a document of `length` tokens; may be negative."""
        return length - len(self.prefix)

    def wrap(self, body: list[int]) -> list[int]:
        """A document: the special tokens that lead, then the text's tokens."""
        return [*self.prefix, *body]


def policy(tokenizer: Any) -> Policy:
    """Find the policy by tokenizing a text that the vocabulary has; settings are often ignored.

    None of the special tokens is known where no text gives a token.
    """
    special = set(tokenizer.all_special_ids) | {unknown_token(tokenizer)}
    for probe in _probes(tokenizer):
        try:
            plain, whole = encode(tokenizer, probe), encode(tokenizer, probe, special=True)
        except ModelUnsupported:  # without an unknown token some vocabularies refuse a text
            continue
        if not plain or special & set(plain):
            continue
        for start in range(len(whole) - len(plain) + 1):
            if whole[start : start + len(plain)] == plain:
                prefix, suffix = whole[:start], whole[start + len(plain) :]
                bos = bool(prefix) and prefix[0] == tokenizer.bos_token_id
                return Policy(tuple(prefix), tuple(suffix), bos)
    return Policy((), (), False)


def _probes(tokenizer: Any) -> Iterator[str]:
    yield from _PROBES
    for token in range(min(_TRIED, len(tokenizer))):
        text = str(tokenizer.decode([token])).strip()
        if text:
            yield text


def unknown_token(tokenizer: Any) -> int | None:
    """Id of the token for what the vocabulary lacks; None where bytes spell it.

    A tokenizer may use one without declaring it. Where it begins or ends texts too (GPT-2), it does
    not mean unknown text.
    """
    found = tokenizer.unk_token_id
    if found is None:
        model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
        name = getattr(model, "unk_token", None)
        found = None if name is None else tokenizer.get_vocab().get(name)
    ends = (tokenizer.bos_token_id, tokenizer.eos_token_id)
    return None if found is None or found in ends else int(found)


def encode_continuation(tokenizer: Any, text: str) -> list[int]:
    """Tokens of a text that goes on after another.

    A tokenizer that puts a blank before every text (Llama 2) would put one inside the document. So
    the text is encoded behind a short one, whose tokens are cut off; a context that merges with the
    text or has no token of its own is passed over.
    """
    unknown = unknown_token(tokenizer)
    for context in _CONTEXTS:
        try:
            before, whole = encode(tokenizer, context), encode(tokenizer, context + text)
        except ModelUnsupported:  # as in `policy`
            continue
        if before and unknown not in before and whole[: len(before)] == before:
            return whole[len(before) :]
    return encode(tokenizer, text)


def encode(tokenizer: Any, text: str, *, special: bool = False) -> list[int]:
    """Tokens of a text alone, without the special tokens around it unless asked for.

    Raises:
        ModelUnsupported: the tokenizer fails or panics on this text.
    """
    with _quiet(), failures_as(_refusal):
        return [int(token) for token in tokenizer(text, add_special_tokens=special)["input_ids"]]


def _refusal(reason: str) -> ModelUnsupported:
    return ModelUnsupported(f"`model`: its tokenizer fails on a text: {reason}", field="model")


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
