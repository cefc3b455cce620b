"""Every prompt of an experiment, and which question and order it is for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from lacuna.contract.endpoints import Form
from lacuna.contract.errors import TooLong
from lacuna.contract.experiment_requests import (
    CHAT_TOKENS,
    CURVE_ORDERS,
    ExperimentQuestion,
    ExperimentRequest,
    OrderName,
    Scoring,
)
from lacuna.experiments.orders import Order, orders
from lacuna.experiments.rendering import Prompt, Renderer, around
from lacuna.placement.curve import PlacementCurve
from service.endpoints.costs import COUNTED
from workers.recall.reader import Check, Message, Question, Reader

Arm = OrderName | Literal["a_a", "closed_book"]

_SAFE = 0.8
"""Of the fewest tokens a character among those: what the others have at least."""
_NAMED = 5
"""Questions that an error names."""


@dataclass(frozen=True)
class Task:
    """One prompt to read.

    Attributes:
        number: of the question, from 0.
        arms: what it is for; several where orders give one prompt.
        order: of the chunks; empty for closed book.
        question: as a reader takes it.
    """

    number: int
    arms: tuple[Arm, ...]
    order: Order
    question: Question


@dataclass(frozen=True)
class Setup:
    """What prompts depend on, apart from the request.

    Attributes:
        form: of the reader.
        scoring: after `auto`.
        longest: tokens that the model reads, answer included; None: unknown.
        free_counts: whether counting tokens costs nothing.
        again: questions whose reference is read twice, at most.
        curve: for `advised` and `optimal`, where the request names a profile.
    """

    form: Form
    scoring: Scoring
    longest: int | None
    free_counts: bool
    again: int
    curve: PlacementCurve | None


def tasks(request: ExperimentRequest, reader: Reader, setup: Setup, check: Check) -> list[Task]:
    """All prompts, questions in random order and the prompts of a question in random order, so that
    what drifts falls on no order.

    Raises:
        InvalidRequest: the template or an order cannot be made; names the field.
        TooLong: prompts are longer than the model reads; names the questions.
    """
    render = Renderer(request.template)
    drawn = np.random.default_rng([request.seed, len(request.questions)])
    shuffled = drawn.permutation(len(request.questions)).tolist()
    again = set(shuffled[: setup.again]) if request.a_a else set()
    found: list[Task] = []
    for number in shuffled:
        check()
        lengths = None
        if not CURVE_ORDERS.isdisjoint(request.arms):
            lengths = _lengths(request, reader, render, free=setup.free_counts)
        made = orders(request, number, curve=setup.curve, lengths=lengths)
        of_question = _of_question(request, setup, render, number, made)
        if number in again:
            of_question.append(replace(of_question[0], arms=("a_a",)))
        found += [of_question[at] for at in drawn.permutation(len(of_question)).tolist()]
    return _measured(request, reader, setup, found, check)


def _of_question(
    request: ExperimentRequest,
    setup: Setup,
    render: Renderer,
    number: int,
    made: dict[OrderName, Order],
) -> list[Task]:
    """One task for each different prompt of a question, the reference's first."""
    asked = request.questions[number]
    by_prompt: dict[Prompt, tuple[list[Arm], Order]] = {}
    for name, order in made.items():
        by_prompt.setdefault(render(asked, order), ([], order))[0].append(name)
    found = [
        Task(number, tuple(names), order, _question(request, asked, prompt, setup))
        for prompt, (names, order) in by_prompt.items()
    ]
    if request.closed_book:
        closed = _question(request, asked, render(asked, ()), setup)
        found.append(Task(number, ("closed_book",), (), closed))
    return found


