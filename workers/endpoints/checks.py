"""Whether a way of reading may be believed: servers answer 200 to fields they ignore.

Each check has caught a real server: exclusive answers that are probable at once (masked), numbers
of the neighbouring token (echo off by one), numbers made after sampling, text that is no answer.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

from lacuna.contract.endpoints import Form
from lacuna.contract.errors import (
    EndpointIncapable,
)
from workers.endpoints.canary import NOISE
from workers.endpoints.dialects import Session, Way, top_list, written, written_natively
from workers.recall.reader import Message, Question, Reading

CERTAIN = log(0.5)
"""A sentence that stood there three times goes on as before with at least this."""

_FOX = "The quick brown fox jumps over the lazy dog."
_REPEATED = f"{_FOX} {_FOX} {_FOX} {_FOX.removesuffix(' dog.')}"
_OPEN = "The dog of the mayor is called Max. The cat of the mayor is called"


def _in_form(form: Form, request: str, beginning: str) -> str | tuple[Message, ...]:
    if form == "plain":
        return beginning
    if form == "continued":
        return (Message("user", request), Message("assistant", beginning))
    return (Message("user", request),)


def certain(form: Form) -> Question:
    """A question whose answer every language model gives."""
    if form == "chat":
        asked = "Which animal is lazy? " + _FOX + " Answer with one word only."
        return Question((Message("user", asked),), "dog", accepted=("dog",), scoring="contains")
    prompt = _in_form(form, "Write the same sentence again and again.", _REPEATED)
    return Question(prompt, " dog")


def open_pair(form: Form) -> tuple[Question, Question]:
    """The same question with a likely and an unlikely answer: together at most certain."""
    if form == "chat":
        asked = (Message("user", "Give the mayor's cat a name. Answer with one word only."),)
        return Question(asked, "Max"), Question(asked, "table")
    prompt = _in_form(form, "Tell me about the mayor's pets.", _OPEN)
    return Question(prompt, " Max"), Question(prompt, " table")


def reversed_pair(form: Form) -> Question:
    """A question with an answer of two words, in the order that no model would choose.

    A bias on both without a grammar gives them in the other order.
    """
    if form == "chat":
        return Question(certain(form).prompt, "dog lazy")
    beginning = _REPEATED.removesuffix(" lazy")
    return Question(
        _in_form(form, "Write the same sentence again and again.", beginning), " dog lazy"
    )


async def why_not(session: Session, way: Way) -> str | None:
    """Why this way must not be used, in words; None if its numbers pass.

    Raises:
        EndpointUnreachable, EndpointRefused, BudgetSpent, EndpointTruncates: as the calls do.
    """
    try:
        if way.rung == "answer":
            return await _answers(session, way)
        if way.rung == "first_token":
            return await _lists(session, way)
        return await _texts(session, way)
    except EndpointIncapable as error:
        return error.detail


def _nats(reading: Reading) -> float:
    assert reading.log_probability is not None
    return reading.log_probability


async def _answers(session: Session, way: Way) -> str | None:
    likely, unlikely = open_pair(session.form)
    first, second = _nats(await way.read(session, likely)), _nats(await way.read(session, unlikely))
    if exp(first) + exp(second) > 1.001:
        return f"masked: answers that exclude each other sum to {exp(first) + exp(second):.2f}"
    if abs(first - second) < 1e-9:
        return "it gives the same number for every answer"
    if session.form != "chat":
        sure = _nats(await way.read(session, certain(session.form)))
        if sure < CERTAIN:
            return f"a certain continuation gets a probability of {exp(sure):.3g}: another token's"
    await way.read(session, reversed_pair(session.form))
    if (known := await _listed(session, likely.answer)) is not None and abs(known - first) > NOISE:
        return (
            f"it differs from the first token's log-probability: {first:.2f} and {known:.2f} nats"
        )
    again = _nats(await way.read(replace(session, repeat=1), likely))
    if abs(again - first) > NOISE:
        return f"it does not repeat itself: {first:.2f} and {again:.2f} nats"
    return None


async def _listed(session: Session, answer: str) -> float | None:
    """Log-probability of the answer in the list of first tokens, if it is one token and there."""
    try:
        found = await top_list(session, open_pair(session.form)[0])
    except EndpointIncapable:
        return None
    return {str(token): float(value) for token, value in found.picked}.get(answer)


async def _lists(session: Session, way: Way) -> str | None:
    likely, _ = open_pair(session.form)
    found = [(str(t), float(v)) for t, v in (await top_list(session, likely)).picked]
    if len(found) < 2:
        return "the list holds one token only"
    if exp(found[0][1]) > 0.999:
        return "the first word of an open sentence is certain: the list is made after sampling"
    again = dict((await top_list(replace(session, repeat=1), likely)).picked)
    moved = abs(again.get(found[0][0], float("-inf")) - found[0][1])
    if moved > NOISE:
        return "the list does not repeat itself"
    if session.form != "chat":
        sure = await way.read(session, certain(session.form))
        if sure.censored or _nats(sure) < CERTAIN:
            return f"a certain continuation gets a probability of {sure.probability:.3g}"
    return None


async def _texts(session: Session, way: Way) -> str | None:
    question = certain(session.form)
    write = written_natively if way.name == "messages.text" else written
    said, _ = await write(session, question)
    if not said.strip():
        return f"it writes no text within {question.max_tokens} tokens"
    if session.form != "chat" and not question.right(said):
        return "it does not continue a sentence that stood there three times"
    return None
