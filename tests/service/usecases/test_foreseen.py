from __future__ import annotations

from typing import Any

import pytest

from service.contract.errors import TooLong
from service.contract.profile_requests import ProfileRequest
from service.usecases.foreseen import check

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
    check(request(model, weights=weights, sequence_length=limit))
    words = f"{limit + 1} tokens are more than the {limit} that {model} can take"
    with pytest.raises(TooLong, match=words) as refusal:
        check(request(model, weights=weights, sequence_length=limit + 1))
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
    check(request(**fields, sequence_length=131_072))