def _question(
    request: ExperimentRequest, asked: ExperimentQuestion, prompt: Prompt, setup: Setup
) -> Question:
    """A prompt as the reader takes it."""
    system = (Message("system", prompt.system),) if prompt.system else ()
    answer = prompt.answer(asked.answers[0])
    sent: str | tuple[Message, ...]
    if setup.form == "plain":
        sent = prompt.text
    elif setup.form == "continued" and prompt.lead:
        sent = (*system, Message("user", prompt.user), Message("assistant", prompt.lead))
    else:  # the reply begins by itself
        sent, answer = (*system, Message("user", prompt.user)), asked.answers[0].strip()
    return Question(
        prompt=sent,
        answer=answer,
        accepted=tuple(asked.answers),
        scoring="contains" if setup.scoring == "contains" else "starts",
        max_tokens=request.max_answer_tokens,
    )


def _text(question: Question) -> str:
    if isinstance(question.prompt, str):
        return question.prompt
    return "\n".join(message.content for message in question.prompt)


# Tokens


def _lengths(
    request: ExperimentRequest, reader: Reader, render: Renderer, *, free: bool
) -> Callable[[int], tuple[list[int], int, int, int]]:
    """Tokens of a question's chunks and of what stands around them; by characters where counting
    is paid for."""

    def count(texts: Sequence[str]) -> list[int]:
        return reader.count(texts) if free else [len(text) // 4 for text in texts]

    def of(number: int) -> tuple[list[int], int, int, int]:
        asked = request.questions[number]
        given = tuple(range(len(asked.chunks)))
        prompt = render(asked, given)
        texts = [chunk.text for chunk in asked.chunks]
        before, behind = around(lambda: prompt, texts[0], texts[-1])
        *chunks, first, last, whole = count([*texts, before, behind, prompt.text])
        between = max(0, whole - first - last - sum(chunks)) // max(1, len(chunks) - 1)
        return chunks, first + reader.preamble, last, between

    return of


def _measured(
    request: ExperimentRequest, reader: Reader, setup: Setup, found: list[Task], check: Check
) -> list[Task]:
    """The same with the fewest tokens that each prompt has, and none longer than the model reads.

    Raises:
        TooLong: names the questions.
    """
    texts = [_text(task.question) for task in found]
    sizes = _sizes(reader, setup, found, texts, check)
    if setup.longest is not None:
        reply = request.max_answer_tokens if setup.scoring != "log_probability" else 0
        around_it = (0 if setup.form == "plain" else CHAT_TOKENS) + reply
        names = request.question_ids
        over = {
            names[task.number]: size + around_it
            for task, size in zip(found, sizes, strict=True)
            if size + around_it > setup.longest
        }
        if over:
            _refuse(request, over, setup.longest)
    return [
        replace(task, question=replace(task.question, expected_tokens=int(size)))
        for task, size in zip(found, sizes, strict=True)
    ]


def _sizes(
    reader: Reader, setup: Setup, found: Sequence[Task], texts: Sequence[str], check: Check
) -> list[float]:
    """Tokens that each prompt has at least. The orders of one question have about the same."""
    if setup.free_counts:
        known: dict[int, float] = {}
        for task, text in zip(found, texts, strict=True):
            if task.order and task.number not in known:
                check()
                known[task.number] = 0.98 * reader.count([text])[0]
        return [known[task.number] if task.order else 0.0 for task in found]
    by_length = sorted(set(texts), key=len)
    steps = np.linspace(0, len(by_length) - 1, min(COUNTED, len(by_length)))
    sample = [by_length[round(at)] for at in steps.tolist()]
    counts = reader.count(sample)
    least = min(count / len(text) for count, text in zip(counts, sample, strict=True))
    return [_SAFE * least * len(text) for text in texts]


def _refuse(request: ExperimentRequest, over: dict[str, float], longest: int) -> None:
    worst = sorted(over, key=lambda name: -over[name])
    named = ", ".join(f"{name!r} (about {over[name]:,.0f} tokens)" for name in worst[:_NAMED])
    more = f" and {len(worst) - _NAMED} more" if len(worst) > _NAMED else ""
    raise TooLong(
        f"`questions`: {request.model} reads {longest:,} tokens, too few for the prompts of "
        f"{named}{more}: give them fewer or shorter chunks",
        field="questions",
    )
