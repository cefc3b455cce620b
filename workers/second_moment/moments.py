"""The second-moment prediction of a loaded model, measured on any architecture.

For each document, `DocumentMoments` runs three passes:

    read    kernels, streams and updates of the document (`streams`)
    gains   cotangents down single tokens' columns (`streams.column_cotangents`), then one-token
            prompts that show the gains of all branches (`gains`)

and `evaluate` gives them to `lacuna.theory.second_moment`. `predict` averages over documents. The
measured gradient over positions, which is what must be predicted, plays no part.
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
from workers.instrument import Instrumentation
from workers.instrument.attention import BatchShape
from workers.instrument.capture import capturing
from workers.instrument.model_pass import (
    Check,
    deterministic_grad,
    embedding_leaf,
    interruptible,
    no_check,
    throttled,
)
from workers.second_moment import gains as branch_gains
from workers.second_moment.gains import Gains
from workers.second_moment.streams import (
    COLUMNS,
    BinnedKernelObserver,
    StopForward,
    Streams,
    column_cotangents,
    run_to_last_update,
)

BINS = (64, SECOND_MOMENT_BINS)
"""Fewest and most bins of positions."""
KERNEL_BYTES = 1 << 29
"""Memory for one document's kernels, which also limits the bins."""
GRAM_TOKENS = 16
"""Tokens at which heads are taken apart."""
GRAM_DOCUMENTS = 2
"""Documents in which heads are taken apart; the Gram matrix hardly depends on the document."""
REHEARSAL = 8
"""Tokens of the trial run."""
PROBES = 16
"""Cotangents per branch over all documents together, at least one in each."""


class Unsupported(Exception):
    """The prediction does not cover the model; the message says why."""


@dataclass(frozen=True)
class SecondMomentPrediction:
    """The prediction, or why there is none.

    Attributes:
        influence: F64[n], sums to 1: mean over documents of each one's normalised prediction.
        per_document: F64[K', n], rows sum to 1.
        rows: which of the K documents were read, [K'].
        reason: why the model is not covered; then the others are None.
    """

    influence: F64 | None
    per_document: F64 | None
    rows: NDArray[np.intp] | None
    reason: str | None = None


