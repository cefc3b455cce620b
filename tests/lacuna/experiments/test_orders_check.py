from __future__ import annotations

from typing import Any

import pytest

from lacuna.contract.errors import InvalidRequest, LacunaError, TooLarge
from lacuna.contract.experiment_requests import ExperimentRequest
from lacuna.experiments.orders import check


def request(
    text: str = "x", count: int = 1, score: float = 1.0, **fields: Any
) -> ExperimentRequest:
    chunks = [{"id": name, "text": text, "score": score} for name in "ab"]
    question = {"question": "q", "answers": ["a"], "chunks": chunks}
    return ExperimentRequest.model_validate(
        {"model": "gpt2", "questions": [question] * count, **fields}
    )


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"orders": ["advised"], "density": [1.0, 2.0]},
        {"orders": ["advised"], "reference": "optimal", "density": [1.0, 2.0]},
        {"orders": ["advised"], "profile_id": "0" * 32},
        {"budget": {"max_calls": 6, "max_tokens": 1_000, "max_cost": 0.01}},
        {"template": {"jinja": "{{ question }}{% for c in chunks %}{{ c.text }}{% endfor %}"}},
        {
            "template": {"jinja": "{% for c in chunks %}{{ c.text }}{% endfor %}"},
            "closed_book": False,
        },
    ],
)
def test_what_can_be_run_passes(fields: dict[str, Any]) -> None:
    check(request(**fields))


@pytest.mark.parametrize(
    ("fields", "error", "field"),
    [
        ({"template": {"jinja": "{{ 9 ** 9 }}"}}, InvalidRequest, "template"),
        (
            {"orders": ["relevance_first", "document_order"], "score": 1.0},
            InvalidRequest,
            "orders",
        ),
        ({"template": {"ask": "{question} {who}"}}, InvalidRequest, "template.ask"),
        (
            {"template": {"jinja": "{% for c in chunks %}{{ c.text }}{% endfor %}"}},
            InvalidRequest,
            "template",
        ),
        ({"relevance_scale": "probability", "score": 2.0}, InvalidRequest, "questions.0.chunks"),
        ({"budget": {"max_calls": 5}}, TooLarge, "budget.max_calls"),
        ({"budget": {"max_tokens": 50}}, TooLarge, "budget.max_tokens"),
        ({"text": "x" * 50_000, "count": 200, "model": "endpoint:a"}, TooLarge, "questions"),
    ],
)
def test_what_cannot_is_refused_by_name(
    fields: dict[str, Any], error: type[LacunaError], field: str
) -> None:
    asked = request(**fields)
    with pytest.raises(error) as caught:
        check(asked)
    assert caught.value.field == field


def told_apart(**fields: Any) -> ExperimentRequest:
    """Two questions, one whose chunks are alike and one with three that are not."""
    alike = [{"id": name, "text": "same", "score": 1.0} for name in "ab"]
    other = [{"id": name, "text": f"text {name}", "score": 1.0} for name in "abc"]
    asked = [{"question": "q", "answers": ["a"], "chunks": chunks} for chunks in (alike, other)]
    return ExperimentRequest.model_validate(
        {"model": "gpt2", "questions": asked, "orders": ["random"], **fields}
    )


@pytest.mark.parametrize(
    "template",
    [
        "Q {{ question }}",
        "{{ question }} {{ chunks|length }}",
        "{{ question }}{% for c in chunks %} [{{ c.number }}]{% endfor %}",
        "{{ question }}{% for c in chunks %}{{ c.text if c.text == 'no' else '-' }}{% endfor %}",
    ],
)
def test_a_template_that_shows_no_order_is_refused(template: str) -> None:
    with pytest.raises(InvalidRequest, match="stays the same") as caught:
        check(told_apart(template={"jinja": template}))
    assert caught.value.field == "template"


@pytest.mark.parametrize(
    "template",
    [
        "{{ question }}{% for c in chunks %}{{ c.text }}{% endfor %}",
        "{{ question }}{% for c in chunks %}{% if loop.first %}{{ c.text }}{% endif %}{% endfor %}",
        "{{ question }}{% for c in chunks %}{{ c.text if loop.index == 2 else '-' }}{% endfor %}",
    ],
)
def test_a_template_that_shows_some_of_the_order_passes(template: str) -> None:
    check(told_apart(template={"jinja": template}))
