"""Runs an experiment with any reader: prompts, readings, a table, the result.

`weights` and `served` make the reader and call `run`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lacuna.contract.base import digest
from lacuna.contract.errors import BudgetSpent, EndpointIncapable, InvalidRequest
from lacuna.contract.experiment_requests import LEAST_QUESTIONS, ExperimentRequest, Scoring
from lacuna.contract.experiments import (
    ROW_COLUMNS,
    ExperimentResult,
    ExperimentRow,
    ExperimentUsage,
)
from lacuna.experiments.answer import Origin, Table, summarise
from lacuna.experiments.scoring import gold, right
from lacuna.placement.curve import PlacementCurve
from lacuna.placement.profile_curve import of_profile
from service.store import shipped
from service.store.claims import ExperimentOutcome
from service.store.profiles import StoredProfile, packed, profile_not_found
from workers.endpoints.ledger import Ledger
from workers.experiments.prompts import Arm, Setup, Task, tasks
from workers.recall.reader import Check, OnProgress, Question, Reader, Reading

F64 = npt.NDArray[np.float64]

Holds = list[list[bool]]
"""Whether each chunk of each question holds the answer."""

_PIECE = 32
"""Prompts that are read before what was read is kept."""
_READING = 0.05
"""Share of the progress at which reading begins; it ends at 0.98."""


class Context(Protocol):
    """What a run tells the job, and asks it."""

    def progress(self, fraction: float, message: str = "") -> None:
        """How far it is, in [0, 1]."""

    def check(self) -> None:
        """Raises if the job must stop."""


@dataclass(frozen=True)
class About:
    """What the reader does not say of itself.

    Attributes:
        revision: of the weights, or the endpoint's canary.
        longest: tokens that the model reads; None: unknown.
        free_counts: whether `Reader.count` costs nothing.
        again: prompts that are read twice at most, for the A/A control.
    """

    revision: str | None
    longest: int | None
    free_counts: bool
    again: int


@dataclass(frozen=True)
class Finding:
    """A result, and the row of every reading."""

    result: ExperimentResult
    rows: list[ExperimentRow]


class Spending(Protocol):
    """Tells what was spent, once all is read."""

    def __call__(self, prompts: int) -> ExperimentUsage:
        """What was spent on this number of different prompts."""


def scoring_of(request: ExperimentRequest, reader: Reader) -> Scoring:
    """How answers are scored by this reader, after `auto`.

    Raises:
        EndpointIncapable: log-probabilities are asked for and cannot be read.
    """
    text = reader.rung == "text"
    if request.scoring == "auto":
        return "contains" if text else "log_probability"
    if request.scoring == "log_probability" and text:
        raise EndpointIncapable(
            "`scoring`: no log-probabilities can be read here; ask for contains, exact or regex",
            field="scoring",
        )
    return request.scoring


def run(
    request: ExperimentRequest,
    reader: Reader,
    context: Context,
    about: About,
    spending: Spending,
    *,
    curve: PlacementCurve | None = None,
    kept: Ledger | None = None,
) -> Finding:
    """Read every order of every question, and compare.

    Args:
        request: validated, and passed by `lacuna.experiments.orders.check`.
        reader: of its model; at rung `text` if and only if `scoring` compares texts.
        context: of the job.
        about: the reader.
        spending: asked once at the end.
        curve: of `profile_id`; needed for `advised` and `optimal` unless the request has `density`.
        kept: where readings of weights are kept, so that a job that was killed goes on. A served
            model's reader keeps its own.

    Raises:
        InvalidRequest, TooLong: about the request; name the field.
        BudgetSpent: before enough questions were answered.
        Errors of the reader.
    """
    scoring = scoring_of(request, reader)
    _check_form(request, reader)
    context.progress(0.0, "writing the prompts")
    setup = Setup(reader.form, scoring, about.longest, about.free_counts, about.again, curve)
    todo = tasks(request, reader, setup, context.check)
    questions = [task.question for task in todo]
    keep = None if kept is None else _Keep(kept, about.revision, scoring)
    readings = _read(reader, questions, context, scoring, keep)
    exhausted: BudgetSpent | None = getattr(reader, "exhausted", None)
    holds = gold(request.questions, scoring)
    table = _table(request, scoring, holds, todo, readings)
    if len(table.numbers) < 2 or (exhausted and len(table.numbers) < LEAST_QUESTIONS):
        raise exhausted or _nothing(len(table.numbers))
    origin = Origin(
        scoring=scoring,
        rung=reader.rung,
        form=reader.form,
        revision=about.revision,
        usage=spending(len(set(questions))),
        warnings=_warnings(readings, exhausted),
    )
    rows = _rows(request, holds, todo, readings)
    return Finding(summarise(request, table, origin), rows)


def _check_form(request: ExperimentRequest, reader: Reader) -> None:
    if request.template.form == "chat" and reader.form == "plain":
        raise InvalidRequest(
            f"`template.form`: {request.model} has no chat template; ask for auto or plain",
            field="template.form",
        )


def _read(
    reader: Reader,
    questions: Sequence[Question],
    context: Context,
    scoring: Scoring,
    keep: _Keep | None,
) -> list[Reading | None]:
    """The readings of all questions, as scores, without texts."""

    def on_progress(done: int, of: int) -> None:
        share = _READING + (0.98 - _READING) * done / max(of, 1)
        context.progress(share, f"{done:,} of {of:,} prompts")

    if keep is not None:
        return keep.read(reader, questions, on_progress, context.check)
    found = reader.read(questions, on_progress=on_progress, check=context.check)
    return [_judged(*pair, scoring) for pair in zip(questions, found, strict=True)]


def _nothing(answered: int) -> Exception:
    words = f"only {answered} questions were answered in every order; two are the least"
    return EndpointIncapable(words, field="questions")


def _warnings(readings: Sequence[Reading | None], exhausted: BudgetSpent | None) -> list[str]:
    said = []
    there = [reading for reading in readings if reading is not None]
    hidden = float(np.mean([reading.censored for reading in there])) if there else 0.0
    if hidden > 0:
        said.append(
            f"the server's list of tokens did not reach {hidden:.0%} of the answers; they count "
            "with the least probability in the list"
        )
    if exhausted is not None:
        said.append(f"the budget was spent before the end: {exhausted}")
    return said


# What was read


def _judged(question: Question, reading: Reading | None, scoring: Scoring) -> Reading | None:
    """A reply as a score, where the reader did not judge it: its text goes no further."""
    if reading is None or reading.said is None:
        return reading
    score = reading.probability
    if scoring in ("exact", "regex"):
        score = float(right(reading.said, question.accepted, scoring))
    return replace(reading, probability=score, said=None)


def _rows(
    request: ExperimentRequest,
    holds: Holds,
    todo: Sequence[Task],
    readings: Sequence[Reading | None],
) -> list[ExperimentRow]:
    """One row for each question and order, in the request's order of questions."""
    names = request.question_ids
    rank: dict[Arm, int] = {name: at for at, name in enumerate(request.arms)}
    rank |= {"a_a": len(rank), "closed_book": len(rank) + 1}
    found: list[tuple[int, int, ExperimentRow]] = []
    for task, reading in zip(todo, readings, strict=True):
        if reading is None:
            continue
        place = next((at for at, i in enumerate(task.order) if holds[task.number][i]), None)
        for arm in task.arms:
            row = ExperimentRow(
                question=names[task.number],
                arm=arm,
                place=place,
                chunks=len(task.order),
                score=reading.probability,
                log_probability=reading.log_probability,
                prompt_tokens=reading.prompt_tokens,
            )
            found.append((task.number, rank[arm], row))
    return [row for _, _, row in sorted(found, key=lambda one: one[:2])]


