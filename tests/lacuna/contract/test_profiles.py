from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lacuna.contract.profile_requests import (
    COSTLY_PREDICTION,
    DEFAULT_PREDICTIONS,
    MOST_DOCUMENTS,
    PREDICTION_NAMES,
    ProfileRequest,
    cost,
)


def parse(**fields: Any) -> ProfileRequest:
    return ProfileRequest.model_validate_json(json.dumps({"model": "gpt2", **fields}))


@pytest.mark.parametrize(
    "model",
    ["", "a/b/c", "../x", "/etc", ".", "%2e%2e", "a\x00b", "x" * 300, "/tmp", "~", "a b",
     "local:a/b", "demo:", "http://x/y", "a..b", "-a", "None"],
)  # fmt: skip
def test_what_is_no_model_id_is_refused(model: str) -> None:
    with pytest.raises(ValidationError, match="model"):
        parse(model=model)


@pytest.mark.parametrize(
    "model",
    ["gpt2", "bigscience/bloom-7b1", "local:tiny", "demo:smollm2-135m-instruct", "a.b/c_d-1.5"],
)
def test_model_ids_are_accepted(model: str) -> None:
    assert parse(model=model).model == model


@pytest.mark.parametrize("length", [-1, 0, 10**12, 1000.0, "256", True, None])
def test_a_sequence_length_that_is_none_is_refused(length: object) -> None:
    with pytest.raises(ValidationError, match="sequence_length"):
        parse(sequence_length=length)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"documents": {"count": 10**9}}, "count"),
        ({"documents": {"source": "inline"}}, "texts"),
        ({"documents": {"texts": ["a"]}}, "texts"),
        ({"documents": {"source": "corpus"}}, "name"),
        ({"documents": {"source": "corpus", "name": "../x"}}, "name"),
        ({"objective": "target_logprob"}, "target"),
        ({"target": "x"}, "target"),
        ({"predictions": ["residual", "residual"]}, "predictions"),
        ({"sequence_lenght": 3}, "sequence_lenght"),
        ({"model": "preset:gpt2"}, "preset"),
    ],
)
def test_fields_that_do_not_fit_are_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        parse(**fields)


def test_defaults_written_out_are_the_same_job() -> None:
    written = {"count": "auto", "most": MOST_DOCUMENTS}
    assert parse().job_id == parse(sequence_length=256, seed=0, documents=written).job_id


def test_the_costly_prediction_is_asked_for_by_name() -> None:
    assert set(PREDICTION_NAMES) - set(DEFAULT_PREDICTIONS) == {COSTLY_PREDICTION}
    sizes = {"layers": 30, "heads": 9, "width": 576}
    plain, named = parse(), parse(predictions=[COSTLY_PREDICTION])
    assert cost(plain, **sizes) == cost(parse(predictions=[]), **sizes) < cost(named, **sizes)


def test_a_count_in_numbers_has_no_use_for_the_most() -> None:
    counted = parse(documents={"count": 40})
    assert counted.job_id == parse(documents={"count": 40, "most": 99}).job_id
    assert counted.job_id != parse(documents={"count": 41}).job_id
    assert parse().job_id != parse(documents={"most": 99}).job_id
    assert (counted.documents.limit, parse(documents={"most": 99}).documents.limit) == (40, 99)


@pytest.mark.parametrize("documents", [{"count": "all"}, {"count": 0}, {"count": 4097},
                                       {"count": 16.0}, {"most": 31}, {"most": 4097}])  # fmt: skip
def test_a_count_is_a_number_or_auto(documents: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        parse(documents=documents)


def test_priority_is_no_part_of_the_identity() -> None:
    assert parse().job_id == parse(priority="high").job_id


def test_random_weights_default_to_the_jacobian() -> None:
    assert parse(weights="random").resolved_objective == "jacobian"
    assert parse(weights="random").job_id == parse(weights="random", objective="jacobian").job_id


def test_the_callers_texts_are_not_in_the_identity() -> None:
    secret = "the caller's own words"
    request = parse(documents={"source": "inline", "texts": [secret]})
    assert secret not in json.dumps(request.identity())


@given(st.integers(1, 4096), st.integers(0, 100), st.sampled_from(["model", "raw"]))
def test_different_requests_are_different_jobs(length: int, seed: int, scale: str) -> None:
    request = parse(sequence_length=length, seed=seed, content_scale=scale)
    other = parse(sequence_length=length, seed=seed + 1, content_scale=scale)
    assert request.job_id != other.job_id
    assert parse(**json.loads(request.model_dump_json(exclude={"model"}))).job_id == request.job_id
