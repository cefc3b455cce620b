"""What gathers statistics during somebody else's pass.

The mixing coefficient lambda, measured beside another pass.

lambda_t(i) = |Attn_t(i)| / (|X_t(i)| + |Attn_t(i)|) for token i at attention branch t: X_t is the
residual stream that enters the branch, Attn_t the update that is added to it, after any post-norm
or residual multiplier. Euclidean norms in float32, sums in float64 (arXiv 2602.16837).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from workers.instrument.sites import Site, SiteReader, layers_of


class Tap(Protocol):
    """Reads a model from the side while `influence.measure` runs it: no pass of its own.

    Hooks stand while the context is open. `start_batch` announces every forward pass.
    """

    def __enter__(self) -> Any:
        """Set the hooks."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> bool | None:
        """Remove the hooks."""
        ...

    def start_batch(self, ids: Tensor) -> None:
        """A forward pass over `ids` [B, n] comes next."""
        ...


@runtime_checkable
class Revocable(Tap, Protocol):
    """A tap that can begin anew.

    With such taps alone documents that ran out of memory are read again in smaller batches.
    """

    def reset(self) -> None:
        """Forget all passes."""
        ...

    def end_batch(self) -> None:
        """Forward and backward pass are complete: keep what they showed."""
        ...


@runtime_checkable
class Holding(Tap, Protocol):
    """A tap that keeps much on the device."""

    def held_bytes(self, length: int) -> int:
        """How much, for documents of `length` tokens."""
        ...


@contextmanager
def opened(taps: Sequence[Tap]) -> Iterator[None]:
    """All taps open at once."""
    with ExitStack() as stack:
        for tap in taps:
            stack.enter_context(tap)
        yield


def start(taps: Sequence[Tap], ids: Tensor) -> None:
    """Announce a pass to all taps."""
    for tap in taps:
        tap.start_batch(ids)


def end(taps: Sequence[Tap]) -> None:
    """Tell those that ask for it that the pass succeeded."""
    for tap in taps:
        if isinstance(tap, Revocable):
            tap.end_batch()


def reset(taps: Sequence[Tap]) -> bool:
    """Have all of them forget what they saw; False when one of them cannot."""
    revocable = [tap for tap in taps if isinstance(tap, Revocable)]
    for tap in revocable:
        tap.reset()
    return len(revocable) == len(taps)


def held_bytes(taps: Sequence[Tap], length: int) -> int:
    """Memory that their sums take on the device, for documents of `length` tokens."""
    return sum(tap.held_bytes(length) for tap in taps if isinstance(tap, Holding))


F64 = NDArray[np.float64]


class MixingTap:
    """Gathers lambda at every site while it is open; see `workers.influence.mixing.Tap`.

    Nothing of the pass is copied: each site reduces two tensors [B, n, width] to norms [B, n].
    """

    def __init__(self, model: nn.Module, sites: Sequence[Site]) -> None:
        self._sites = tuple(sites)
        self._reader = SiteReader(model, self._sites, self._on_site)
        self._shape = (0, 0)
        self._batch: dict[int, Tensor] = {}
        self._documents: list[Tensor] = []
        self._token_sums: Tensor | None = None

    def reset(self) -> None:
        """Forget all documents."""
        self._batch, self._documents, self._token_sums = {}, [], None

    @property
    def layers(self) -> list[int]:
        """Number in the model's stack of the layer of each site, [T]."""
        return layers_of(self._sites)

    def __enter__(self) -> Self:
        """Set the hooks."""
        self._reader.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        """Remove the hooks."""
        self._reader.__exit__(None, None, None)

    def start_batch(self, ids: Tensor) -> None:
        """A forward pass over `ids` [B, n] comes next; an unfinished one is forgotten."""
        self._reader.start_batch()
        self._shape = (ids.shape[0], ids.shape[1])
        self._batch = {}

    def end_batch(self) -> None:
        """Keep what the pass showed.

        Raises:
            RuntimeError: a site was not reached, so the recipe does not fit the model.
        """
        absent = [site.update.path for i, site in enumerate(self._sites) if i not in self._batch]
        if absent:
            raise RuntimeError(f"the pass did not reach the attention site at {absent[0]}")
        mixing = torch.stack([self._batch[i].cpu() for i in range(len(self._sites))], dim=1)
        self._batch = {}
        self._documents.append(mixing.mean(dim=-1))
        sums = mixing.sum(dim=0)
        self._token_sums = sums if self._token_sums is None else self._token_sums + sums

    @property
    def per_document(self) -> F64:
        """Mean over tokens, [K, T] in [0, 1]: documents in order, layers from the bottom up."""
        if not self._documents:
            return np.zeros((0, len(self._sites)))
        return np.asarray(torch.cat(self._documents).numpy(), dtype=np.float64)

    @property
    def by_token(self) -> F64:
        """Mean over documents, [T, n] in [0, 1]."""
        if self._token_sums is None:
            return np.zeros((len(self._sites), 0))
        count = sum(len(part) for part in self._documents)
        return np.asarray((self._token_sums / count).numpy(), dtype=np.float64)

    def _on_site(self, index: int, update: Tensor, stream: Tensor) -> None:
        site = self._sites[index]
        added = self._norms(update, site.update.coefficient)
        present = self._norms(stream, site.stream.coefficient).to(added.device)
        total = added + present
        # Both zero: nothing is mixed in.
        self._batch[index] = torch.where(total > 0, added / total, torch.zeros_like(total))

    def _norms(self, tensor: Tensor, coefficient: float) -> Tensor:
        wide = tensor if tensor.dtype == torch.float64 else tensor.float()
        norms: Tensor = wide.norm(dim=-1).double()
        return norms.reshape(self._shape) * abs(coefficient)