def _table(
    request: ExperimentRequest,
    scoring: Scoring,
    holds: Holds,
    todo: Sequence[Task],
    readings: Sequence[Reading | None],
) -> Table:
    """The questions that were answered in every order."""
    count, names = len(request.questions), request.arms
    scores, logs, depth = (np.full((count, len(names)), np.nan) for _ in range(3))
    same = np.zeros((count, len(names)), dtype=bool)
    again, closed = np.full(count, np.nan), np.full(count, np.nan)
    for task, reading in zip(todo, readings, strict=True):
        if reading is None:
            continue
        score = reading.probability
        if task.arms == ("closed_book",):
            closed[task.number] = score
        elif task.arms == ("a_a",):
            again[task.number] = score
        else:
            columns = [names.index(arm) for arm in task.arms if arm in names]
            scores[task.number, columns] = score
            log = reading.log_probability
            logs[task.number, columns] = np.nan if log is None else log
            same[task.number, columns] = request.reference in task.arms
            depth[task.number, columns] = _depth(holds, task)
    whole = ~np.isnan(scores).any(axis=1)
    twice = np.column_stack([scores[:, 0], again])
    twice = twice[~np.isnan(twice).any(axis=1)]
    text = scoring != "log_probability"
    return Table(
        numbers=tuple(np.flatnonzero(whole).tolist()),
        scores=scores[whole],
        logs=None if text else logs[whole],
        same=same[whole],
        depth=depth[whole],
        gold=holds,
        lost=int((~whole).sum()),
        again=twice if request.a_a else None,
        closed_book=closed[~np.isnan(closed)] if request.closed_book else None,
    )


