"""Whether a written reply is right, and which chunks hold the answer."""

from __future__ import annotations

import string
import time
from collections.abc import Sequence

from lacuna.contract.experiment_requests import ExperimentChunk, ExperimentQuestion, Scoring

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = frozenset({"a", "an", "the"})
REGEX_SECONDS = 0.2
"""For all patterns of a question on one reply; what takes longer does not match."""
GOLD_SECONDS = 10.0
"""For all patterns on all chunks; chunks after that count as without the answer."""

UNANSWERED_SECONDS = 1.0
"""For all patterns on all chunks, before anything is read."""


def normalized(text: str) -> str:
    """Lower case, no punctuation, no articles, single spaces, as Liu et al. and SQuAD compare.

    >>> normalized(' The  "Eiffel-Tower".')
    'eiffeltower'
    """
    words = text.casefold().translate(_PUNCTUATION).split()
    return " ".join(word for word in words if word not in _ARTICLES)


def contains(said: str, answers: Sequence[str]) -> bool:
    """Whether any accepted answer stands in the text, after `normalized`. "The" alone is none."""
    text = normalized(said)
    known = (normalized(answer) for answer in answers)
    return any(answer in text for answer in known if answer)


def right(said: str, answers: Sequence[str], scoring: Scoring) -> bool:
    """Whether a reply counts.

    Args:
        said: what the model wrote.
        answers: accepted ones; patterns for `regex`.
        scoring: `contains` looks in the whole reply. `exact` compares its first line that is not
            empty, after `normalized`. `regex` searches the whole reply, as it was written.

    Raises:
        ValueError: `log_probability`, which compares no texts.
    """
    if scoring == "contains":
        return contains(said, answers)
    if scoring == "exact":
        line = next((line for line in said.splitlines() if line.strip()), "")
        return normalized(line) in {normalized(answer) for answer in answers}
    if scoring == "regex":
        return _matches(answers, said, time.monotonic() + REGEX_SECONDS)
    raise ValueError(f"{scoring} compares no texts")


def _matches(patterns: Sequence[str], text: str, deadline: float) -> bool:
    """Whether any pattern is found before the time is over."""
    import regex  # searches with a time limit: the patterns are the caller's

    for pattern in patterns:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        try:
            if regex.search(pattern, text, timeout=left) is not None:
                return True
        except (TimeoutError, regex.error):
            continue
    return False


def gold(questions: Sequence[ExperimentQuestion], scoring: Scoring) -> list[list[bool]]:
    """Which chunks of each question hold the answer: by `gold` where it is given, else by text."""
    deadline = time.monotonic() + GOLD_SECONDS

    def holds(asked: ExperimentQuestion, chunk: ExperimentChunk) -> bool:
        if chunk.gold is not None:
            return chunk.gold
        if scoring == "regex":
            until = min(deadline, time.monotonic() + REGEX_SECONDS)
            return _matches(asked.answers, chunk.text, until)
        return _stands_in(asked.answers, chunk.text)

    return [[holds(asked, chunk) for chunk in asked.chunks] for asked in questions]


def unanswered(questions: Sequence[ExperimentQuestion], scoring: Scoring) -> int:
    """Questions none of whose chunks holds the answer, by `gold` where it is given.

    More lenient than `gold`: a text holds the answer wherever it stands, as in a reply. Questions
    whose patterns take too long are not counted.
    """
    deadline = time.monotonic() + UNANSWERED_SECONDS

    def holds(asked: ExperimentQuestion, chunk: ExperimentChunk) -> bool:
        if chunk.gold is not None:
            return chunk.gold
        if scoring != "regex":
            return contains(chunk.text, asked.answers)
        until = min(deadline, time.monotonic() + REGEX_SECONDS)
        return _matches(asked.answers, chunk.text, until) or time.monotonic() >= until

    return sum(not any(holds(asked, chunk) for chunk in asked.chunks) for asked in questions)


def _stands_in(answers: Sequence[str], text: str) -> bool:
    """Like `contains`, by whole words: "5" does not stand in 1957."""
    words = f" {normalized(text)} "
    known = (normalized(answer) for answer in answers)
    return any(f" {answer} " in words for answer in known if answer)
