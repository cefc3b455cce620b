"""One document through the three passes that the second moment needs, and its evaluation.

The first reads kernels, streams and updates; the second pulls cotangents down single columns
(`columns`); the third runs one-token prompts and measures the gains of all branches
(`branch_gains`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from service.contract.cost import SECOND_MOMENT_BINS, SECOND_MOMENT_WORK
from service.theory import aggregate
from service.theory.binning import I64, edges
from service.theory.curve import F64
from service.theory.second_moment import LayerMoments, second_moment
from workers.instrument import Instrumentation
from workers.instrument.attention import BatchShape
from workers.instrument.capture import capturing
from workers.measure import branch_gains, columns, stream_pass
from workers.measure.binned_kernels import KernelWatch
from workers.measure.branch_gains import Gains
from workers.measure.columns import Streams
from workers.measure.gradients import gradients
from workers.models import facts

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
        heads = max(facts.heads(self._model.config.get_text_config()), 1)
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
            stream_pass.run(self._model, self._sites, ids[None], self._keep, self._keep_update)
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
            raise stream_pass.PassOver

        handle = self._model.get_input_embeddings().register_forward_hook(embedded)
        try:
            with torch.enable_grad():
                stream_pass.run(
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
        return branch_gains.measure(
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
        return aggregate.per_document((curve * self._embedding)[None])

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
