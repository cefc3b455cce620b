from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacuna.contract.errors import TooLarge
from lacuna.contract.profile_requests import Documents, ProfileRequest
from service.answers.profiles import estimated_cost, refuse_too_costly
from service.settings import Settings

DEMO = "demo:smollm2-135m-instruct"
SHORT: dict[str, Any] = {"predictions": ["residual"]}
MOMENT: dict[str, Any] = {"predictions": ["second_moment"]}


def request(model: str = "x/y", **fields: Any) -> ProfileRequest:
    return ProfileRequest.model_validate({"model": model, **fields})


def long(model: str, length: int, count: int, **fields: Any) -> ProfileRequest:
    return request(model, sequence_length=length, documents={"count": count}, **fields)


def test_cost_counts_matrices_and_attention() -> None:
    asked = long("gpt2", 100, 3, **SHORT)
    assert estimated_cost(asked) == 3 * 12 * 100 * 768 * (12 * 768 + 2 * 100)
    assert estimated_cost(request("openai-community/gpt2")) == estimated_cost(request("gpt2"))


def test_long_documents_cost_more_than_their_length() -> None:
    double = estimated_cost(long(DEMO, 65_536, 1, **SHORT)) / estimated_cost(
        long(DEMO, 32_768, 1, **SHORT)
    )
    assert 3.8 < double < 4
    assert estimated_cost(long(DEMO, 64, 7, **SHORT)) == pytest.approx(
        7 * estimated_cost(long(DEMO, 64, 1, **SHORT))
    )


def test_probes_count_where_each_is_a_backward_pass() -> None:
    one = estimated_cost(request(objective="jacobian", probes=1, **SHORT))
    assert estimated_cost(request(objective="jacobian", probes=7, **SHORT)) == 4 * one
    assert one == estimated_cost(request(probes=7, **SHORT))


def test_the_second_moment_counts() -> None:
    plain = estimated_cost(request(**SHORT))
    with_moment = request(**MOMENT)
    assert estimated_cost(with_moment) > plain == estimated_cost(request())
    more = [
        estimated_cost(long("x/y", 256, k, **MOMENT)) - estimated_cost(long("x/y", 256, k, **SHORT))
        for k in (15, 16, 64)
    ]
    assert more[0] < more[1] == pytest.approx(more[2])
    one = estimated_cost(long("x/y", 256, 1, **SHORT))
    assert 15 * one < more[0] < 15 * 4 * one  # its own passes, not many times the measurement's


def test_recall_counts_and_the_refusal_says_what_fits_without_it() -> None:
    plain = estimated_cost(request(**SHORT))
    few, many = (estimated_cost(request(recall={"groups": k}, **SHORT)) for k in (16, 512))
    assert plain < few < many
    with pytest.raises(TooLarge, match="or all of it without recall") as refusal:
        refuse_too_costly(request(recall={"groups": 512}, **SHORT), (few + many) / 2)
    assert refusal.value.field == "recall"
    with pytest.raises(TooLarge) as refusal:
        refuse_too_costly(request(recall={}, **SHORT), plain / 2)
    assert "without recall" not in str(refusal.value)


@pytest.mark.parametrize(("length", "count"), [(256, 16), (512, 32), (2_048, 16), (8_192, 1)])
@pytest.mark.parametrize("model", [DEMO, "preset:qwen2-0.5b", "local:tiny", "somebody/something"])
def test_what_takes_a_few_hours_at_most_is_allowed_on_cpus(
    model: str, length: int, count: int
) -> None:
    weights = "random" if model.startswith("preset:") else "pretrained"
    refuse_too_costly(long(model, length, count, weights=weights), Settings().max_cost)


def test_the_defaults_are_allowed_on_cpus_up_to_seven_billion_parameters() -> None:
    refuse_too_costly(request("mistralai/Mistral-7B-v0.1"), Settings().max_cost)


@pytest.mark.parametrize(
    ("model", "length", "count"),
    [
        (DEMO, 8_192, 64),
        (DEMO, 131_072, 1),
        (DEMO, 256, 4_096),
        ("mistralai/Mistral-7B-v0.1", 2_048, 16),
    ],
)
def test_what_takes_many_hours_is_refused_on_cpus_only(model: str, length: int, count: int) -> None:
    asked = long(model, length, count)
    with pytest.raises(TooLarge):
        refuse_too_costly(asked, Settings().max_cost)
    refuse_too_costly(asked, Settings().max_cost_gpu)


def test_the_field_to_lower_is_named_with_what_would_fit() -> None:
    asked = long(DEMO, 8_192, 64)
    limit = estimated_cost(long(DEMO, 8_192, 10))
    with pytest.raises(TooLarge, match="64 documents of 8192 tokens cost") as many:
        refuse_too_costly(asked, limit)
    assert many.value.field == "documents.count"
    assert "limit of the cpu queue" in many.value.detail
    assert " 10 documents of 8192 tokens or 64 documents of " in many.value.detail
    tokens = int(many.value.detail.split("64 documents of ")[2].split()[0])
    assert (
        estimated_cost(long(DEMO, tokens, 64)) <= limit < estimated_cost(long(DEMO, tokens + 1, 64))
    )
    limit = estimated_cost(long(DEMO, 8_191, 1))
    with pytest.raises(TooLarge, match="one document of 8191 tokens") as one:
        refuse_too_costly(asked, limit, "gpu")
    assert one.value.field == "sequence_length"
    assert "gpu" in one.value.detail
    with pytest.raises(TooLarge, match="nothing"):
        refuse_too_costly(asked, 1.0)
    with pytest.raises(TooLarge, match="or all of it without the prediction second_moment"):
        refuse_too_costly(long(DEMO, 8_192, 64, **MOMENT), estimated_cost(asked))


@given(st.integers(1, 131_072), st.integers(1, 4_096), st.floats(1, 1e20))
def test_exactly_what_exceeds_the_limit_is_refused(length: int, count: int, limit: float) -> None:
    asked = request(sequence_length=length, documents=Documents(count=count))
    if estimated_cost(asked) > limit:
        with pytest.raises(TooLarge):
            refuse_too_costly(asked, limit)
    else:
        refuse_too_costly(asked, limit)
