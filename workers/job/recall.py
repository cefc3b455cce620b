"""Recall in a job: what is refused before anything is measured, and groups until it is known.

Each probe is sampled by itself. The width of its band is looked at after every step; the test is
made once, when the profile is written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from lacuna.contract.errors import DocumentsUnusable
from lacuna.contract.profile_requests import ProfileRequest
from lacuna.contract.recall import LEAST_GROUPS, RecallRequest
from lacuna.evidence.flatness import depth_curve
from lacuna.evidence.sampling import PROBABILITIES, Sampling
from workers.models.loaded import LoadedModel
from workers.recall import probes
from workers.recall.measure import layouts, measure
from workers.recall.probes import Draw, Passage
from workers.recall.reader import Check
from workers.recall.result import Recall
from workers.recall.weights_reader import WeightsReader
from workers.recall.wire import Ending

OnShare = Callable[[float, str], None]
"""Called with the share of all recall that is done, and a message."""


@dataclass(frozen=True)
class Probed:
    """Recall of one probe, and why no more groups of it were read."""

    recall: Recall
    ending: Ending


@dataclass(frozen=True)
class _Source:
    """Where the groups of one probe come from, and how many there are at most."""

    name: str
    draw: Draw
    most: int
    exhausted: bool
    """Whether there are fewer than `auto` may read."""


@dataclass(frozen=True)
class RecallPlan:
    """A measurement of recall that a model can take."""

    asked: RecallRequest
    reader: WeightsReader
    sources: tuple[_Source, ...]
    length: int
    seed: int


def plan(loaded: LoadedModel, request: ProfileRequest) -> RecallPlan | None:
    """Find out whatever is refused about recall, before anything is measured.

    Returns:
        None where recall was not asked for.

    Raises:
        DocumentsUnusable: no tokenizer, no chat template where one is asked for, no room for the
            facts, too few passages; or what the tokenizer cannot write.
        TooLong: prompts longer than the model reads.
    """
    asked = request.recall
    if asked is None:
        return None
    rung: Literal["answer", "text"] = "text" if asked.scoring == "text" else "answer"
    reader = WeightsReader(loaded, rung=rung, chat=asked.form != "plain")
    if asked.form == "chat" and reader.form == "plain":
        raise DocumentsUnusable(
            f"`recall.form`: {loaded.id} has no chat template; ask for auto or plain",
            field="recall.form",
        )
    planned = RecallPlan(
        asked=asked,
        reader=reader,
        sources=tuple(_source(name, asked, request.seed) for name in asked.probes),
        length=request.sequence_length,
        seed=request.seed,
    )
    for source in planned.sources:
        every = source.draw(source.most, asked.depths, request.seed, 0)
        laid_out = layouts(reader, every, request.sequence_length, asked.question)
        questions = laid_out[0].questions(reader.form, asked.question, 0)
        reader.rows([question for _, _, question in questions])
    return planned


def _source(name: str, asked: RecallRequest, seed: int) -> _Source:
    if name != "documents":
        return _Source(name, probes.PROBES[name], asked.limit, exhausted=False)
    passages = [
        Passage(one.question, tuple(one.answers), one.text, one.title, one.topic)
        for one in asked.passages or ()
    ]
    there = probes.groups_of(passages, asked.depths, seed)
    needed = LEAST_GROUPS if asked.groups == "auto" else asked.limit
    if there < needed:
        raise DocumentsUnusable(
            f"`recall.passages`: {len(passages)} passages give {there} groups of {asked.depths} "
            f"questions, {needed} are needed: each question is used once, its passage must hold an "
            "answer, and the passages of a group must not answer each other's questions",
            field="recall.passages",
        )
    most = min(there, asked.limit)
    return _Source(name, probes.documents(passages), most, exhausted=most < asked.limit)


def _start(asked: RecallRequest, source: _Source) -> int:
    return source.most if asked.groups != "auto" else min(PROBABILITIES.start, source.most)


def run(planned: RecallPlan, *, on_share: OnShare, check: Check) -> dict[str, Probed]:
    """Measure what was planned, probe by probe.

    Args:
        planned: by `plan`.
        on_share: hears of progress; what it raises ends the measurement.
        check: called several times a second; what it raises ends it too.

    Raises:
        DocumentsUnusable, TooLong, NotFinite, OutOfMemory: as `WeightsReader.read`.
    """
    found = {}
    for number, source in enumerate(planned.sources):
        report = partial(_report, on_share, source, number, len(planned.sources))
        found[source.name] = _sampled(planned, source, report, check)
    return found


Report = Callable[[int, int, int, int], None]
"""Called with the groups read before, those being read, and their questions: done, of."""


def _report(
    on_share: OnShare, source: _Source, number: int, of: int, before: int, now: int, done: int,
    asked: int,
) -> None:  # fmt: skip
    read = before + now * done / max(asked, 1)
    share = (number + min(read / source.most, 1.0)) / of
    on_share(share, f"recall of {source.name}: {before + now * done // max(asked, 1)} groups")


def _sampled(planned: RecallPlan, source: _Source, report: Report, check: Check) -> Probed:
    """Groups of one probe: a fixed number, or until differences between depths are known."""

    def read(first: int, count: int) -> Recall:
        return measure(
            planned.reader,
            source.draw,
            planned.length,
            probe=source.name,
            groups=count,
            depths=planned.asked.depths,
            order=planned.asked.question,
            seed=planned.seed,
            first=first,
            on_progress=partial(report, first, count),
            check=check,
        )

    count = _start(planned.asked, source)
    found = read(0, count)
    if planned.asked.groups != "auto":
        return Probed(found, "fixed")
    state = Sampling(dataclasses.replace(PROBABILITIES, start=count, budget=source.most))
    while not (look := state.look(count, _half_width(found))).stop:
        found = found.joined(read(count, look.add))
        count += look.add
    if look.reason == "narrow":
        return Probed(found, "narrow")
    return Probed(found, "exhausted" if source.exhausted else "budget")


def _half_width(found: Recall) -> float | None:
    """Of the band of differences between depths; None where none is offered."""
    if found.groups < LEAST_GROUPS:
        return None
    curve = depth_curve(
        found.by_group, topics=found.topics, phrasings=found.phrasings, seed=found.seed
    )
    return curve.half_width
