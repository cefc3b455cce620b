from __future__ import annotations

import doctest
import logging
from collections.abc import Callable
from typing import Any

import pytest

from workers.documents import corpus, tokens


@pytest.mark.parametrize(
    ("template", "prefix", "suffix", "bos"),
    [
        (None, (), (), False),
        ("<s> $A", (0,), (), True),
        ("$A </s>", (), (1,), False),
        ("</s> $A", (1,), (), False),
        ("<s> <s> $A </s>", (0, 0), (1,), True),
    ],
)
def test_the_policy_is_found_by_asking(
    template: str | None,
    prefix: tuple[int, ...],
    suffix: tuple[int, ...],
    bos: bool,
    make_tokenizer: Callable[..., Any],
) -> None:
    found = tokens.policy(make_tokenizer(template))
    assert found == tokens.Policy(prefix, suffix, bos)
    assert found.room(10) == 10 - len(prefix)
    assert found.wrap([7]) == [*prefix, 7]


def test_a_beginning_is_what_the_whole_text_begins_with(
    make_tokenizer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = make_tokenizer()
    text = corpus.builtin_text()[:60_000]
    whole = tokens.encode(tokenizer, text)
    monkeypatch.setattr(tokens, "_PARTS", 1_000)
    for size in (1, 100, 2_000):
        found = tokens.encode_beginning(tokenizer, text, size)
        assert size <= len(found) < len(whole)
        assert found == whole[: len(found)]
    assert tokens.encode_beginning(tokenizer, text, 10**9) == whole


def test_texts_longer_than_the_model_s_context_raise_no_warning(
    make_tokenizer: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = tokens.encode(make_tokenizer(), corpus.builtin_text()[:3_000])
    assert len(found) > 64
    assert caplog.records == []


def test_builtin_text_is_prose_and_its_tokens_are_kept(make_tokenizer: Callable[..., Any]) -> None:
    assert len(corpus.builtin_text()) > 300_000
    tokenizer = make_tokenizer()
    assert corpus.builtin_tokens(tokenizer) is corpus.builtin_tokens(tokenizer)


def test_examples_in_the_docstrings() -> None:
    assert doctest.testmod(corpus).failed == 0
    assert doctest.testmod(corpus).attempted > 0
