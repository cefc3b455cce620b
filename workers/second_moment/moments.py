"""One document through the three passes that the second moment needs, and its evaluation.

The first reads kernels, streams and updates; the second pulls cotangents down single columns
(`columns`); the third runs one-token prompts and measures the gains of all branches
(`branch_gains`).

The second-moment prediction of a loaded model, measured model-agnostically.

Per document: one pass reads kernels, streams and updates; one small pass pulls cotangents down
single columns; one pass of one-token prompts measures the gains of all branches
(`branch_gains`); `lacuna.theory.second_moment` does the rest. Nothing of the measured gradient
over positions enters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from lacuna.architectures import table
from lacuna.contract.profile_requests import (
    SECOND_MOMENT_BINS,
    SECOND_MOMENT_DOCUMENTS,
    SECOND_MOMENT_WORK,
)
from lacuna.evidence import aggregates
from lacuna.theory.binning import I64, edges
from lacuna.theory.curve import F64
from lacuna.theory.second_moment import LayerMoments, second_moment
from workers.faults import is_machine_fault
from workers.influence.passes import Check, go_on, gradients, interruptible, throttled
from workers.instrument import Instrumentation
from workers.instrument.attention import BatchShape
from workers.instrument.capture import capturing
from workers.second_moment import branches, columns
from workers.second_moment.branches import Gains
from workers.second_moment.columns import KernelWatch, Streams

BINS = (64, SECOND_MOMENT_BINS)
"""Fewest and most bins of positions."""
KERNEL_BYTES = 1 << 29
"""Memory for one document's kernels, which bounds the bins too."""
GRAM_TOKENS = 16
"""Tokens at which heads are taken apart."""


class Unsupported(Exception):
    """The model is not covered; with the sentence that says why."""


