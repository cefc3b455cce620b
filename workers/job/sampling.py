"""Reads documents until the curve is known well enough, or all of a fixed number."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from lacuna.contract.profiles import DocumentSampling, SamplingEnd
from lacuna.evidence.sampling import DOCUMENTS, Sampling
from workers.documents import DocumentSet
from workers.influence.curves import sampling_to_wire, tenths_half_width
from workers.influence.influence import InfluenceResult

Measure = Callable[[int, int], InfluenceResult]
"""Measures the documents `start` to `stop` - 1."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """The documents that were read.

    Attributes:
        influence: gradient norms of each.
        documents: their tokens.
        sampled: why there are no more.
    """

    influence: InfluenceResult
    documents: DocumentSet
    sampled: DocumentSampling


def read(offered: DocumentSet, measure: Measure, *, most: int | None) -> Sample:
    """Measure documents from the first on.

    Args:
        offered: the documents that there are; the first ones stand for all.
        measure: measures some of them.
        most: stop when the rule of `lacuna.evidence.sampling` says so, and at this number; None
            reads all.
    """
    there = len(offered.ids)
    if most is None:
        result = measure(0, there)
        return Sample(result, offered, sampling_to_wire("fixed", result.norms))
    state = Sampling(dataclasses.replace(DOCUMENTS, start=min(DOCUMENTS.start, most), budget=most))
    stop = min(state.rule.start, there)
    result = measure(0, stop)
    while True:
        exhausted = stop == there < most
        look = state.look(stop, tenths_half_width(result.norms), exhausted=exhausted)
        if look.stop:
            break
        start, stop = stop, min(stop + look.add, there)
        result = result.followed_by(measure(start, stop))
    end: SamplingEnd = "narrow" if look.reason == "narrow" else "budget"
    if end == "budget" and exhausted:
        end = "exhausted"
    return Sample(result, offered.part(0, stop), sampling_to_wire(end, result.norms))
