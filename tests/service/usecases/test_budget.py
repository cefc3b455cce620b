from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contract.errors import TooLarge
from service.contract.profiles import Documents, ProfileRequest
from service.usecases.budget import ASSUMED_SHAPE, check, cost


def request(model: str = "x/y", **fields: object) -> ProfileRequest:
    return ProfileRequest.model_validate({"model": model, **fields})


def test_cost_is_the_product() -> None:
    layers, heads = ASSUMED_SHAPE
    asked = request(sequence_length=100, documents=Documents(count=3))
    assert cost(asked) == 100 * 3 * layers * heads
    assert cost(request("demo:smollm2-135m-instruct")) == 256 * 16 * 30 * 9
    assert cost(request("openai-community/gpt2")) == 256 * 16 * 12 * 12
    assert cost(request("preset:gpt2", weights="random", probes=2)) == 2 * 256 * 16 * 12 * 12


def test_probes_count_where_each_is_a_pass() -> None:
    assert cost(request(objective="jacobian", probes=7)) == 7 * cost(request())
    assert cost(request(probes=7)) == cost(request())


def test_the_field_to_lower_is_named() -> None:
    with pytest.raises(TooLarge) as many:
        check(request(documents=Documents(count=100)), limit=256 * 1024 * 10)
    assert many.value.field == "documents.count"
    with pytest.raises(TooLarge) as long:
        check(request(sequence_length=1_000), limit=256 * 1024)
    assert long.value.field == "sequence_length"


@given(st.integers(1, 131_072), st.integers(1, 4_096), st.floats(1, 1e12))
def test_exactly_what_exceeds_the_limit_is_refused(length: int, count: int, limit: float) -> None:
    asked = request(sequence_length=length, documents=Documents(count=count))
    if cost(asked) > limit:
        with pytest.raises(TooLarge):
            check(asked, limit)
    else:
        check(asked, limit)