def predict(
    model: PreTrainedModel,
    instrumentation: Instrumentation,
    ids: Tensor,
    *,
    seed: int = 0,
    check: Check = no_check,
    on_document: Callable[[int, int], None] = lambda done, of: None,
    documents: int = SECOND_MOMENT_DOCUMENTS,
    bins: int | None = None,
    probes: int | None = None,
) -> SecondMomentPrediction:
    """Predict the influence profile of `model` on the documents.

    Args:
        model: frozen, in eval mode.
        instrumentation: what `inspect` said about it.
        ids: LongTensor[K, n].
        seed: of the random read-outs; equal seeds give equal predictions.
        check: called several times a second, also within a pass; may raise to give up.
        on_document: called with (documents done, documents in all) after each.
        documents: how many of the K are used, evenly spaced, since neighbours share a source.
        bins: of positions; None chooses by the work and memory that they cost.
        probes: cotangents per branch and document; None spreads 16 over the documents.
    """
    reason = _why_not(instrumentation)
    if reason is not None:
        return SecondMomentPrediction(None, None, None, reason)
    rows = _spaced(len(ids), documents)
    used = ids[rows].to(model.device)
    if probes is None:
        probes = -(-PROBES // len(used))
    norm_behind = _rehearse(model, instrumentation, used[0, :REHEARSAL])
    if isinstance(norm_behind, str):
        return SecondMomentPrediction(None, None, None, norm_behind)
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
                found = measuring.gains(generator, take_apart=index < GRAM_DOCUMENTS)
                if found.gram is not None:
                    gram.append(found.gram)
                curves.append(measuring.evaluate(found, np.mean(gram, axis=0)))
                on_document(index + 1, len(used))
    except Unsupported as error:
        return SecondMomentPrediction(None, None, None, str(error))
    predicted = np.array(curves)
    return SecondMomentPrediction(aggregates.per_document(predicted), predicted, rows)


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
    if any(len(branch.cores) != 1 for branch in instrumentation.branches):
        return "several softmax maps feed one update, so heads cannot be taken apart"
    return None


def _rehearse(model: PreTrainedModel, instrumentation: Instrumentation, ids: Tensor) -> bool | str:
    """Run the passes on a few tokens, to see whether the model's own code allows them.

    Returns:
        Whether a norm layer stands behind the attention, or the reason against a prediction.
    """
    trial = DocumentMoments(model, instrumentation, 1, no_check)
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


class DocumentMoments:
    """The passes over one document; call `read`, `gains` and `evaluate` in this order.

    Args:
        model: frozen.
        instrumentation: what `inspect` said about it.
        probes: cotangents per branch.
        check: called at every branch and block of rows; may raise to give up.

    Attributes:
        norm_behind: whether a norm layer stands behind the attention; then its gain is measured
            apart from the value path's.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        instrumentation: Instrumentation,
        probes: int,
        check: Callable[[], None],
    ) -> None:
        self._model, self._instrumentation = model, instrumentation
        self._branches = instrumentation.branches
        self._probes, self._check = probes, check
        self.norm_behind = False

    def read(self, ids: Tensor, bins: int | None) -> None:
        """Kernels, streams and updates of ids [n]; the embedding's own gain."""
        n = int(ids.numel())
        heads = max(table.heads(self._model.config.get_text_config()), 1)
        self._bounds: I64 = edges(n, bins or _bins(len(self._branches), heads, n))
        # One token speaks for each bin, the middle one; single-token bins speak for themselves.
        tokens = torch.from_numpy((self._bounds[:-1] + self._bounds[1:]) // 2).to(ids.device)
        self._ids, self._tokens = ids[tokens][:, None], tokens
        self._kernels = BinnedKernelObserver(torch.from_numpy(self._bounds), self._check)
        self._streams = Streams([], [])
        self._embedding = self._embedding_gain(ids)
        shape = BatchShape(1, n)
        with (
            torch.no_grad(),
            capturing(self._model, self._instrumentation.capture, self._kernels, shape),
        ):
            run_to_last_update(
                self._model, self._branches, ids[None], self._keep, self._keep_update
            )
        if self._kernels.least_row_sum < 0.999:
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
        gain: list[Tensor] = []

        def first_stream(_t: int, found: Tensor) -> None:
            assert trace.leaf is not None
            read = torch.randn(found.shape[-1], generator=torch.Generator().manual_seed(0))
            cotangent = read.to(found).expand(found.shape)
            (pulled,) = deterministic_grad(found, [trace.leaf], cotangent)
            gain.append(pulled.reshape(ids.numel(), -1).float().norm(dim=-1) / read.norm())
            raise StopForward

        with torch.enable_grad(), embedding_leaf(self._model) as trace:
            run_to_last_update(
                self._model, self._branches, ids[None], first_stream, lambda _t, _found: None
            )
        return gain[0].double().cpu().numpy()

    def gains(self, generator: torch.Generator, *, take_apart: bool) -> Gains:
        """Gains of all branches at one token per bin; `take_apart` adds the heads' Gram matrix."""
        count = len(self._tokens)
        chosen = torch.randperm(count, generator=generator)[:COLUMNS]
        chosen = chosen.to(self._ids.device)
        cotangents = column_cotangents(
            self._model,
            self._branches,
            self._ids[chosen],
            self._streams.at(chosen),
            generator,
        )
        self._check()
        apart = torch.linspace(min(1, count - 1), count - 1, min(count, GRAM_TOKENS)).long()
        return branch_gains.measure(
            self._model,
            self._branches,
            self._ids,
            self._streams,
            cotangents,
            heads=max(self._kernels.heads(branch.cores[0]) for branch in self._branches),
            gram_tokens=apart if take_apart else None,
            mix=self._kernels.mix,
            apart_from_rows=self.norm_behind,
            probes=self._probes,
            generator=generator,
            check=self._check,
        )

    def evaluate(self, gains: Gains, gram: F64) -> F64:
        """The predicted profile, F64[n], sums to 1; `gram` as `Gains.gram`."""
        curve = second_moment(self._layers(gains, gram), self._bounds)
        return aggregates.per_document((curve * self._embedding)[None])

    def _layers(self, gains: Gains, gram: F64) -> Iterator[LayerMoments]:
        widths = np.diff(self._bounds)
        for t in range(len(self._branches) - 1, -1, -1):
            self._check()
            kernel = self._kernels.kernel(self._branches[t].cores[0])
            heads = kernel.mass.shape[0]
            local = gains.local[t] - 1 if t < len(gains.local) else None
            yield LayerMoments(
                kernel.rows_scaled(gains.row[t]),
                gram[t][: heads + 1, : heads + 1],
                gains.draw[t],
                None if local is None else np.maximum(np.diagonal(local), -1.0),
                None if local is None else _between(local, widths),
                parallel=self._branches[t].block == "parallel",
            )


def _at(found: Tensor, tokens: Tensor) -> Tensor:
    return found.reshape(-1, found.shape[-1])[tokens.to(found.device)]


def _between(local: F64, widths: I64) -> F64:
    """Off-diagonal gains; within a bin of several tokens, what neighbouring bins have."""
    between = np.maximum(local, -1.0)
    m = len(widths)
    for a in np.flatnonzero(widths > 1):
        neighbours = [between[a, b] for b in (a - 1, a + 1) if 0 <= b < m]
        between[a, a] = float(np.mean(neighbours))
    return between


def _bins(layers: int, heads: int, n: int) -> int:
    by_work = np.cbrt(SECOND_MOMENT_WORK / (4 * layers * heads))
    by_memory = np.sqrt(KERNEL_BYTES / (4 * layers * heads))
    return min(n, int(np.clip(min(by_work, by_memory), *BINS)))
