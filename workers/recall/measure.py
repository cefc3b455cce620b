"""A recall curve: draw facts, lay them out, ask for each at each depth, read the controls.

The same for weights and served models: what differs is the reader.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lacuna.contract.endpoints import Form, Rung
from lacuna.contract.errors import InternalError
from workers.recall.layout import Group, Layout, Order, place
from workers.recall.probes import Draw
from workers.recall.reader import Check, OnProgress, Question, Reader, Reading
from workers.recall.result import Controls, Recall

F64 = NDArray[np.float64]

REPEATED_PROMPTS = 8
"""Prompts of one measurement that are read twice, with all their questions."""
_TEMPLATE_TOKENS = 8
"""Of a chat template between question and reply, about; those before the question are known."""


@dataclass(frozen=True)
class Asked:
    """One question of the table: fact and depth of a group."""

    group: int
    fact: int
    depth: int
    question: Question


def measure(
    reader: Reader,
    draw: Draw,
    length: int,
    *,
    probe: str,
    groups: int = 32,
    depths: int = 6,
    order: Order = "last",
    seed: int = 0,
    first: int = 0,
    on_progress: OnProgress | None = None,
    check: Check | None = None,
) -> Recall:
    """Measure how probable right answers are, by the depth of the fact in the prompt.

    Each group costs k^2 questions over k contexts, and 2k short ones.

    Args:
        reader: of a model.
        draw: gives the groups; one of `workers.recall.probes`.
        length: tokens of a prompt with its answer, special ones and chat template; about.
        probe: its name, for the result.
        groups: what is drawn independently; 16 at least for a test, 32 for a band.
        depths: k, and the number of competing facts; 5 decide as well as 9.
        order: where the question stands.
        seed: draws facts, filler, and the order of the calls.
        first: number of the first group: results of other numbers can be joined.
        on_progress: called with (questions answered, questions in all).
        check: called often while reading; what it raises ends the measurement.

    Raises:
        DocumentsUnusable: no room for the facts, too little filler or too few passages.
        Errors of the reader.
    """
    laid_out = layouts(reader, draw(groups, depths, seed, first), length, order)
    blocks = _prompts(laid_out, reader, order)
    random.Random(f"{seed}:{first}").shuffle(blocks)  # drift must not fall on one depth
    table = [asked for block in blocks for asked in block]
    again = [asked for i in repeats(range(len(blocks)), REPEATED_PROMPTS) for asked in blocks[i]]
    closed = [q for one in laid_out for q in closed_book(one, reader.form, order)]
    alone = [q for one in laid_out for q in oracle(one, reader.form, order)]
    questions = [*(a.question for a in table), *closed, *alone, *(a.question for a in again)]
    readings = iter(reader.read(questions, on_progress=on_progress, check=check))

    def take(count: int) -> list[Reading | None]:
        return [next(readings) for _ in range(count)]

    found = _table(reader.rung, table, take(len(table)), (groups, depths))
    without = _probabilities(take(len(closed))).reshape(groups, depths)
    with_fact = _probabilities(take(len(alone))).reshape(groups, depths)
    once = [found[0][a.group, a.fact, a.depth] for a in again]
    twice = np.column_stack([once, _probabilities(take(len(again)))])
    judges = Controls(without, with_fact, twice)
    return _result(reader, laid_out, found, judges, (probe, length, order, seed, first))


def layouts(reader: Reader, groups: Sequence[Group], length: int, order: Order) -> list[Layout]:
    """Lay groups out so that a reader's prompts, in its own form, have about `length` tokens.

    Raises:
        DocumentsUnusable: as `workers.recall.layout.place`.
    """
    around = reader.preamble + (0 if reader.form == "plain" else _TEMPLATE_TOKENS)
    return place(groups, length, reader.count, order, around)


def _prompts(laid_out: Sequence[Layout], reader: Reader, order: Order) -> list[list[Asked]]:
    """One block per prompt: its questions, which share a context, in a row."""
    return [
        [Asked(group, *asked) for asked in layout.questions(reader.form, order, prompt)]
        for group, layout in enumerate(laid_out)
        for prompt in range(len(layout.group.items))
    ]


def _probabilities(readings: Sequence[Reading | None]) -> F64:
    return np.array([np.nan if r is None else r.probability for r in readings], dtype=np.float64)


def _table(
    rung: Rung, asked: Sequence[Asked], readings: Sequence[Reading | None], shape: tuple[int, int]
) -> tuple[F64, F64, F64]:
    """Probabilities, log-probabilities and censored answers, [groups, facts, depths]."""
    groups, depths = shape
    table = np.full((3, groups, depths, depths), np.nan)
    for one, reading in zip(asked, readings, strict=True):
        if reading is None:
            continue
        log = reading.log_probability
        table[:, one.group, one.fact, one.depth] = (
            reading.probability,
            np.nan if log is None else log,
            reading.censored,
        )
    if rung != "text":
        table[:, np.isnan(table[1])] = np.nan  # a group needs both
    return table[0], table[1], table[2]


def _result(
    reader: Reader,
    laid_out: Sequence[Layout],
    table: tuple[F64, F64, F64],
    judges: Controls,
    what: tuple[str, int, Order, int, int],
) -> Recall:
    """What was read of the groups of which every question had an answer."""
    probe, length, order, seed, first = what
    p, logs, censored = table
    whole = np.asarray(~np.isnan(p).any(axis=(1, 2)))
    if not whole.any():
        raise InternalError("`recall`: no group of facts could be read to its end")
    kept = [layout for layout, keep in zip(laid_out, whole, strict=True) if keep]
    return Recall(
        probe=probe,
        rung=reader.rung,
        form=reader.form,
        order=order,
        length=length,
        seed=seed,
        numbers=first + np.flatnonzero(whole),
        probabilities=p[whole],
        log_probabilities=None if reader.rung == "text" else logs[whole],
        starts=reader.preamble + np.stack([layout.starts() for layout in kept]),
        tokens=np.stack([layout.items for layout in kept]),
        prompt_tokens=reader.preamble + np.array([layout.tokens for layout in kept]),
        topics=tuple(layout.group.topic for layout in kept),
        phrasings=tuple(layout.group.phrasing for layout in kept),
        controls=Controls(judges.closed_book[whole], judges.oracle[whole], judges.repeated),
        censored=float(censored[whole].mean()),
        lost=int((~whole).sum()),
    )


def closed_book(layout: Layout, form: Form, order: Order) -> list[Question]:
    """The question for each fact, without any context."""
    group = layout.group
    return [group.question("", i, form, order, 0) for i in range(len(group.items))]


def oracle(layout: Layout, form: Form, order: Order) -> list[Question]:
    """The question for each fact, with that fact alone as context."""
    group = layout.group
    contexts = [group.alone(i) for i in range(len(group.items))]
    tokens = [int(count) for count in layout.items]
    return [
        group.question(context, i, form, order, tokens[i]) for i, context in enumerate(contexts)
    ]


def repeats(prompts: Sequence[int], most: int) -> list[int]:
    """Which prompts to read again: at most `most`, evenly spread over all.

    >>> repeats([0, 1, 2, 3, 4, 5], 3)
    [0, 2, 4]
    """
    step = max(1, len(prompts) // most)
    return list(prompts[::step][:most])
