"""One softmax attention operation: its operands, its weights a few rows at a time, its bias.

The heads x n x n matrix of a whole layer is never formed: `feed` walks over blocks of query rows,
and under a plain causal mask a block only reads the keys up to its own last row. `bias_of` finds
the positional bias by comparing two queries, which distinguishes it from rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workers.instrument.model_pass import at_least_float32

F64 = NDArray[np.float64]
_BLOCK_BYTES = {"cpu": 1 << 20, "cuda": 1 << 28}
"""Scores of one block: on a CPU they should fit its cache, on a GPU launches should be few."""
_MASKED = -9000.0
"""Logits below this are masked. Some models mask by -10,000 instead of minus infinity."""


def block_bytes(device: str) -> int:
    """Bytes of the scores of one block of rows on "cpu" or "cuda"."""
    return _BLOCK_BYTES.get(device, 1 << 28)


@dataclass
class AttentionCall:
    """softmax(scaling * q.k, soft-capped, + bias, masked; sink columns dropped afterwards).

    Attributes:
        number: in order of execution within the pass, from 0; -1 when nobody observes.
        query: [B, H, n, d].
        key: [B, G, m, d], G divides H: with grouped queries several heads share a key.
        scaling: factor of q.k.
        mask: [B or 1, H or 1, n, m], True where a key is visible; None is j <= i when `causal`,
            else everything.
        causal: what no mask means.
        bias: [.., n, m], added to the logits.
        softcap: c, the logits become c tanh(logits / c); None where the model has none.
        sink: [H], one more logit per head, which draws weight and carries no value.
        formed: [B, H, n, m], the weights when the model formed them itself.
        observed_bias: [H, 2, m], the bias of the last and the middle query as recovered from the
            logits; of models whose softmax is watched.
    """

    number: int
    query: Tensor
    key: Tensor
    scaling: float
    mask: Tensor | None = None
    causal: bool = True
    bias: Tensor | None = None
    softcap: float | None = None
    sink: Tensor | None = None
    formed: Tensor | None = None
    observed_bias: Tensor | None = None

    @property
    def batch(self) -> int:
        """B, documents in the batch."""
        return int(self.query.shape[0])

    @property
    def heads(self) -> int:
        """H, query heads."""
        return int(self.query.shape[1])

    @property
    def length(self) -> int:
        """n, query positions."""
        return int(self.query.shape[2])

    @property
    def keys(self) -> int:
        """m, key positions."""
        return int(self.key.shape[2])

    @property
    def plain(self) -> bool:
        """Whether the mask is exactly j <= i."""
        return self.mask is None and self.causal and self.length == self.keys

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Ranges of query rows whose scores fit `block_bytes`."""
        row = self.batch * self.heads * self.keys * 4
        step = max(16, block_bytes(self.query.device.type) // row)
        for start in range(0, self.length, step):
            yield start, min(start + step, self.length)

    def reach(self, stop: int) -> int:
        """The most keys that any row before ``stop`` can see."""
        return stop if self.plain else self.keys

    def visible(self, start: int, stop: int) -> Tensor:
        """Mask of some rows, bool [B or 1, H or 1, stop - start, reach]."""
        if self.mask is not None:
            return self.mask[..., start:stop, :]
        reach = self.reach(stop)
        device = self.query.device
        if not self.causal:
            return torch.ones(1, 1, stop - start, reach, dtype=torch.bool, device=device)
        rows = torch.arange(start, stop, device=device) + (self.keys - self.length)
        return (torch.arange(reach, device=device) <= rows[:, None])[None, None]

    def scores(self, start: int, stop: int) -> Tensor:
        """``scaling * q.k`` of some rows, float32 or wider, [B, H, stop - start, reach]."""
        return grouped_scores(
            self.query[:, :, start:stop], self.key[:, :, : self.reach(stop)], self.scaling
        )

    def probabilities(self, start: int, stop: int) -> Tensor:
        """Attention weights of some rows, float32 or wider [B, H, stop - start, reach]."""
        if self.formed is not None:
            return at_least_float32(self.formed[:, :, start:stop])
        scores = self.scores(start, stop)
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.bias is not None:
            scores = scores + self.bias[..., start:stop, : scores.shape[-1]]
        floor = torch.finfo(scores.dtype).min
        if self.plain:
            corner = torch.ones(
                stop - start, stop - start, dtype=torch.bool, device=scores.device
            ).triu_(1)
            scores[..., start:].masked_fill_(corner, floor)
        else:
            scores = scores.masked_fill_(~self.visible(start, stop), floor)
        if self.sink is None:
            return torch.softmax(scores, -1)
        sink = self.sink.to(scores.dtype).reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]


