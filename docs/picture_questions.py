"""Made-up questions for the picture of an experiment: competing facts, one is asked for."""

from __future__ import annotations

import random
from typing import Any

_PLACES = (
    "Tresk", "Olmen", "Varn", "Hesk", "Dorrin", "Pell", "Quarne", "Istra", "Mellow", "Brack",
    "Sund", "Kelda", "Torvik", "Anbury", "Lorne", "Wick", "Fenmoor", "Gale", "Harrow", "Nyth",
)  # fmt: skip
_NAMES = (
    "John", "Mary", "David", "Sarah", "Robert", "Linda", "Thomas", "Peter", "Anna", "Michael",
)  # fmt: skip
_OFFICES = ("keeper of the lighthouse", "mayor", "baker", "teacher of music")
_CHUNKS = 6
TEMPLATE = {
    "instructions": "", "chunk": "{text}", "separator": "\n", "ask": "{question}", "answer": "",
    "form": "plain",
}  # fmt: skip
"""A question is the beginning of a sentence: a small model completes better than it answers."""


def questions(count: int = 60) -> list[dict[str, Any]]:
    """Questions with chunks in the order of a retriever that is right at first in half of them."""
    generator = random.Random(7)
    made = []
    for number in range(count):
        places = generator.sample(_PLACES, _CHUNKS)
        names = generator.sample(_NAMES, _CHUNKS)
        office = generator.choice(_OFFICES)
        facts = [
            f"The {office} of {place} is {name}." for place, name in zip(places, names, strict=True)
        ]
        wanted = 0 if generator.random() < 0.5 else generator.randrange(1, _CHUNKS)
        chunks = [
            {"id": f"c{at}", "text": text, "score": round(0.92 - 0.11 * at, 2)}
            for at, text in enumerate(facts)
        ]
        made.append(
            {
                "id": f"q{number}",
                "question": f"The {office} of {places[wanted]} is",
                "answers": [names[wanted]],
                "chunks": chunks,
            }
        )
    return made