def _depth(holds: Holds, task: Task) -> float:
    """Where the only chunk with the answer stands; NaN if there is none, or several."""
    places = [at for at, index in enumerate(task.order) if holds[task.number][index]]
    return places[0] / (len(task.order) - 1) if len(places) == 1 else float("nan")


# What a killed job has read already


@dataclass(frozen=True)
class _Keep:
    """Keeps readings of weights, a number or two each, never a text."""

    ledger: Ledger
    revision: str | None
    scoring: Scoring

    def read(
        self,
        reader: Reader,
        questions: Sequence[Question],
        on_progress: OnProgress,
        check: Check,
    ) -> list[Reading | None]:
        """The readings of all questions; those that are kept are not read again."""
        keys = list(self._keys(reader, questions))
        found = [self._known(key) for key in keys]
        left = [at for at, reading in enumerate(found) if reading is None]
        done = len(questions) - len(left)
        for start in range(0, len(left), _PIECE):
            piece = left[start : start + _PIECE]

            def report(read: int, _: int, before: int = done + start) -> None:
                on_progress(before + read, len(questions))

            new = reader.read([questions[at] for at in piece], on_progress=report, check=check)
            for at, one in zip(piece, new, strict=True):
                reading = found[at] = _judged(questions[at], one, self.scoring)
                if reading is not None:
                    self._put(keys[at], reading)
        return found

    def _keys(self, reader: Reader, questions: Sequence[Question]) -> Iterator[str]:
        seen: dict[str, int] = {}
        for question in questions:
            prompt = question.prompt
            sent = prompt if isinstance(prompt, str) else [[m.role, m.content] for m in prompt]
            key = digest(
                [
                    self.revision, reader.rung, self.scoring, sent, question.answer,
                    list(question.accepted), question.max_tokens,
                ]
            )  # fmt: skip
            seen[key] = seen.get(key, -1) + 1
            yield digest([key, seen[key]])

    def _known(self, key: str) -> Reading | None:
        stored = self.ledger.get(key)
        if stored is None:
            return None
        probability, log, tokens = json.loads(stored)
        return Reading(probability, log, tokens)

    def _put(self, key: str, reading: Reading) -> None:
        row = [reading.probability, reading.log_probability, reading.prompt_tokens]
        self.ledger.put(key, json.dumps(row).encode())


# From the store, and into it


def outcome(found: Finding, job_id: str) -> ExperimentOutcome:
    """A finding as it is stored, under the id of its job: the id that its caller knows."""
    result = found.result.model_copy(update={"id": job_id})
    return ExperimentOutcome(result.model_dump_json().encode(), packed(_lines(found.rows)))


def _lines(rows: Iterable[ExperimentRow]) -> Iterator[str]:
    """The table as CSV (RFC 4180), heading first."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(ROW_COLUMNS)
    writer.writerows(row.cells() for row in rows)
    yield buffer.getvalue()


def curve_of(
    request: ExperimentRequest, find_profile: Callable[[str], StoredProfile | None]
) -> PlacementCurve | None:
    """The curve of the profile that a request names; None if it names none.

    Raises:
        ProfileNotFound: it was deleted since.
        InvalidRequest: it lacks the source that is asked for.
    """
    if request.profile_id is None:
        return None
    stored = find_profile(request.profile_id) or shipped.find(request.profile_id)
    if stored is None:
        raise profile_not_found(request.profile_id)
    return of_profile(stored.body, request.source)
