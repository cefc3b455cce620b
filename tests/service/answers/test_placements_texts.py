"""Counting with the model's own tokenizer, from the store."""

from __future__ import annotations

import pytest
import redis
import redis.asyncio
from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import Split, Whitespace
from tokenizers.processors import TemplateProcessing

from lacuna.contract.errors import ModelUnsupported
from service.answers.placements import TokenCounts
from service.gateway.problems import STATUS
from service.store.profiles import TokenizerStore, publish_tokenizer


def document() -> str:
    """Words are tokens; a BOS leads; truncates at 3 and pads: none of which may be counted."""
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "<s>": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=10)
    return str(tokenizer.to_str())


async def test_texts_are_counted_without_special_tokens_truncation_or_padding(
    redis_sync: redis.Redis, redis_async: redis.asyncio.Redis
) -> None:
    name = publish_tokenizer(redis_sync, document())
    assert name is not None
    counts = TokenCounts(TokenizerStore(redis_async))
    texts = ["one two three four five", "", "one"]
    assert await counts.count(name, texts) == [5, 0, 1]
    assert texts == ["one two three four five", "", "one"]
    redis_sync.flushall()
    assert await counts.count(name, ["a b"]) == [2]  # warm: no store needed


async def test_an_unknown_tokenizer_counts_nothing(redis_async: redis.asyncio.Redis) -> None:
    assert await TokenCounts(TokenizerStore(redis_async)).count("0" * 32, ["a"]) is None


async def test_a_tokenizer_that_panics_refuses_the_text_and_counts_the_next(
    redis_sync: redis.Redis, redis_async: redis.asyncio.Redis
) -> None:
    tokenizer = Tokenizer(BPE({"a": 0}, []))
    tokenizer.pre_tokenizer = Split(Regex("(a+)+$|(a|aa)+b"), "isolated")
    name = publish_tokenizer(redis_sync, str(tokenizer.to_str()))
    assert name is not None
    counts = TokenCounts(TokenizerStore(redis_async))
    for _ in range(2):
        with pytest.raises(ModelUnsupported, match=r"fails on a text.*give `tokens`") as e:
            await counts.count(name, ["aa", "a" * 44 + "!"])
        assert e.value.field == "chunks.text"
        assert STATUS[e.value.code] == 422
    assert await counts.count(name, ["aa"]) == [2]


async def test_a_tokenizer_of_a_newer_version_refuses_the_text(
    redis_sync: redis.Redis, redis_async: redis.asyncio.Redis
) -> None:
    name = publish_tokenizer(redis_sync, document().replace("WordLevel", "Hyperpiece"))
    assert name is not None
    with pytest.raises(ModelUnsupported, match="tokenizer cannot be read"):
        await TokenCounts(TokenizerStore(redis_async)).count(name, ["a"])
