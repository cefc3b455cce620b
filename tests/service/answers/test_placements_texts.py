"""Counting with the model's own tokenizer, from the store."""

from __future__ import annotations

import redis
import redis.asyncio
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from service.answers.placements import TokenCounts
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
