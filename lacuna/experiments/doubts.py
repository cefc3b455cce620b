"""What makes an experiment doubtful, as far as its questions tell before anything is read."""

from __future__ import annotations

from lacuna.contract.experiment_requests import (
    ADVISED_QUESTIONS,
    LEAST_QUESTIONS,
    ExperimentRequest,
    Scoring,
)
from lacuna.experiments.scoring import unanswered


def doubts(request: ExperimentRequest) -> list[str]:
    """Sentences for whoever plans the experiment.

    Args:
        request: validated.
    """
    scoring: Scoring = "contains" if request.scoring == "auto" else request.scoring
    return [*few(len(request.questions)), *without_answer(request, scoring)]


def few(count: int) -> list[str]:
    """What is to be said of so many questions.

    >>> few(ADVISED_QUESTIONS)
    []
    """
    if count < LEAST_QUESTIONS:
        had = "1 question is" if count == 1 else f"{count} questions are"
        return [f"{had} too few: no verdict is given below {LEAST_QUESTIONS}"]
    if count < ADVISED_QUESTIONS:
        return [
            f"{count} questions are few: use at least {ADVISED_QUESTIONS}, since fewer show large "
            "differences alone"
        ]
    return []


def without_answer(request: ExperimentRequest, scoring: Scoring) -> list[str]:
    """What is to be said of questions whose answer stands in no chunk."""
    count, missing = len(request.questions), unanswered(request.questions, scoring)
    if not missing:
        return []
    verb = "has" if missing == 1 else "have"
    return [
        f"{missing:,} of {count:,} questions ({missing / count:.0%}) {verb} no chunk with an "
        "accepted answer: there the order of the chunks cannot help"
    ]
