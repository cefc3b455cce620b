from __future__ import annotations

import pytest

from lacuna.experiments.scoring import normalized
from workers.recall.reader import Question


@pytest.mark.parametrize(
    ("said", "right"),
    [
        (" Paris", True),
        ('"Paris", of course', True),
        ("\n*paris*\nand more", True),
        ("Parisian", False),
        ("It is Paris", False),
        ("", False),
    ],
)
def test_a_text_is_right_when_it_starts_with_the_answer(said: str, right: bool) -> None:
    assert Question("", " Paris").right(said) is right


def test_contains_finds_any_accepted_answer_in_any_place() -> None:
    asked = Question("", " x", accepted=("Las Vegas, Nevada", "the Strip"), scoring="contains")
    assert asked.right("They come from Las Vegas Nevada.")
    assert asked.right("On Strip, I think")
    assert not asked.right("They come from Reno, Nevada.")


def test_an_answer_of_articles_alone_is_not_in_every_text() -> None:
    assert not Question("", " x", accepted=("The",), scoring="contains").right("anything")


def test_normalising_twice_changes_nothing() -> None:
    text = ' The  "Eiffel-Tower", a   tower; AN end. '
    assert normalized(normalized(text)) == normalized(text) == "eiffeltower tower end"
