from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lacuna.contract.errors import DocumentsUnusable
from lacuna.contract.profile_requests import Documents
from workers import documents
from workers.documents import DocumentSet
from workers.documents import corpus as builtin
from workers.models.loaded import LoadedModel

TEMPLATES = {
    "none": (None, [], []),
    "bos": ("<s> $A", [0], []),
    "two": ("<s> <s> $A", [0, 0], []),
    "both": ("<s> $A </s>", [0], [1]),
}


@pytest.fixture
def loaded(
    tiny_model: Callable[..., Any],
    make_tokenizer: Callable[..., Any],
    as_loaded: Callable[..., LoadedModel],
) -> Callable[[str], LoadedModel]:
    return lambda name: as_loaded(tiny_model(), make_tokenizer(TEMPLATES[name][0]))


@pytest.mark.parametrize("policy", TEMPLATES)
@pytest.mark.parametrize("source", ["builtin", "random_tokens", "inline"])
def test_exactly_n_tokens_by_the_tokenizer_s_own_policy(
    policy: str, source: Any, loaded: Callable[[str], LoadedModel]
) -> None:
    _, prefix, _ = TEMPLATES[policy]
    texts = (
        [builtin.builtin_text()[:2_000], builtin.builtin_text()[5_000:8_000]]
        if source == "inline"
        else None
    )
    found = documents.build(
        Documents(source=source, count=2, texts=texts), loaded(policy), 40, seed=0
    )
    assert found.ids.shape == (2, 40)
    assert found.ids.dtype == torch.int64
    assert found.leading_bos == bool(prefix)
    for row in found.ids.tolist():
        assert row[: len(prefix)] == prefix
        assert not {0, 1} & set(row[len(prefix) :])


@pytest.mark.parametrize("policy", TEMPLATES)
def test_inline_documents_are_what_the_tokenizer_makes_of_the_text(
    policy: str, loaded: Callable[[str], LoadedModel]
) -> None:
    model = loaded(policy)
    text = builtin.builtin_text()[1_000:1_400]
    _, prefix, suffix = TEMPLATES[policy]
    whole = model.tokenizer(text)["input_ids"]  # type: ignore[misc]
    read = whole[: len(whole) - len(suffix)]  # the position that is read is the last word's
    found = documents.build(Documents(source="inline", texts=[text]), model, len(read), seed=0)
    assert found.ids[0].tolist() == read
    assert found.leading == ("<s>",) * len(prefix)
    assert found.trailing == ("</s>",) * len(suffix)
    assert found.warnings == ()


