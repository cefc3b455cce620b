from __future__ import annotations

from typing import Any

import pytest

from lacuna.contract.errors import InvalidRequest
from lacuna.contract.experiment_requests import ExperimentQuestion, ExperimentTemplate
from lacuna.experiments.rendering import Renderer, around

ASKED = ExperimentQuestion.model_validate(
    {
        "question": "Where is {text}?",
        "answers": ["Paris"],
        "chunks": [
            {"id": "a", "text": "alpha {id} {question}", "score": 2.0, "document": "d"},
            {"id": "b", "text": "beta", "score": 1.0},
        ],
    }
)


def template(**fields: Any) -> ExperimentTemplate:
    return ExperimentTemplate.model_validate({"instructions": "Do.", **fields})


@pytest.mark.parametrize(
    ("fields", "order", "user"),
    [
        ({}, (1, 0), "Do.\n\n[1] beta\n\n[2] alpha {id} {question}\n\nQuestion: Where is {text}?"),
        (
            {"question": "both", "chunk": "{id}={text}", "separator": "|", "ask": "{question}"},
            (0, 1),
            "Do.|Where is {text}?|a=alpha {id} {question}|b=beta|Where is {text}?",
        ),
        ({"question": "first", "instructions": ""}, (), "Question: Where is {text}?"),
        ({"question": "both"}, (), "Do.\n\nQuestion: Where is {text}?"),
        ({"chunk": "{document}:{text}"}, (1,), "Do.\n\n:beta\n\nQuestion: Where is {text}?"),
    ],
)
def test_plain_fields(fields: dict[str, Any], order: tuple[int, ...], user: str) -> None:
    assert Renderer(template(**fields))(ASKED, order).user == user


def test_a_jinja_template_is_the_whole_message() -> None:
    source = "{{ question }} {% for c in chunks %}<{{ c.number }} {{ c.text }}>{% endfor %}"
    render = Renderer(ExperimentTemplate(jinja=source))
    assert render(ASKED, (1, 0)).user == "Where is {text}? <1 beta><2 alpha {id} {question}>"
    assert render(ASKED, ()).user == "Where is {text}? "


@pytest.mark.parametrize(
    ("lead", "text", "answer"),
    [
        ("Answer:", "S\n\nDo.\n\nQuestion: Where is {text}?\nAnswer:", " Paris"),
        ("Answer: ", "S\n\nDo.\n\nQuestion: Where is {text}?\nAnswer: ", "Paris"),
        ("", "S\n\nDo.\n\nQuestion: Where is {text}?", " Paris"),
    ],
)
def test_the_answer_continues_the_text(lead: str, text: str, answer: str) -> None:
    prompt = Renderer(template(system="S", answer=lead))(ASKED, ())
    assert (prompt.text, prompt.answer("Paris")) == (text, answer)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"chunk": "{text} {score}"}, r"`template\.chunk`: there is no \{score\}"),
        ({"ask": "{question} {text}"}, r"`template\.ask`: there is no \{text\}"),
    ],
)
def test_unknown_places_are_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        Renderer(template(**fields))


def test_an_empty_prompt_is_refused() -> None:
    render = Renderer(ExperimentTemplate(jinja="{% for c in chunks %}{{ c.text }}{% endfor %}"))
    assert render(ASKED, (1,)).user == "beta"
    with pytest.raises(InvalidRequest, match="empty prompt"):
        render(ASKED, ())


def test_what_stands_around_the_chunks_is_found() -> None:
    prompt = Renderer(template(answer=""))(ASKED, (0, 1))
    found = around(lambda: prompt, ASKED.chunks[0].text, ASKED.chunks[1].text)
    assert found == ("Do.\n\n[1] ", "\n\nQuestion: Where is {text}?")
    assert around(lambda: prompt, "not there", "beta") == ("", "")
