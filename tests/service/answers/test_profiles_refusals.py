from __future__ import annotations

from typing import Any

import pytest

from lacuna.contract.errors import (
    DocumentsUnusable,
    InvalidRequest,
    LacunaError,
    ModelNotFound,
    TooLong,
)
from lacuna.contract.profile_requests import ProfileRequest
from service.answers.profiles import refuse_unmeasurable

DEMO = "demo:smollm2-135m-instruct"


def request(model: str, **fields: Any) -> ProfileRequest:
    return ProfileRequest.model_validate({"model": model, **fields})


@pytest.mark.parametrize(
    ("model", "weights", "limit"),
    [
        (DEMO, "pretrained", 8_192),
        ("preset:gpt2", "random", 1_024),
        ("gpt2", "random", 1_024),
        ("openai-community/gpt2", "pretrained", 1_024),
    ],
)
def test_more_tokens_than_the_model_takes_are_refused(model: str, weights: str, limit: int) -> None:
    refuse_unmeasurable(request(model, weights=weights, sequence_length=limit))
    words = f"{limit + 1} tokens are more than the {limit} that {model} can take"
    with pytest.raises(TooLong, match=words) as refusal:
        refuse_unmeasurable(request(model, weights=weights, sequence_length=limit + 1))
    assert refusal.value.field == "sequence_length"


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "preset:bloom-560m", "weights": "random"},
        {"model": "local:tiny"},
        {"model": "somebody/something"},
        {"model": "gpt2", "revision": "longer"},
    ],
    ids=lambda fields: fields["model"],
)
def test_where_no_limit_is_known_none_is_set(fields: dict[str, Any]) -> None:
    refuse_unmeasurable(request(**fields, sequence_length=131_072))


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        (
            {"model": "preset:gpt-2", "weights": "random"},
            "model",
            "no preset is named gpt-2; .*gpt2",
        ),
        ({"model": "demo:smollm"}, "model", "no demo is named smollm; there is smollm2-135m-ins"),
        ({"model": DEMO, "revision": "main"}, "revision", "has no revisions"),
        ({"model": "local:tiny", "revision": "main"}, "revision", "has no revisions"),
    ],
)
def test_names_that_nobody_has_are_refused(fields: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(ModelNotFound, match=words) as refusal:
        refuse_unmeasurable(request(**fields))
    assert refusal.value.field == field


def test_names_that_a_worker_may_have_are_not() -> None:
    refuse_unmeasurable(request("preset:GPT2", weights="random"))
    refuse_unmeasurable(request("local:anything"))
    refuse_unmeasurable(request("somebody/gpt5", revision="main"))


TEXTS = {"source": "inline", "texts": ["a text"]}
NEED_A_TOKENIZER: dict[str, tuple[dict[str, Any], type[LacunaError]]] = {
    "documents.source": ({"documents": TEXTS}, DocumentsUnusable),
    "recall": ({"recall": {}}, DocumentsUnusable),
    "target": ({"objective": "target_logprob", "target": " Paris"}, InvalidRequest),
}


@pytest.mark.parametrize("model", ["preset:gpt2", "gpt2", "openai-community/gpt2"])
@pytest.mark.parametrize("field", NEED_A_TOKENIZER)
def test_what_needs_a_tokenizer_is_refused_where_there_is_none(model: str, field: str) -> None:
    fields, kind = NEED_A_TOKENIZER[field]
    with pytest.raises(kind, match="random weights of the preset gpt2 come without") as refusal:
        refuse_unmeasurable(request(model, weights="random", **fields))
    assert refusal.value.field == field


def test_a_folder_of_texts_needs_a_tokenizer_too() -> None:
    documents = {"source": "corpus", "name": "mine"}
    with pytest.raises(DocumentsUnusable):
        refuse_unmeasurable(request("preset:gpt2", weights="random", documents=documents))


@pytest.mark.parametrize("field", NEED_A_TOKENIZER)
def test_where_there_may_be_a_tokenizer_nothing_is_refused(field: str) -> None:
    fields, _ = NEED_A_TOKENIZER[field]
    refuse_unmeasurable(request("gpt2", **fields))
    refuse_unmeasurable(request("gpt2", weights="random", revision="main", **fields))
    refuse_unmeasurable(request("local:tiny", weights="random", **fields))
    refuse_unmeasurable(request(DEMO, weights="random", **fields))


def test_a_preset_reads_random_tokens() -> None:
    refuse_unmeasurable(
        request("preset:gpt2", weights="random", documents={"source": "random_tokens"})
    )
    refuse_unmeasurable(request("preset:gpt2", weights="random"))
