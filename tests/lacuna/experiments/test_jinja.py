from __future__ import annotations

import pytest

from lacuna.contract.errors import InvalidRequest
from lacuna.experiments import jinja

CHUNKS = [
    {"number": 1, "text": " one ", "id": "a", "document": "d"},
    {"number": 2, "text": "two {{ question }}", "id": "b", "document": ""},
]


def made(source: str) -> str:
    return jinja.rendered(jinja.compiled(source), "who?", CHUNKS)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "{% for c in chunks %}{{ loop.index }}: {{ c.text|trim }}\n{% endfor %}{{ question }}",
            "1: one\n2: two {{ question }}\nwho?",
        ),
        (
            "{% for c in chunks %}{{ c['id'] }}{% if not loop.last %}, {% endif %}{% endfor %}",
            "a, b",
        ),
        ("{{ chunks|length }} {% if chunks %}some{% else %}none{% endif %}", "2 some"),
        ("{% for c in chunks if c.document %}{{ c.document|upper }}{% endfor %}", "D"),
        (
            "{% for c in chunks %}{{ c.number + 1 }}{{ '!' if loop.first else '' }}{% endfor %}",
            "2!3",
        ),
        ("x\n", "x\n"),
    ],
)
def test_what_templates_can_do(source: str, text: str) -> None:
    assert made(source) == text


@pytest.mark.parametrize(
    "source",
    [
        "{{ question.__class__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ question['__class__'] }}",
        "{{ (question|trim).__init__ }}",
        "{{ ''|attr('__class__') }}",
        "{{ range(9) }}",
        "{{ cycler }}",
        "{{ self }}",
        "{{ question * 9 }}",
        "{{ 9 ** 9 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ question ~ question }}",
        "{{ question|center(99999999) }}",
        "{{ question|replace('', 'xx') }}",
        "{{ [1, 2, 3] }}",
        "{{ chunks }}",
        "{{ chunks|upper }}",
        "{{ chunks[0].text }}",
        "{% set x = question %}{{ x }}",
        "{% macro f() %}{{ f() }}{% endmacro %}",
        "{% include 'secrets' %}",
        "{% import 'os' as os %}",
        "{% extends 'x' %}",
        "{% for c in chunks %}{% for d in chunks %}x{% endfor %}{% endfor %}",
        "{% for c in chunks %}{% else %}{% for d in chunks %}{% for e in chunks %}x{% endfor %}"
        "{% endfor %}{% endfor %}",
        "{% for c in chunks recursive %}{{ loop(chunks) }}{% endfor %}",
        "{% for c in question %}x{% endfor %}",
        "{% for a, b in chunks %}x{% endfor %}",
        "{% for chunks in chunks %}x{% endfor %}",
        "{% for loop in chunks %}x{% endfor %}",
        "{% for c in chunks %}{{ c.score }}{% endfor %}",
        "{% for c in chunks %}{{ loop.cycle }}{% endfor %}",
        "{{ question is callable }}",
        "{{ que",
        "{{ " + "(" * 400 + "1" + ")" * 400 + " }}",
        "{{ question }}" * 400,
    ],
)
def test_everything_else_is_refused_before_it_runs(source: str) -> None:
    with pytest.raises(InvalidRequest, match=r"`template\.jinja`") as caught:
        jinja.compiled(source)
    assert caught.value.field == "template"


@pytest.mark.parametrize("source", ["{{ question + 1 }}", "{{ question - 'a' }}"])
def test_what_fails_while_it_runs_is_the_callers_fault(source: str) -> None:
    with pytest.raises(InvalidRequest, match=r"`template\.jinja`: TypeError"):
        made(source)


def test_the_output_is_bounded() -> None:
    template = jinja.compiled("{% for c in chunks %}{{ c.text }}{% endfor %}")
    long = [{"text": "x" * 1_000_000}] * 5
    with pytest.raises(InvalidRequest, match="more than 4,000,000 characters"):
        jinja.rendered(template, "who?", long)


@pytest.mark.parametrize(
    "source",
    [
        "{% if question %}" * 98 + "x" + "{% endif %}" * 98,
        "{{ question" + "|upper" * 280 + " }}",
        "{{ " + "not " * 280 + "question }}",
        "{{ question" + " + question" * 140 + " }}",
        "{{ " + "question if question else " * 90 + "question }}",
        "{{ question" + "[0]" * 3_000 + " }}",
    ],
    ids=["if", "filter", "not", "add", "else", "index"],
)
def test_what_is_deeply_nested_is_refused_before_it_is_compiled(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """280 filters took 20 s to compile, and 98 conditions were an error of Python's own."""
    from jinja2 import Environment

    compiles: list[object] = []
    monkeypatch.setattr(Environment, "from_string", lambda _, given: compiles.append(given))
    with pytest.raises(InvalidRequest, match=r"inside each other|recursion|parts"):
        jinja.compiled(source)
    assert not compiles


def test_what_is_nested_as_people_do_compiles() -> None:
    depth = 24
    source = "{% if question %}" * depth + "{{ question|upper|trim }}" + "{% endif %}" * depth
    assert jinja.rendered(jinja.compiled(source), "a", []) == "A"


def test_half_a_character_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="surrogates not allowed"):
        made("{{ '\\ud800' }}")
