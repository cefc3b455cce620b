from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lacuna.contract.errors import DocumentsUnusable, TooLong
from workers.models.loaded import LoadedModel
from workers.recall.reader import Question
from workers.recall.weights_reader import WeightsReader


def test_a_template_that_refuses_is_named(
    make: Callable[..., LoadedModel], colours: Callable[..., list[Question]]
) -> None:
    loaded = make(chat=True)
    tokenizer: Any = loaded.tokenizer
    reader = WeightsReader(loaded)
    tokenizer.chat_template = (
        tokenizer.chat_template + "{{ raise_exception('roles must alternate') }}"
    )
    with pytest.raises(DocumentsUnusable, match="roles must alternate"):
        reader.read(colours(chat=True))


def test_prompts_beyond_the_models_length_are_refused(
    make: Callable[..., LoadedModel], colours: Callable[..., list[Question]]
) -> None:
    reader = WeightsReader(make(max_position_embeddings=64))
    with pytest.raises(TooLong, match=r"a prompt has \d+ tokens .* reads 64") as caught:
        reader.read(colours())
    assert caught.value.field == "sequence_length"


def test_tokens_that_the_model_lacks_are_refused(
    make: Callable[..., LoadedModel], colours: Callable[..., list[Question]]
) -> None:
    with pytest.raises(DocumentsUnusable, match="40 rows"):
        WeightsReader(make(vocab_size=40, max_position_embeddings=512)).read(colours())


def _word_level(words: Sequence[str]) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["[UNK]", *words])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


def test_unknown_tokens_are_refused_with_their_share(
    tiny_model: Callable[..., Any],
    as_loaded: Callable[..., LoadedModel],
    colours: Callable[..., list[Question]],
) -> None:
    few = as_loaded(tiny_model(max_position_embeddings=512), _word_level(["The", "is"]))
    with pytest.raises(DocumentsUnusable, match=r"reads \d\d\.\d% of the prompts") as caught:
        WeightsReader(few).read(colours())
    assert "[UNK]" in caught.value.detail
    assert caught.value.code == "documents_unusable"


def test_answers_that_the_tokenizer_cannot_tell_apart_are_refused(
    tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    from tokenizers import Regex, normalizers

    tokenizer = _word_level(["The", "code", "is", "n"])
    # No digits: all of them are one and the same token.
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace(Regex("[0-9]+"), "n")
    loaded = as_loaded(tiny_model(max_position_embeddings=512), tokenizer)
    asked = [Question("The code is", " 123", (" 456",))]
    with pytest.raises(DocumentsUnusable, match="' 123' cannot be told from ' 456'"):
        WeightsReader(loaded).read(asked)
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace(Regex("[0-9]+"), "")
    with pytest.raises(DocumentsUnusable, match="' 123' has no tokens"):
        WeightsReader(loaded).read([Question("The code is", " 123")])


def test_without_a_tokenizer_there_is_no_question(
    tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    with pytest.raises(DocumentsUnusable, match="no tokenizer"):
        WeightsReader(as_loaded(tiny_model()))
