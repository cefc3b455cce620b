"""A reader whose answers depend on where the answer stands, and questions for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from lacuna.contract.endpoints import Form, Rung
from lacuna.contract.experiment_requests import ExperimentRequest
from workers.recall.reader import Check, OnProgress, Question, Reading, Usage


class Told:
    """A job that remembers what it was told, and can be stopped after so many checks."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.shares: list[float] = []
        self._left = stop_after

    def progress(self, fraction: float, message: str = "") -> None:
        self.shares.append(fraction)

    def check(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise KeyboardInterrupt


def text_of(question: Question) -> str:
    if isinstance(question.prompt, str):
        return question.prompt
    return "\n".join(message.content for message in question.prompt)


class PlaceReader:
    """Recalls "The key N is wordN" by where it stands among the lines of the prompt.

    Args:
        curve: share of the chunks before it -> probability.
        noise: of each reading, in probability.
        lost: numbers of questions that get no answer at the first place.
    """

    preamble = 0

    def __init__(
        self,
        curve: Callable[[float], float],
        *,
        rung: Rung = "answer",
        form: Form = "plain",
        noise: float = 0.0,
        lost: Sequence[int] = (),
    ) -> None:
        self.rung, self.form, self.usage = rung, form, Usage()
        self.asked: list[Question] = []
        self._curve, self._noise, self._lost = curve, noise, set(lost)
        self._generator = np.random.default_rng(0)

    def count(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]

    def read(
        self,
        questions: Sequence[Question],
        *,
        on_progress: OnProgress | None = None,
        check: Check | None = None,
    ) -> list[Reading | None]:
        found = []
        for at, question in enumerate(questions):
            if check is not None:
                check()
            self.asked.append(question)
            found.append(self._one(question))
            if on_progress is not None:
                on_progress(at + 1, len(questions))
        return found

    def _one(self, question: Question) -> Reading | None:
        lines = text_of(question).splitlines()
        number = int(next(line for line in lines if line.startswith("Question")).split()[-1])
        chunks = [line for line in lines if " key " in line and line.startswith("[")]
        at = [i for i, line in enumerate(chunks) if f"key {number} " in line]
        p = 0.02 if not at else self._curve(at[0] / max(len(chunks) - 1, 1))
        if number in self._lost and at == [0]:
            return None
        p = float(np.clip(p + self._noise * self._generator.normal(), 0.001, 0.999))
        tokens = len(text_of(question).split())
        if self.rung == "text":
            hit = self._generator.random() < p
            said = f"word{number}" if hit else "nothing"
            return Reading(float(question.right(said)), None, tokens, said=said)
        return Reading(p, math.log(p), tokens)


@pytest.fixture
def questions() -> Callable[..., list[dict[str, Any]]]:
    def make(count: int, chunks: int = 5) -> list[dict[str, Any]]:
        """The chunk with the answer has the best score in four of five questions."""
        found = []
        for number in range(count):
            rank = 0 if number % 5 else 1
            made = []
            for at in range(chunks):
                key = number if at == rank else 1_000 + number * chunks + at
                text = f"The key {key} is word{key}"
                made.append({"id": f"c{at}", "text": text, "score": float(chunks - at)})
            found.append(
                {"question": f"key {number}", "answers": [f"word{number}"], "chunks": made}
            )
        return found

    return make


@pytest.fixture
def request_of(questions: Callable[..., list[dict[str, Any]]]) -> Callable[..., ExperimentRequest]:
    def make(count: int = 40, **fields: Any) -> ExperimentRequest:
        asked = {"model": "gpt2", "questions": questions(count), **fields}
        return ExperimentRequest.model_validate(asked)

    return make


@pytest.fixture
def told() -> type[Told]:
    return Told


@pytest.fixture
def place_reader() -> type[PlaceReader]:
    return PlaceReader
