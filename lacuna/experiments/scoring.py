"""Whether a written reply is right, and which chunks hold the answer."""

from __future__ import annotations

import string
from collections.abc import Sequence

from lacuna.contract.experiment_requests import ExperimentQuestion, Scoring

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = frozenset({"a", "an", "the"})
REGEX_SECONDS = 0.2
"""For one pattern on one reply; a pattern that takes longer does not match."""


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
        return any(_found(pattern, said) for pattern in answers)
    raise ValueError(f"{scoring} compares no texts")


def _found(pattern: str, said: str) -> bool:
    import regex  # searches with a time limit: the patterns are the caller's

    try:
        return regex.search(pattern, said, timeout=REGEX_SECONDS) is not None
    except (TimeoutError, regex.error):
        return False


def gold(asked: ExperimentQuestion, scoring: Scoring) -> list[bool]:
    """Which chunks hold the answer: by `gold` where it is given, else by their texts."""
    return [
        chunk.gold
        if chunk.gold is not None
        else right(chunk.text, asked.answers, "regex")
        if scoring == "regex"
        else _stands_in(asked.answers, chunk.text)
        for chunk in asked.chunks
    ]


def _stands_in(answers: Sequence[str], text: str) -> bool:
    """Like `contains`, by whole words: "5" does not stand in 1957."""
    words = f" {normalized(text)} "
    known = (normalized(answer) for answer in answers)
    return any(f" {answer} " in words for answer in known if answer)
