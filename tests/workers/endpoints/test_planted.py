"""Planted curves come back within their bands, over many measurements of a simulated server.

The reader stands for a served model: it is asked the prompts of real measurements, and answers each
with a known probability by the depth of the fact, as a log-probability or as a text. Everything
behind the reader is what a job runs.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from lacuna.contract.endpoints import Form, Rung
from lacuna.contract.profile_requests import RecallRequest
from lacuna.contract.recall import RecallCurve
from tests.workers.endpoints.fake_model import Curve, flat, primacy, recency, step, u_shaped
from workers.recall.reader import Check, OnProgress, Question, Reading, Usage
from workers.recall.sampled import Sampled, sampled, source_of
from workers.recall.wire import recall_to_wire

CURVES: dict[str, Curve] = {
    "flat": flat, "u": u_shaped, "primacy": primacy, "recency": recency, "step": step,
}  # fmt: skip
DEPTHS = 5
FACTS, PLACES = 0.8, 0.4
"""Standard deviations in logits: between facts, and of a fact between places."""
RUNS = 200


def nominal(depth: int) -> float:
    """Of the middle of the prompt's parts, which is where facts stand."""
    return (depth + 0.5) / DEPTHS


class Planted:
    """Answers with a probability that depends on where the fact stands."""

    form: Form = "plain"
    preamble = 0

    def __init__(self, curve: Curve, rung: Rung, seed: int) -> None:
        self.curve, self.rung, self.seed = curve, rung, seed
        self.usage = Usage()
        self.noise = random.Random(f"answers:{seed}")

    def count(self, texts: Sequence[str]) -> list[int]:
        return [len(text) // 4 + 1 for text in texts]

    def read(
        self,
        questions: Sequence[Question],
        *,
        on_progress: OnProgress | None = None,
        check: Check | None = None,
    ) -> list[Reading | None]:
        return [self.answer(question) for question in questions]

    def answer(self, question: Question) -> Reading:
        prompt = question.prompt
        assert isinstance(prompt, str)
        at = place_of(question.answer.strip(), prompt)
        p = 0.02 if at < 0 else self.probability(prompt, at, question.answer)
        if self.rung == "text":
            hit = float(self.noise.random() < p)
            return Reading(probability=hit, log_probability=None, prompt_tokens=400)
        return Reading(probability=p, log_probability=math.log(p), prompt_tokens=400)

    def probability(self, prompt: str, at: int, answer: str) -> float:
        depth = min(DEPTHS - 1, int(at / len(prompt) * DEPTHS))
        name = f"{self.seed}:{answer}:{prompt.rsplit(chr(10), 2)[1:]}"  # the fact, by its question
        fact = random.Random(name).gauss(0, FACTS)
        place = random.Random(f"{name}:{depth}").gauss(0, PLACES)
        return logistic(logit(self.curve(nominal(depth))) + fact + place)


def place_of(answer: str, prompt: str) -> int:
    """Where the fact begins that the question asks for: of the paragraphs with its answer the one
    that shares most words with the question; -1 without any."""
    *context, question = prompt.split("\n\n")
    asked, at, best = set(question.split()), 0, (0, -1)
    for paragraph in context:
        if re.search(rf"\b{answer}\b", paragraph):
            best = max(best, (len(asked & set(paragraph.split())), at))
        at += len(paragraph) + 2
    return best[1]


def logit(p: float) -> float:
    return math.log(p / (1 - p))


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@cache
def truth(name: str) -> NDArray[np.float64]:
    """Mean probability at each depth over facts and places."""
    noise = np.random.default_rng(1).normal(0, math.hypot(FACTS, PLACES), 200_000)
    return np.array(
        [
            np.mean(1 / (1 + np.exp(-(logit(CURVES[name](nominal(d))) + noise))))
            for d in range(DEPTHS)
        ]
    )


def measured(name: str, rung: Rung, seed: int, groups: int) -> RecallCurve:
    asked = RecallRequest(depths=DEPTHS, groups=groups)
    plan = Sampled(source_of("facts", asked, seed), asked, 400, seed)
    report: Callable[..., None] = lambda *_: None  # noqa: E731
    found = sampled(Planted(CURVES[name], rung, seed), plan, report, lambda: None)
    return recall_to_wire(found.recall, None, found.ending, reader="endpoint")


def holds(curve: RecallCurve, name: str) -> bool:
    """Whether the band of the shape holds every depth's distance from the mean over depths."""
    low, high = curve.simultaneous_low, curve.simultaneous_high
    assert low is not None
    assert high is not None
    level = np.mean(curve.probability)
    shape = truth(name) - truth(name).mean()
    return bool(np.all(np.array(low) - level <= shape) and np.all(shape <= np.array(high) - level))


@pytest.mark.parametrize("name", CURVES)
def test_a_planted_curve_lies_in_its_band(name: str) -> None:
    curve = measured(name, "first_token", 5, 24)
    assert holds(curve, name)
    assert (curve.verdict == "varies") == (name != "flat")


@pytest.mark.slow
@pytest.mark.parametrize(("rung", "groups"), [("first_token", 24), ("text", 48)])
@pytest.mark.parametrize("name", CURVES)
def test_planted_curves_are_recovered(name: str, rung: Rung, groups: int) -> None:
    curves = [measured(name, rung, 1000 + seed, groups) for seed in range(RUNS)]
    covered = np.mean([holds(curve, name) for curve in curves])
    varies = np.mean([curve.verdict == "varies" for curve in curves])
    print(f"{name} {rung} {groups} groups: in the band {covered:.1%}, varies {varies:.1%}")
    assert covered >= 0.93
    if name == "flat":
        assert varies <= 0.05
    else:
        assert varies >= 0.9
