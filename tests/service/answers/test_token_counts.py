"""Counting with the model's own tokenizer, from the store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE, Unigram, WordLevel, WordPiece
from tokenizers.pre_tokenizers import Split, Whitespace
from tokenizers.processors import TemplateProcessing

from lacuna.contract.errors import ModelUnsupported, TooLong
from service.answers import token_counts
from service.answers.token_counts import TokenCounts, count_all
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


def prose(words: int, seed: int = 0) -> str:
    """Words of a few letters, numbers, accents, signs, line breaks, and runs of blanks."""
    draw = random.Random(seed)
    syllables = ["an", "ber", "co", "dé", "ei", "fö", "ga", "hu", "日", "本", "🙂", "st", "42"]
    blanks = [" ", " ", " ", ", ", ".\n\n", "    ", " — ", "'s "]
    parts = (
        "".join(draw.choices(syllables, k=draw.randint(1, 5))) + draw.choice(blanks)
        for _ in range(words)
    )
    return "".join(parts)


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([prose(3_000, 1)], trainer)
    return tokenizer


def llama_2() -> Tokenizer:
    """No pre-tokenizer: the whole text is one word to the merges."""
    tokenizer = Tokenizer(BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator([prose(3_000, 1)], trainer)
    tokenizer.pre_tokenizer = None
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator([prose(3_000, 1)], trainer)
    return tokenizer


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[UNK]"], show_progress=False
    )
    tokenizer.train_from_iterator([prose(3_000, 1)], trainer)
    return tokenizer


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_counts, "PIECE", 2_000)
    monkeypatch.setattr(token_counts, "OVERLAP", 400)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("make", [byte_level, llama_2, unigram, word_piece])
def test_pieces_have_as_many_tokens_as_the_whole(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    texts = [prose(6_000, seed) for seed in range(5)] + ["ab " * 10_000, "x", "", prose(100)]
    whole = [len(one.ids) for one in tokenizer.encode_batch(texts, add_special_tokens=False)]
    assert max(map(len, texts)) > 10 * token_counts.PIECE
    assert count_all(tokenizer, texts) == whole


@pytest.mark.usefixtures("small_pieces")
def test_a_text_without_a_clean_cut_is_off_by_a_few_tokens() -> None:
    """One word without end: its tokens depend on where it begins."""
    tokenizer = byte_level()
    text = "".join(random.Random(0).choices("anberco", k=30_000)) + "an" * 5_000 + " " * 5_000
    whole = len(tokenizer.encode(text, add_special_tokens=False).ids)
    pieces = len(text) // (token_counts.PIECE - token_counts.OVERLAP) + 1
    assert abs(count_all(tokenizer, [text])[0] - whole) <= 2 * pieces


@pytest.mark.usefixtures("small_pieces")
def test_counting_ends_where_no_prompt_may_be_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_counts, "MAX_TOKENS", 5_000)
    tokenizer = Tokenizer.from_str(document())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    with pytest.raises(TooLong, match="more than 5000 tokens") as e:
        count_all(tokenizer, ["ab " * 1_000_000])
    assert e.value.field == "chunks.text"


async def test_callers_of_a_new_tokenizer_share_its_reading(
    redis_sync: redis.Redis, redis_async: redis.asyncio.Redis
) -> None:
    name = publish_tokenizer(redis_sync, document())
    assert name is not None
    ran: list[str] = []

    async def run(call: Callable[..., Any], *given: Any) -> Any:
        ran.append(call.__name__)
        await asyncio.sleep(0.01)
        return await asyncio.to_thread(call, *given)

    counts = TokenCounts(TokenizerStore(redis_async), run)
    first = asyncio.create_task(counts.count(name, ["a"]))
    others = [asyncio.create_task(counts.count(name, ["a b"])) for _ in range(5)]
    await asyncio.sleep(0.001)
    first.cancel()  # who leaves takes it from nobody
    assert await asyncio.gather(*others) == [[2]] * 5
    assert ran.count("_read") == 1


async def test_long_tokenizers_leave_memory_for_newer_ones(
    redis_sync: redis.Redis,
    redis_async: redis.asyncio.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    documents = [document().replace("<s>", f"<s{n}>") for n in range(3)]
    names = [publish_tokenizer(redis_sync, one) for one in documents]
    monkeypatch.setattr(token_counts, "_TOKENIZER_BYTES", 2 * len(documents[0]) + 10)
    counts = TokenCounts(TokenizerStore(redis_async))
    for name in names:
        assert name is not None
        assert await counts.count(name, ["a b c"]) == [3]
    redis_sync.flushall()
    found = [await counts.count(name or "", ["a b c"]) for name in names]
    assert found == [None, [3], [3]]
