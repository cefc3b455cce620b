"""The positional bias of an attention operation, told from noise by asking two queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workers.instrument.attention import AttentionCall

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class BiasSeen:
    """The positional bias that a layer adds to its logits, as a function of distance.

    ``by_distance`` [H, w] is the bias at distance 0..w-1 less that at distance 0. ``slopes`` [H]
    are the ALiBi slopes s with bias = -s * distance, or None when it is not linear.
    """

    by_distance: F64
    slopes: F64 | None


def bias_of(call: AttentionCall) -> BiasSeen | None:
    """The bias that an operation adds to its logits; None without one that depends on distance."""
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
    """A bias that depends on distance alone, from two rows of it; None when there is none.

    ``last`` [H, n] is the bias of the last query, ``middle`` [H, n // 2 + 1] that of query n // 2;
    NaN where masked. Rounding in models that add bias and content before we see them allows for
    1e-5 of the largest entry; transformers rounds Falcon's slopes to bfloat16, hence the 1e-2.
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
