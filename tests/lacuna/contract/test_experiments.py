from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from lacuna.contract.experiment_requests import (
    MAX_ALL_CHUNKS,
    ExperimentRequest,
    estimate,
    experiment_cost,
    prompt_tokens,
    prompts,
)
from lacuna.contract.experiments import ROW_COLUMNS, ExperimentRow
from lacuna.contract.profile_requests import ProfileRequest, cost


def question(**fields: Any) -> dict[str, Any]:
    chunks = [{"id": "a", "text": "Paris", "score": 2.0}, {"id": "b", "text": "no", "score": 1.0}]
    return {"question": "Where?", "answers": ["Paris"], "chunks": chunks} | fields


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "demo:smollm2-135m-instruct", "questions": [question()]} | fields


def chunks(*changes: dict[str, Any]) -> dict[str, Any]:
    made = [{"id": str(at), "text": "x", "score": 1.0} | one for at, one in enumerate(changes)]
    return body(questions=[question(chunks=made)])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (body(orders=["given"]), "name an order other than the `reference`"),
        (body(orders=["random", "random"]), "names one twice"),
        (body(orders=["advised"]), "`advised` needs `profile_id` or `density`"),
        (body(density=[1.0]), "go with the orders advised"),
        (body(orders=["optimal"], density=[0.0, 0.0]), "zero everywhere"),
        (body(orders=["optimal"], density=[1.0], profile_id="0" * 32), "not both"),
        (body(source="recall"), "`source` goes with `profile_id`"),
        (body(model="preset:llama"), "no trained weights"),
        (body(model="endpoint:Not Fine"), "should match pattern"),
        (body(model="http://example.org/v1"), "should match pattern"),
        (body(questions=[question(id="1"), question()]), None),
        (body(questions=[question(id="2"), question()]), "id '2' repeats"),
        (body(questions=[question(answers=["("])], scoring="regex"), "question '1'.*regular"),
        (body(questions=[question(answers=["("])]), None),
        (body(template={"jinja": "x", "ask": "{question}"}), "leave out `ask`"),
        (body(template={"chunk": "no place"}), r"must have \{text\}"),
        (body(smallest_effect=0.0), "greater than 0"),
        (chunks({"id": "a"}, {"id": "a"}), "id 'a' repeats"),
        (chunks({"pinned": 0}, {"pinned": 0}), "pinned twice"),
        (chunks({"pinned": 2}, {}), "none of the 2 places"),
        (chunks({"position": 1}, {}), "needs the `document`"),
        (chunks({"document": "d", "position": 1}, {"document": "d"}), "some have none"),
        (chunks({}), "at least 2"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(fields: dict[str, Any], words: str | None) -> None:
    if words is None:
        ExperimentRequest.model_validate(fields)
        return
    with pytest.raises(ValidationError, match=words):
        ExperimentRequest.model_validate(fields)


def test_chunks_are_bounded_in_all() -> None:
    many = [{"id": str(at), "text": "x", "score": 1.0} for at in range(100)]
    count = MAX_ALL_CHUNKS // 100 + 1
    with pytest.raises(ValidationError, match=f"limit is {MAX_ALL_CHUNKS:,}"):
        ExperimentRequest.model_validate(body(questions=[question(chunks=many)] * count))


def test_equal_experiments_are_one_job_and_texts_do_not_leak_into_it() -> None:
    asked = ExperimentRequest.model_validate(body())
    same = body(orders=["relevance_first", "relevance_last", "zigzag_best_last"], priority="high")
    assert ExperimentRequest.model_validate(same).job_id == asked.job_id
    other = body(questions=[question(answers=["London"])])
    assert ExperimentRequest.model_validate(other).job_id != asked.job_id
    assert ExperimentRequest.model_validate(body(seed=1)).job_id != asked.job_id
    text = str(asked.identity())
    assert not [word for word in ("Paris", "Where", "passages") if word in text]
    assert asked.endpoint is None
    assert ExperimentRequest.model_validate(body(model="endpoint:prod")).endpoint == "prod"


def test_the_estimate_counts_every_prompt() -> None:
    asked = ExperimentRequest.model_validate(body(questions=[question()] * 1))
    assert prompts(asked) == 4 + 1 + 1
    bare = ExperimentRequest.model_validate(body(a_a=False, closed_book=False))
    assert prompts(bare) == 4
    longer = [{"id": str(at), "text": "x" * 4_000, "score": 1.0} for at in range(2)]
    long = body(questions=[question(chunks=longer)], a_a=False, closed_book=False)
    more = prompt_tokens(ExperimentRequest.model_validate(long)) - prompt_tokens(bare)
    assert more == pytest.approx(4 * 2_000, rel=0.01)
    served = estimate(ExperimentRequest.model_validate(body(model="endpoint:prod")), 30, 576)
    assert served.calls is not None
    assert served.calls > 6
    assert served.multiply_adds is None
    assert estimate(asked, 30, 576).multiply_adds == pytest.approx(
        experiment_cost(asked, 30, 576), rel=1e-5
    )


def test_a_forward_pass_costs_half_of_a_document() -> None:
    asked = ExperimentRequest.model_validate(body())
    length = -(-prompt_tokens(asked) // 6)
    profile = ProfileRequest.model_validate(
        {"model": "gpt2", "sequence_length": length, "documents": {"count": 6}}
    )
    assert experiment_cost(asked, 30, 576) == pytest.approx(cost(profile, 30, 9, 576) / 2)


def test_a_row_has_its_cells_in_order() -> None:
    row = ExperimentRow(
        question="q", arm="a_a", place=None, chunks=2, score=0.5, log_probability=-0.7,
        prompt_tokens=9,
    )  # fmt: skip
    assert dict(zip(ROW_COLUMNS, row.cells(), strict=True)) == {
        "question": "q", "arm": "a_a", "place": "", "chunks": "2", "score": "0.5",
        "log_probability": "-0.7", "prompt_tokens": "9",
    }  # fmt: skip