def grouped_scores(query: Tensor, key: Tensor, scaling: float) -> Tensor:
    """``scaling * q.k`` in at least float32, without repeating shared keys.

    ``query`` [B, H, c, d] and ``key`` [B, G, m, d] give [B, H, c, m].
    """
    batch, heads, rows, width = query.shape
    groups, keys = key.shape[1], key.shape[2]
    stacked = (
        at_least_float32(query).mul(scaling).reshape(batch * groups, heads // groups * rows, width)
    )
    flat = at_least_float32(key).reshape(batch * groups, keys, width)
    return torch.bmm(stacked, flat.transpose(1, 2)).view(batch, heads, rows, keys)


def split_mask(mask: Tensor | None, keys: int) -> tuple[Tensor | None, Tensor | None]:
    """(visible, bias) from a boolean or an additive mask of any transformers model."""
    if mask is None:
        return None, None
    mask = mask[..., :keys]
    if mask.dtype == torch.bool:
        return mask, None
    visible = mask > _MASKED
    if visible.dim() == 4 and bool((visible == visible[:, :1]).all()):
        visible = visible[:, :1]
    biased = bool((mask.masked_fill(~visible, 0) != 0).any())
    return visible, (mask if biased else None)


def visible_scores(scores: Tensor) -> Tensor:
    """True where a logit is not masked, also by a large negative number."""
    return scores > _MASKED


@dataclass
class BatchShape:
    """The batch that runs, and how many of its attention operations were shown so far."""

    batch: int = 0
    length: int = 0
    shown: int = 0

    def start(self, batch: int, length: int) -> None:
        """A new pass begins over ``batch`` documents of ``length`` tokens."""
        self.batch, self.length, self.shown = batch, length, 0

    def next(self) -> int:
        """Number of the operation that is shown next."""
        self.shown += 1
        return self.shown - 1


class AttentionObserver(Protocol):
    """Receives the attention operations of a pass."""

    def begin(self, call: AttentionCall) -> None:
        """A new attention operation."""

    def rows(self, call: AttentionCall, start: int, probabilities: Tensor) -> None:
        """Its weights for the query rows from ``start`` on, [B, H, c, reach]."""


@torch.no_grad()
def feed(observer: AttentionObserver, call: AttentionCall) -> None:
    """Show one operation to an observer, block by block, outside the autograd graph."""
    observer.begin(call)
    for start, stop in call.blocks():
        observer.rows(call, start, call.probabilities(start, stop))


@dataclass(frozen=True)
class BiasSeen:
    """The positional bias that a layer adds to its logits, as a function of distance.

    Attributes:
        by_distance: [H, w], the bias at distance 0..w-1 less that at distance 0.
        slopes: [H], ALiBi slopes s with bias = -s * distance; None when it is not linear.
    """

    by_distance: F64
    slopes: F64 | None


def bias_of(call: AttentionCall) -> BiasSeen | None:
    """The bias that an operation adds to its logits; None when none depends on distance."""
    n, middle = call.length, call.length // 2
    if n < 2:
        return None
    rows = call.observed_bias
    if rows is None and call.bias is not None:
        rows = torch.stack([_row(call, call.bias, row) for row in (n - 1, middle)], 1)
    if rows is None:
        return None
    found = rows.detach().double().cpu().numpy()
    return bias_seen(found[:, 0], found[:, 1, : middle + 1])


def _row(call: AttentionCall, bias: Tensor, row: int) -> Tensor:
    """Bias of one query, [H, keys]; NaN where masked."""
    found = bias[0].expand(call.heads, call.length, -1)[:, row].float()
    seen = call.visible(row, row + 1)[0, :, 0]
    hidden = torch.ones(len(seen), found.shape[-1], dtype=torch.bool, device=found.device)
    hidden[:, : seen.shape[-1]] = ~seen
    return found.masked_fill(hidden, torch.nan)


def bias_seen(last: F64, middle: F64) -> BiasSeen | None:
    """A bias that depends on distance only, from two rows of it; None when there is none.

    ``last`` [H, n] is the bias of the last query, ``middle`` [H, n // 2 + 1] that of query n // 2;
    NaN where masked. Some models add bias and content before we see them, so rounding may reach
    2e-5 of the largest entry. transformers rounds Falcon's slopes to bfloat16, hence the 1e-2.
    """
    profile = _by_distance(last)
    check = _by_distance(middle)
    shared = min(profile.shape[1], check.shape[1])
    size = float(np.abs(profile).max())
    noise = 2e-5 * (1 + float(np.nanmax(np.abs(last))))
    if size <= noise:
        return None
    if float(np.abs(profile[:, :shared] - check[:, :shared]).max()) > noise + 1e-2 * size:
        return None
    distance = np.arange(profile.shape[1], dtype=np.float64)
    slopes = -(profile @ distance) / max(float(distance @ distance), 1.0)
    linear = float(np.abs(profile + slopes[:, None] * distance).max()) <= noise + 1e-2 * size
    return BiasSeen(profile, slopes if linear else None)


def _by_distance(row: F64) -> F64:
    """A query's bias by distance, nearest first, up to the first masked key, less the nearest."""
    profile = row[:, ::-1]
    masked = np.isnan(profile).any(0)
    if masked.any():
        profile = profile[:, : int(masked.argmax())]
    return np.asarray(profile - profile[:, :1])
