"""Reads documents until the curve is known well enough, or all of a fixed number."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

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


def read(
    offered: DocumentSet, measure: Measure, *, most: int | None, edges: Sequence[int] = ()
) -> Sample:
    """Measure documents from the first on.

    Args:
        offered: the documents that there are; the first ones stand for all.
        measure: measures some of them.
        most: stop when the rule of `lacuna.evidence.sampling` says so, and at this number; None
            reads all.
        edges: numbers of documents at which passes end, whatever the rule asks for.
    """
    there = len(offered.ids)
    found: InfluenceResult | None = None
    done = 0

    def up_to(stop: int) -> InfluenceResult:
        nonlocal found, done
        for edge in sorted({stop, *(edge for edge in edges if done < edge < stop)}):
            more = measure(done, edge)
            found = more if found is None else found.followed_by(more)
            done = edge
        assert found is not None
        return found

    if most is None:
        result = up_to(there)
        return Sample(result, offered, sampling_to_wire("fixed", result.norms))
    state = Sampling(dataclasses.replace(DOCUMENTS, start=min(DOCUMENTS.start, most), budget=most))
    stop = min(state.rule.start, there)
    while True:
        result = up_to(stop)
        exhausted = stop == there < most
        look = state.look(stop, tenths_half_width(result.norms), exhausted=exhausted)
        if look.stop:
            break
        stop = min(stop + look.add, there)
    end: SamplingEnd = "narrow" if look.reason == "narrow" else "budget"
    if end == "budget" and exhausted:
        end = "exhausted"
    return Sample(result, offered.part(0, stop), sampling_to_wire(end, result.norms))
