"""Recall in a job: what is refused before anything is measured, and groups until it is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lacuna.contract.errors import DocumentsUnusable
from lacuna.contract.profile_requests import ProfileRequest, RecallRequest
from workers.models.loaded import LoadedModel
from workers.recall.measure import layouts
from workers.recall.reader import Check
from workers.recall.sampled import (
    OnShare,
    Probed,
    Sampled,
    Source,
    reporter,
    sampled,
    source_of,
)
from workers.recall.weights_reader import WeightsReader


@dataclass(frozen=True)
class RecallPlan:
    """A measurement of recall that a model can take."""

    asked: RecallRequest
    reader: WeightsReader
    sources: tuple[Source, ...]
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
        sources=tuple(source_of(name, asked, request.seed) for name in asked.probes),
        length=request.sequence_length,
        seed=request.seed,
    )
    for source in planned.sources:
        every = source.draw(source.most, asked.depths, request.seed, 0)
        laid_out = layouts(reader, every, request.sequence_length, asked.question)
        questions = laid_out[0].questions(reader.form, asked.question, 0)
        reader.rows([question for _, _, question in questions])
    return planned


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
        report = reporter(on_share, source, number, len(planned.sources))
        one = Sampled(source, planned.asked, planned.length, planned.seed)
        found[source.name] = sampled(planned.reader, one, report, check)
    return found
