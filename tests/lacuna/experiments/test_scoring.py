from __future__ import annotations

import time

import pytest

from lacuna.contract.experiment_requests import ExperimentQuestion, Scoring
from lacuna.experiments.scoring import gold, right, unanswered


@pytest.mark.parametrize(
    ("said", "answers", "scoring", "found"),
    [
        ("It is the Eiffel Tower.", ["eiffel tower"], "contains", True),
        ("It is a tower.", ["the"], "contains", False),
        ("\n The Paris!\nand more", ["paris"], "exact", True),
        ("Paris, France", ["paris"], "exact", False),
        ("born in 1957.", [r"\b19\d\d\b"], "regex", True),
        ("born in 2057.", [r"\b19\d\d\b"], "regex", False),
        ("Paris", ["London", "Paris"], "regex", True),
    ],
)
def test_replies(said: str, answers: list[str], scoring: Scoring, found: bool) -> None:
    assert right(said, answers, scoring) is found


def test_probabilities_are_not_compared_as_texts() -> None:
    with pytest.raises(ValueError, match="compares no texts"):
        right("a", ["a"], "log_probability")


def test_a_pattern_that_never_ends_is_given_up() -> None:
    began = time.monotonic()
    assert not right("a" * 60 + "b", [r"^(a|aa)+$"], "regex")
    assert time.monotonic() - began < 5


def asked(*chunks: tuple[str, bool | None], answers: list[str]) -> ExperimentQuestion:
    made = [
        {"id": str(at), "text": text, "score": 1.0, "gold": marked}
        for at, (text, marked) in enumerate(chunks)
    ]
    return ExperimentQuestion.model_validate({"question": "q", "answers": answers, "chunks": made})


def test_chunks_with_the_answer_are_found_by_whole_words() -> None:
    one = asked(("In 1957.", None), ("It was 5.", None), ("no", True), ("5", False), answers=["5"])
    assert gold([one], "contains")[0] == [False, True, True, False]


def test_questions_whose_answer_stands_in_no_chunk_are_counted() -> None:
    there = asked(("The river Ara.", None), ("Bel", None), answers=["zzz", "the ARA"])
    inside = asked(("東京は首都です", None), ("no", None), answers=["東京"])
    nowhere = asked(("Ara", None), ("Bel", None), answers=["zzz"])
    marked = asked(("Ara", True), ("Bel", None), answers=["zzz"])
    denied = asked(("zzz", False), ("Bel", False), answers=["zzz"])
    assert unanswered([there, inside, nowhere, marked, denied], "contains") == 2
    year = asked(("In 1957.", None), ("never", None), answers=[r"19\d\d"])
    assert unanswered([year], "regex") == 0
    assert unanswered([year], "contains") == 1


def test_patterns_find_their_chunks() -> None:
    one = asked(("In 1957.", None), ("never", None), answers=[r"19\d\d"])
    assert gold([one], "regex")[0] == [True, False]
    assert gold([one], "contains")[0] == [False, False]
