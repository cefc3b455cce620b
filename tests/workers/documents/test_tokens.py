from __future__ import annotations

import doctest
import logging
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from lacuna.contract.errors import ModelUnsupported
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


def words(vocabulary: dict[str, int], unknown: str | None = None, **declared: Any) -> Any:
    """A tokenizer of whole words, with `<s>` before and `</s>` after every text."""
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown or "[none]"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        special_tokens=[("<s>", vocabulary["<s>"]), ("</s>", vocabulary["</s>"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", **declared
    )


CAPITALS = {"<s>": 0, "</s>": 1, "[UNK]": 2} | {chr(65 + at): 3 + at for at in range(26)}
GREEK = {"<s>": 0, "</s>": 1, "α": 2, "β": 3}


@pytest.mark.parametrize("unknown", [None, "[UNK]"])
@pytest.mark.parametrize("vocabulary", [CAPITALS, GREEK | {"[UNK]": 4}])
def test_the_policy_is_asked_with_what_the_vocabulary_has(
    vocabulary: dict[str, int], unknown: str | None
) -> None:
    """Neither has the letter "a": without an unknown token it has no tokens, or is an error."""
    assert tokens.policy(words(vocabulary, unknown)) == tokens.Policy((0,), (1,), True)


def test_a_byte_pair_vocabulary_that_drops_what_it_lacks() -> None:
    backend = Tokenizer(models.BPE({"<s>": 0, "X": 1, "Y": 2}, []))
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    found = tokens.policy(PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>"))
    assert found == tokens.Policy((0,), (), True)


def test_a_vocabulary_of_special_tokens_only_has_no_known_policy() -> None:
    bare = words({"<s>": 0, "</s>": 1})
    assert tokens.policy(bare) == tokens.Policy((), (), False)


def test_unknown_tokens_that_are_not_declared_are_found(make_tokenizer: Callable[..., Any]) -> None:
    assert tokens.unknown_token(words(CAPITALS, "[UNK]")) == 2
    assert tokens.unknown_token(words(CAPITALS, "[UNK]", unk_token="[UNK]")) == 2
    assert tokens.unknown_token(words(GREEK, "</s>")) is None
    assert tokens.unknown_token(make_tokenizer()) is None


def llama_2() -> Any:
    """Llama 2's normaliser, on a vocabulary in which blanks and words merge."""
    pieces = ["<unk>", "<s>", "</s>", "<0x0A>", "▁", "P", "a", "r", "i", "s", ".", "A"]
    merges = [("P", "a"), ("Pa", "r"), ("i", "s"), ("▁", "Par"), ("▁", "a")]
    pieces += [left + right for left, right in merges]
    backend = Tokenizer(
        models.BPE(
            {piece: at for at, piece in enumerate(pieces)},
            merges,
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def test_a_continuation_has_no_double_blank() -> None:
    tokenizer = llama_2()

    def pieces(ids: list[int]) -> list[str]:
        return list(tokenizer.convert_ids_to_tokens(ids))

    assert pieces(tokens.encode(tokenizer, " Paris")) == ["▁", "▁Par", "is"]
    assert pieces(tokens.encode_continuation(tokenizer, " Paris")) == ["▁Par", "is"]
    assert pieces(tokens.encode_continuation(tokenizer, "Paris")) == ["Par", "is"]


@pytest.mark.parametrize("text", [" Paris", "Paris", ", and", "\nnext"])
def test_a_continuation_of_bytes_is_the_text_alone(
    text: str, make_tokenizer: Callable[..., Any]
) -> None:
    tokenizer = make_tokenizer("<s> $A </s>")
    assert tokens.encode_continuation(tokenizer, text) == tokens.encode(tokenizer, text)


def test_a_continuation_of_words_passes_over_what_the_vocabulary_lacks() -> None:
    assert tokens.encode_continuation(words(CAPITALS, "[UNK]"), "BC") == [4, 5]
    assert tokens.encode_continuation(words(CAPITALS), "BC") == [4, 5]


def test_a_tokenizer_that_panics_is_the_fault_of_the_model() -> None:
    backend = Tokenizer(models.BPE({"a": 0}, []))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$|(a|aa)+b"), "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert tokens.encode(tokenizer, "aaa") == [0, 0, 0]
    with pytest.raises(ModelUnsupported, match="its tokenizer fails on a text") as info:
        tokens.encode(tokenizer, "a" * 44 + "!")
    assert info.value.field == "model"
