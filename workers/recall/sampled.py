"""Groups of one probe until recall is known: a fixed number, or until the bands are narrow.

The same for weights and served models. The width of the band is looked at after every step; the
test is made once, when the curve is written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from lacuna.contract.errors import BudgetSpent, DocumentsUnusable
from lacuna.contract.profile_requests import RecallRequest
from lacuna.contract.recall import LEAST_GROUPS
from lacuna.evidence.flatness import depth_curve
from lacuna.evidence.sampling import PROBABILITIES, Sampling
from workers.recall import probes
from workers.recall.measure import measure
from workers.recall.probes import Draw, Passage
from workers.recall.reader import Check, Reader
from workers.recall.result import Recall
from workers.recall.wire import Ending

OnShare = Callable[[float, str], None]
"""Called with the share of all recall that is done, and a message."""
Report = Callable[[int, int, int, int], None]
"""Called with the groups read before, those being read, and their questions: done, of."""


@dataclass(frozen=True)
class Probed:
    """Recall of one probe, and why no more groups of it were read."""

    recall: Recall
    ending: Ending


@dataclass(frozen=True)
class Source:
    """Where the groups of one probe come from.

    Attributes:
        name: of the probe.
        draw: gives the groups.
        most: groups that may be read.
        exhausted: whether that is fewer than were asked for.
    """

    name: str
    draw: Draw
    most: int
    exhausted: bool


@dataclass(frozen=True)
class Sampled:
    """What is measured of one probe.

    Attributes:
        source: of its groups.
        asked: the request for recall.
        length: tokens of a prompt.
        seed: of facts, filler and the order of calls.
    """

    source: Source
    asked: RecallRequest
    length: int
    seed: int

    @property
    def start(self) -> int:
        """Groups of the first look."""
        most = self.source.most
        return most if self.asked.groups != "auto" else min(PROBABILITIES.start, most)


def source_of(name: str, asked: RecallRequest, seed: int) -> Source:
    """The groups of a probe.

    Raises:
        DocumentsUnusable: too few of the caller's passages fit together.
    """
    if name != "documents":
        return Source(name, probes.PROBES[name], asked.limit, exhausted=False)
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
    return Source(name, probes.documents(passages), most, exhausted=most < asked.limit)


def reporter(on_share: OnShare, source: Source, number: int, of: int) -> Report:
    """Turns progress within probe `number` of `of` into a share of all."""

    def report(before: int, now: int, done: int, asked: int) -> None:
        read = before + now * done / max(asked, 1)
        share = (number + min(read / source.most, 1.0)) / of
        groups = before + now * done // max(asked, 1)
        on_share(share, f"recall of {source.name}: {groups} groups")

    return report


def sampled(reader: Reader, plan: Sampled, report: Report, check: Check) -> Probed:
    """Groups of one probe: a fixed number, or until differences between depths are known.

    If the reader's budget is spent after the first look, the groups read until then are the result.

    Raises:
        BudgetSpent: during the first look.
        Errors of `measure` and of the reader.
    """

    def read(first: int, count: int) -> Recall:
        return measure(
            reader,
            plan.source.draw,
            plan.length,
            probe=plan.source.name,
            groups=count,
            depths=plan.asked.depths,
            order=plan.asked.question,
            seed=plan.seed,
            first=first,
            on_progress=partial(report, first, count),
            check=check,
        )

    count = plan.start
    found = read(0, count)
    if plan.asked.groups != "auto":
        return Probed(found, "fixed")
    state = Sampling(dataclasses.replace(PROBABILITIES, start=count, budget=plan.source.most))
    while not (look := state.look(count, _half_width(found))).stop:
        try:
            found = found.joined(read(count, look.add))
        except BudgetSpent:
            return Probed(found, "budget")
        count += look.add
    if look.reason == "narrow":
        return Probed(found, "narrow")
    return Probed(found, "exhausted" if plan.source.exhausted else "budget")


def _half_width(found: Recall) -> float | None:
    """Of the band of differences between depths; None where none is offered."""
    if found.groups < LEAST_GROUPS:
        return None
    curve = depth_curve(
        found.by_group, topics=found.topics, phrasings=found.phrasings, seed=found.seed
    )
    return curve.half_width
