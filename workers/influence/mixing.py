"""The mixing coefficient lambda: how much of the residual stream each attention branch replaces.

lambda_t(i) = |Attn_t(i)| / (|X_t(i)| + |Attn_t(i)|) for token i at attention branch t. X_t is the
residual stream that enters the branch, Attn_t the update that is added to it, after any post-norm
or residual multiplier. Euclidean norms in float32, sums in float64 (arXiv 2602.16837).

Hooks read it during the passes of another measurement. `mixing_to_wire` is what a profile says of
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lacuna.contract.base import rounded, rounded_list
from lacuna.contract.profiles import Mixing
from workers.instrument.branches import AttentionBranch, BranchReader, layer_numbers
from workers.instrument.model_pass import at_least_float32

F64 = NDArray[np.float64]

BINS = 64
"""Most bins of positions in which a profile tells lambda."""


class MixingRecorder:
    """Records lambda at every attention branch; a `workers.influence.batching.Recorder`.

    It copies nothing of the pass: each branch reduces two tensors [B, n, width] to norms [B, n].
    """

    def __init__(self, model: nn.Module, branches: Sequence[AttentionBranch]) -> None:
        self._branches = tuple(branches)
        self._reader = BranchReader(model, self._branches, self._on_branch)
        self._shape = (0, 0)
        self._batch: dict[int, Tensor] = {}
        self._documents: list[Tensor] = []
        self._token_sums: Tensor | None = None

    def __enter__(self) -> Self:
        """Set the hooks."""
        self._reader.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        """Remove the hooks."""
        self._reader.__exit__(None, None, None)

    def start_batch(self, ids: Tensor) -> None:
        """A forward pass over `ids` [B, n] comes next; one that did not end is forgotten."""
        self._reader.start_batch()
        self._shape = (ids.shape[0], ids.shape[1])
        self._batch = {}

    def end_batch(self) -> None:
        """Keep what the pass showed.

        Raises:
            RuntimeError: the pass did not reach a branch, so the branches are another model's.
        """
        absent = [b.update.path for i, b in enumerate(self._branches) if i not in self._batch]
        if absent:
            raise RuntimeError(f"the pass did not reach the attention branch at {absent[0]}")
        mixing = torch.stack([self._batch[i].cpu() for i in range(len(self._branches))], dim=1)
        self._batch = {}
        self._documents.append(mixing.mean(dim=-1))
        sums = mixing.sum(dim=0)
        self._token_sums = sums if self._token_sums is None else self._token_sums + sums

    def reset(self) -> None:
        """Forget all documents."""
        self._batch, self._documents, self._token_sums = {}, [], None

    def held_bytes(self, length: int) -> int:
        """0: the sums are small, and on the host."""
        return 0

    def _on_branch(self, index: int, update: Tensor, stream: Tensor) -> None:
        branch = self._branches[index]
        added = self._norms(update, branch.update.coefficient)
        present = self._norms(stream, branch.stream.coefficient).to(added.device)
        total = added + present
        # Where both are zero nothing is mixed in.
        self._batch[index] = torch.where(total > 0, added / total, torch.zeros_like(total))

    def _norms(self, tensor: Tensor, coefficient: float) -> Tensor:
        norms: Tensor = at_least_float32(tensor).norm(dim=-1).double()
        return norms.reshape(self._shape) * abs(coefficient)

    @property
    def layers(self) -> list[int]:
        """The layer of each branch, [T]: its number in the model's stack."""
        return layer_numbers(self._branches)

    @property
    def per_document(self) -> F64:
        """Mean over tokens, [K, T] in [0, 1]: documents in order, layers from the bottom up."""
        if not self._documents:
            return np.zeros((0, len(self._branches)))
        return np.asarray(torch.cat(self._documents).numpy(), dtype=np.float64)

    @property
    def by_token(self) -> F64:
        """Mean over documents, [T, n] in [0, 1]."""
        if self._token_sums is None:
            return np.zeros((len(self._branches), 0))
        count = sum(len(part) for part in self._documents)
        return np.asarray((self._token_sums / count).numpy(), dtype=np.float64)


def mixing_to_wire(recorder: MixingRecorder) -> Mixing:
    """Lambda per layer, and by position in at most `BINS` bins."""
    per_document, by_token = recorder.per_document, recorder.by_token
    bins = min(BINS, by_token.shape[1])
    means = per_document.mean(axis=0)
    return Mixing(
        lambda_=rounded_list(means),
        layers=recorder.layers,
        std=rounded_list(per_document.std(axis=0)),
        sum=rounded(means.sum()),
        by_token=[
            rounded_list(part.mean() for part in np.array_split(row, bins)) for row in by_token
        ],
        bins=bins,
    )
