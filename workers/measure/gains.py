"""The second-moment prediction of a loaded model, measured model-agnostically.

Per document: one pass reads kernels, streams and updates; one small pass pulls cotangents down
single columns; one pass of one-token prompts measures the gains of all branches
(`branch_gains`); `service.theory.second_moment` does the rest. Nothing of the measured gradient
over positions enters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from service.contract.cost import SECOND_MOMENT_DOCUMENTS
from service.theory import aggregate
from service.theory.curve import F64
from workers.faults import ours
from workers.instrument import Instrumentation
from workers.measure.document_moments import DocumentMoments, Unsupported
from workers.measure.interruption import Check, go_on, interruptible, throttled

DOCUMENTS = SECOND_MOMENT_DOCUMENTS
"""Most documents that are used unless the caller asks for more."""
GRAM_DOCUMENTS = 2
"""Documents in which heads are taken apart: their Gram matrix belongs to the weights."""
REHEARSAL = 8
PROBES = 16
"""Cotangents per branch over all documents together, at least one in each."""


@dataclass(frozen=True)
class Prediction:
    """The second-moment prediction, or why there is none.

    Attributes:
        influence: F64[n], sums to 1: mean over documents of each one's normalised prediction.
        per_document: F64[K', n], rows sum to 1.
        reason: a sentence when the model is not supported; then the others are None.
    """

    influence: F64 | None
    per_document: F64 | None
    reason: str | None = None


def predict(
    model: PreTrainedModel,
    instrumentation: Instrumentation,
    ids: Tensor,
    *,
    seed: int = 0,
    check: Check = go_on,
    on_document: Callable[[int, int], None] = lambda done, of: None,
    documents: int = DOCUMENTS,
    bins: int | None = None,
    probes: int | None = None,
) -> Prediction:
    """Predict the influence profile of `model` on the documents.

    Args:
        model: frozen, in eval mode.
        instrumentation: what `inspect` said about it.
        ids: LongTensor[K, n].
        seed: of the random read-outs; equal seeds give equal predictions.
        check: called several times a second, also within a pass; may raise to give up.
        on_document: called with (documents done, documents in all) after each.
        documents: how many of the K are used, evenly spaced: neighbours share a source.
        bins: of positions; None chooses by the work and memory they cost.
        probes: cotangents per branch and document; None spreads 16 over the documents.
    """
    reason = _why_not(instrumentation)
    if reason is not None:
        return Prediction(None, None, reason)
    used = ids[_spaced(len(ids), documents)].to(model.device)
    if probes is None:
        probes = -(-PROBES // len(used))
    norm_behind = _rehearse(model, instrumentation, used[0, :REHEARSAL])
    if isinstance(norm_behind, str):
        return Prediction(None, None, norm_behind)
    check = throttled(check)
    measuring = DocumentMoments(model, instrumentation, probes, check)
    measuring.norm_behind = norm_behind
    generator = torch.Generator().manual_seed(seed)
    curves = []
    gram: list[F64] = []
    try:
        with interruptible(model, check):
            for index, document in enumerate(used):
                check()
                measuring.read(document, bins)
                gains = measuring.gains(generator, take_apart=index < GRAM_DOCUMENTS)
                if gains.gram is not None:
                    gram.append(gains.gram)
                curves.append(measuring.evaluate(gains, np.mean(gram, axis=0)))
                on_document(index + 1, len(used))
    except Unsupported as error:
        return Prediction(None, None, str(error))
    rows = np.array(curves)
    return Prediction(aggregate.per_document(rows), rows)


def _spaced(count: int, wanted: int) -> NDArray[np.intp]:
    """At most `wanted` of `count` indices, evenly spaced from the first to the last."""
    return np.linspace(0, count - 1, min(count, wanted)).round().astype(np.intp)


def _why_not(instrumentation: Instrumentation) -> str | None:
    if instrumentation.level != "full":
        return "the attention of this model cannot be watched: " + "; ".join(
            instrumentation.reasons
        )
    if instrumentation.other_mixers:
        return "other paths between positions than softmax attention carry influence"
    if any(len(site.cores) != 1 for site in instrumentation.sites):
        return "several softmax maps feed one update, so heads cannot be taken apart"
    return None


def _rehearse(model: PreTrainedModel, instrumentation: Instrumentation, ids: Tensor) -> bool | str:
    """The passes on a few tokens: a model whose code cannot run them is told by trying.

    Returns:
        Whether a norm layer stands behind the attention, or the reason against a prediction.
    """
    trial = DocumentMoments(model, instrumentation, 1, go_on)
    trial.norm_behind = True
    try:
        trial.read(ids, None)
        gains = trial.gains(torch.Generator().manual_seed(0), take_apart=True)
    except Unsupported as error:
        return str(error)
    except Exception as error:  # a model's own code may fail in any way
        if ours(error):
            raise
        return f"its branches cannot be run alone: {type(error).__name__}: {str(error)[:200]}"
    if gains.gram is None or not bool(np.isfinite(gains.gram).all()):
        return "the gains of its branches are not finite"
    return bool(np.abs(gains.row - 1).max() > 1e-2)