def test_builtin_documents_are_different_pieces_of_the_whole_corpus(
    loaded: Callable[[str], LoadedModel],
) -> None:
    model = loaded("none")
    corpus = model.tokenizer(builtin.builtin_text(), add_special_tokens=False)["input_ids"]  # type: ignore[misc]
    pieces = [corpus[at : at + 100] for at in range(0, len(corpus) - 99, 100)]
    found = documents.build(Documents(count=40), model, 100, seed=0)
    places = [pieces.index(row) for row in found.ids.tolist()]
    assert len(set(places)) == 40
    for part in (places[:10], places[10:20], places[:20]):  # any of them come from all over
        thirds = np.bincount(np.array(part) * 3 // len(pieces), minlength=3)
        assert np.ptp(thirds) <= 2


def test_larger_sets_begin_with_the_smaller_ones(loaded: Callable[[str], LoadedModel]) -> None:
    model = loaded("none")
    few, many = (documents.build(Documents(count=count), model, 80, seed=0) for count in (5, 9))
    auto = documents.build(Documents(most=40), model, 80, seed=0)
    assert torch.equal(few.ids, many.ids[:5])
    assert torch.equal(many.ids, auto.ids[:9])
    assert auto.part(0, 9).digest == many.digest
    assert len(auto.ids) == 40


def test_the_callers_texts_are_spread_and_none_is_lost(
    loaded: Callable[[str], LoadedModel],
) -> None:
    texts = [builtin.builtin_text()[i : i + 400] for i in range(0, 12_000, 400)]
    model = loaded("none")
    found = documents.build(Documents(source="inline", texts=texts), model, 20, seed=0)
    given = [model.tokenizer(text)["input_ids"][:20] for text in texts]  # type: ignore[misc]
    assert sorted(found.ids.tolist()) == sorted(given)
    assert found.ids.tolist() != given
    assert found.warnings == ()


def test_each_document_has_a_key_of_its_own() -> None:
    ids = torch.arange(12).reshape(4, 3)
    found = DocumentSet(ids, leading_bos=False, source="inline")
    assert len(set(found.keys)) == 4
    assert found.keys[1:3] == found.part(1, 3).keys
    assert found.part(2, 3).keys == (found.part(2, 3).digest,)


def test_fewer_documents_than_asked_get_used_with_a_warning(
    loaded: Callable[[str], LoadedModel],
) -> None:
    found = documents.build(Documents(count=64), loaded("none"), 30_000, seed=0)
    assert 1 <= len(found.ids) < 64
    assert found.warnings == (
        f"{len(found.ids)} documents of 30000 tokens instead of 64: the text has no more",
    )


def test_too_short_texts_are_left_out_never_padded(loaded: Callable[[str], LoadedModel]) -> None:
    texts = ["short", builtin.builtin_text()[:1_000], "", "also short"]
    spec = Documents.model_construct(source="inline", count=16, texts=texts, name=None)
    found = documents.build(spec, loaded("bos"), 50, seed=0)
    assert found.ids.shape == (1, 50)
    assert found.warnings == ("3 of 4 texts are too short and were left out",)
    with pytest.raises(DocumentsUnusable, match="no text has 50 tokens"):
        documents.build(Documents(source="inline", texts=["short"]), loaded("bos"), 50, seed=0)


def test_more_texts_than_count_is_said(loaded: Callable[[str], LoadedModel]) -> None:
    texts = [builtin.builtin_text()[i : i + 500] for i in range(0, 2_500, 500)]
    found = documents.build(
        Documents(source="inline", texts=texts, count=2), loaded("none"), 20, seed=0
    )
    assert len(found.ids) == 2
    assert found.warnings == ("5 texts were given, `documents` allows 2 of them",)


def test_random_tokens_follow_the_seed_and_leave_special_tokens_out(
    loaded: Callable[[str], LoadedModel],
) -> None:
    spec = Documents(source="random_tokens", count=8)
    one, again, other = (documents.build(spec, loaded("bos"), 500, seed=s) for s in (1, 1, 2))
    assert one.digest == again.digest != other.digest
    body = one.ids[:, 1:]
    assert int(body.min()) == 2
    assert int(body.max()) == 299
    counts = torch.bincount(body.flatten(), minlength=300)[2:].double()
    mean = counts.mean()
    assert float(((counts - mean) ** 2 / mean).sum()) < 297 + 6 * (2 * 297) ** 0.5


def test_a_model_without_tokenizer_reads_random_tokens(
    tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    bare = as_loaded(tiny_model())
    found = documents.build(Documents(), bare, 30, seed=0)
    assert found.source == "random_tokens"
    assert found.warnings == ("local:tiny has no tokenizer: random tokens were read",)
    asked = documents.build(Documents(source="random_tokens"), bare, 30, seed=0)
    assert asked.digest == found.digest
    assert asked.warnings == ()
    preset = replace(bare, id="gpt2", weights="random")
    said = documents.build(Documents(), preset, 30, seed=0).warnings
    assert said == ("the random weights of the preset gpt2 come without a tokenizer: "
                    "random tokens were read",)  # fmt: skip
    with pytest.raises(DocumentsUnusable, match="random_tokens only"):
        documents.build(Documents(source="inline", texts=["some text"]), bare, 3, seed=0)


@pytest.mark.parametrize("length", [1, 2])
def test_shortest_documents(length: int, loaded: Callable[[str], LoadedModel]) -> None:
    spec = Documents(count=16)
    found = documents.build(spec, loaded("none"), length, seed=0)
    assert found.ids.shape == (len(set(found.keys)), length)
    assert 4 <= len(found.ids) <= 16  # short pieces repeat
    with_bos = documents.build(spec, loaded("bos"), length, seed=0)
    assert with_bos.ids.shape == (1 if length == 1 else len(set(with_bos.keys)), length)
    with pytest.raises(DocumentsUnusable, match=r"1 tokens have no room for a text, .* 2 special"):
        documents.build(Documents(), loaded("two"), 1, seed=0)


def test_ids_beyond_the_embedding_table_are_an_error(
    tiny_model: Callable[..., Any],
    make_tokenizer: Callable[..., Any],
    as_loaded: Callable[..., LoadedModel],
) -> None:
    tokenizer = make_tokenizer()
    small = as_loaded(tiny_model(vocab_size=40), tokenizer)
    with pytest.raises(DocumentsUnusable, match="40 rows"):
        documents.build(Documents(), small, 30, seed=0)


def test_digest_is_of_shape_and_ids() -> None:
    ids = torch.arange(6).reshape(2, 3)
    found = DocumentSet(ids, leading_bos=False, source="inline")
    content = b"2 3\n" + b"".join(int(i).to_bytes(8, "little") for i in range(6))
    assert found.digest == hashlib.sha256(content).hexdigest()[:32]
    other = DocumentSet(ids.reshape(3, 2), leading_bos=False, source="inline")
    assert other.digest != found.digest


def test_corpus_reads_through_build(loaded: Callable[[str], LoadedModel], tmp_path: Path) -> None:
    (tmp_path / "prose").mkdir()
    (tmp_path / "prose" / "a.txt").write_text(builtin.builtin_text()[:4_000])
    spec = Documents(source="corpus", name="prose", count=3)
    found = documents.build(spec, loaded("bos"), 60, seed=0, corpus_dir=tmp_path)
    assert found.ids.shape == (3, 60)
    assert found.source == "corpus"


def of_words(known: int, unknown: int) -> str:
    return " ".join(["red"] * known + ["grün"] * unknown)


@pytest.fixture
def reader(
    tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> Callable[..., LoadedModel]:
    """A model with a tokenizer of one word; its unknown token may be undeclared."""

    def make(**declared: str) -> LoadedModel:
        backend = Tokenizer(models.WordLevel({"red": 0, "[UNK]": 1}, unk_token="[UNK]"))
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        return as_loaded(
            tiny_model(), PreTrainedTokenizerFast(tokenizer_object=backend, **declared)
        )

    return make


@pytest.mark.parametrize("declared", [{}, {"unk_token": "[UNK]"}])
def test_texts_that_the_tokenizer_does_not_know_are_refused(
    declared: dict[str, str], reader: Callable[..., LoadedModel]
) -> None:
    texts = [of_words(2, 18), of_words(12, 8)]
    spec = Documents(source="inline", count=2, texts=texts)
    with pytest.raises(DocumentsUnusable, match=r"65\.0% of the texts' tokens as \[UNK\]") as info:
        documents.build(spec, reader(**declared), 20, seed=0)
    assert info.value.field == "documents"


@pytest.mark.parametrize(("unknown", "warned"), [(0, False), (8, True)])
def test_texts_that_it_knows_in_part_have_a_warning(
    unknown: int, warned: bool, reader: Callable[..., LoadedModel]
) -> None:
    texts = [of_words(20 - unknown, unknown), of_words(20, 0)]
    found = documents.build(Documents(source="inline", count=2, texts=texts), reader(), 20, seed=0)
    said = "the tokenizer of local:tiny reads 20.0% of the texts' tokens as [UNK]"
    assert (said in found.warnings) == warned


def test_texts_that_begin_alike_are_read_once(loaded: Callable[[str], LoadedModel]) -> None:
    """Two documents with the same tokens ended the job with an internal error."""
    same = builtin.builtin_text()[:400]
    texts = [same, f"{same} and on", builtin.builtin_text()[1_000:1_400]]
    found = documents.build(
        Documents(source="inline", texts=texts), loaded("none"), length=20, seed=0
    )
    assert len(found.ids) == len(set(found.keys)) == 2
    assert any("1 of 3 documents have the same tokens" in text for text in found.warnings)


@pytest.mark.parametrize("source", ["builtin", "random_tokens"])
def test_short_pieces_that_repeat_are_read_once(
    source: Any, loaded: Callable[[str], LoadedModel]
) -> None:
    found = documents.build(Documents(source=source, count=400), loaded("none"), 1, seed=0)
    assert 1 < len(found.ids) == len(set(found.keys)) < 400