class DocumentMoments:
    """The three passes over one document."""

    def __init__(
        self,
        model: PreTrainedModel,
        instrumentation: Instrumentation,
        probes: int,
        check: Callable[[], None],
    ) -> None:
        self._model, self._instrumentation = model, instrumentation
        self._sites = instrumentation.sites
        self._probes, self._check = probes, check
        self.norm_behind = False

    def read(self, ids: Tensor, bins: int | None) -> None:
        """Kernels, streams and updates of ids [n]; the embedding's own gain."""
        n = int(ids.numel())
        heads = max(table.heads(self._model.config.get_text_config()), 1)
        self._bounds: I64 = edges(n, bins or _bins(len(self._sites), heads, n))
        # One token speaks for each bin, the middle one; single-token bins speak for themselves.
        tokens = torch.from_numpy((self._bounds[:-1] + self._bounds[1:]) // 2).to(ids.device)
        self._ids, self._tokens = ids[tokens][:, None], tokens
        self._watch = KernelWatch(torch.from_numpy(self._bounds), self._check)
        self._streams = Streams([], [])
        self._embedding = self._embedding_gain(ids)
        shape = BatchShape(1, n)
        with (
            torch.no_grad(),
            capturing(self._model, self._instrumentation.capture, self._watch, shape),
        ):
            columns.run(self._model, self._sites, ids[None], self._keep, self._keep_update)
        if self._watch.least_row_sum < 0.999:
            raise Unsupported("attention sinks draw weight that carries no value")

    def _keep(self, t: int, found: Tensor) -> None:
        if len(self._streams.stream) != t or len(self._streams.update) != t:
            raise Unsupported("a layer's stream can only be read after its attention")
        self._streams.stream.append(_at(found, self._tokens))

    def _keep_update(self, t: int, found: Tensor) -> None:
        self._check()
        if len(self._streams.stream) != t + 1:
            raise Unsupported("a layer's stream can only be read after its attention")
        self._streams.update.append(_at(found, self._tokens))

    def _embedding_gain(self, ids: Tensor) -> F64:
        """F64[n]: gain from the input embedding to the first stream (1 without a norm layer)."""
        leaf: list[Tensor] = []
        gain: list[Tensor] = []

        def embedded(_module: object, _args: object, output: Tensor) -> Tensor:
            leaf.append(output.detach().requires_grad_())
            return leaf[0].clone()

        def first_stream(_t: int, found: Tensor) -> None:
            read = torch.randn(found.shape[-1], generator=torch.Generator().manual_seed(0))
            cotangent = read.to(found).expand(found.shape)
            (pulled,) = gradients(found, leaf, cotangent)
            gain.append(pulled.reshape(ids.numel(), -1).float().norm(dim=-1) / read.norm())
            raise columns.PassOver

        handle = self._model.get_input_embeddings().register_forward_hook(embedded)
        try:
            with torch.enable_grad():
                columns.run(
                    self._model, self._sites, ids[None], first_stream, lambda _t, _found: None
                )
        finally:
            handle.remove()
        return gain[0].double().cpu().numpy()

    def gains(self, generator: torch.Generator, *, take_apart: bool) -> Gains:
        """Gains of all branches at one token per bin."""
        count = len(self._tokens)
        chosen = torch.randperm(count, generator=generator)[: columns.COLUMNS]
        chosen = chosen.to(self._ids.device)
        cotangents = columns.columns(
            self._model,
            self._sites,
            self._ids[chosen],
            Streams(
                *([t[chosen.to(t.device)] for t in part] for part in vars(self._streams).values())
            ),
            generator,
        )
        self._check()
        apart = torch.linspace(min(1, count - 1), count - 1, min(count, GRAM_TOKENS)).long()
        return branches.measure(
            self._model,
            self._sites,
            self._ids,
            self._streams,
            cotangents,
            heads=max(self._watch.heads(site.cores[0]) for site in self._sites),
            gram_tokens=apart if take_apart else None,
            mix=self._watch.mix,
            apart_from_rows=self.norm_behind,
            probes=self._probes,
            generator=generator,
            check=self._check,
        )

    def evaluate(self, gains: Gains, gram: F64) -> F64:
        """F64[n], sums to 1."""
        curve = second_moment(self._layers(gains, gram), self._bounds)
        return aggregates.per_document((curve * self._embedding)[None])

    def _layers(self, gains: Gains, gram: F64) -> Iterator[LayerMoments]:
        widths = np.diff(self._bounds)
        for t in range(len(self._sites) - 1, -1, -1):
            self._check()
            kernel = self._watch.kernel(self._sites[t].cores[0])
            heads = kernel.mass.shape[0]
            local = gains.local[t] - 1 if t < len(gains.local) else None
            yield LayerMoments(
                kernel.rows_scaled(gains.row[t]),
                gram[t][: heads + 1, : heads + 1],
                gains.draw[t],
                None if local is None else np.maximum(np.diagonal(local), -1.0),
                None if local is None else _between(local, widths),
                parallel=self._sites[t].block == "parallel",
            )


def _at(found: Tensor, tokens: Tensor) -> Tensor:
    return found.reshape(-1, found.shape[-1])[tokens.to(found.device)]


def _between(local: F64, widths: I64) -> F64:
    """Off-diagonal gains; within a bin of several tokens, what neighbouring bins have."""
    between = np.maximum(local, -1.0)
    m = len(widths)
    for a in np.flatnonzero(widths > 1):
        beside = [between[a, b] for b in (a - 1, a + 1) if 0 <= b < m]
        between[a, a] = float(np.mean(beside))
    return between


def _bins(layers: int, heads: int, n: int) -> int:
    by_work = np.cbrt(SECOND_MOMENT_WORK / (4 * layers * heads))
    by_memory = np.sqrt(KERNEL_BYTES / (4 * layers * heads))
    return min(n, int(np.clip(min(by_work, by_memory), *BINS)))


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
    return Prediction(aggregates.per_document(rows), rows)


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
        if is_machine_fault(error):
            raise
        return f"its branches cannot be run alone: {type(error).__name__}: {str(error)[:200]}"
    if gains.gram is None or not bool(np.isfinite(gains.gram).all()):
        return "the gains of its branches are not finite"
    return bool(np.abs(gains.row - 1).max() > 1e-2)
