"""Attention kernels: how token i spreads its weight over the tokens it can see.

A kernel is one layer's attention, all heads together: row-stochastic matrices A_h of shape [n, n]
that are never built. `apply` multiplies a row vector by their head-weighted mean.

| function | A[i, j] over the visible j | cost of `apply` |
|---|---|---|
| `uniform` | equal weights | O(n) |
| `alibi` | softmax of -s (i-j) + d [i=j] | O(n) per head, also with a window |
| `distance` | softmax of b(i-j) (+ sink on column 0) | O(n L) for a profile of L numbers |
| `measured` | data | O(n^2) |

Masks: `causal` (j <= i), `full` (all j), `prefix` (j <= i or j < prefix). Under the last two,
distances are absolute. A window W leaves |i-j| < W.

Sources: [S] arXiv 2602.16837, sections 3 and 4; ALiBi: [A] Press et al. 2022, arXiv 2108.12409.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from lacuna.theory._alibi import AlibiKernel, shared_heads
from lacuna.theory._distance import DistanceKernel
from lacuna.theory._recursion import F64, windowed_suffix_sums

Mask = Literal["causal", "full", "prefix"]
Numbers = npt.ArrayLike

MAX_LOGIT = 1e6
"""Largest slope, bias or content logit (after division by the temperature) in absolute value."""


class Kernel(Protocol):
    """One layer's attention."""

    @property
    def length(self) -> int:
        """n, the number of tokens."""

    @property
    def heads(self) -> int:
        """Number of heads."""

    def apply(self, row: F64) -> F64:
        """sum_h c_h (row @ A_h) for head weights c_h that sum to 1.

        Args:
            row: [n], >= 0.

        Returns:
            [n], with the same sum as `row`.
        """

    def dense(self) -> F64:
        """[heads, n, n]: the matrices themselves, computed from the definition."""

    def off_diagonal_mass(self) -> float:
        """max_i (1 - A[i, i]) of the head-weighted mean: [S]'s delta, in [0, 1]."""


def uniform(
    n: int, *, window: int | None = None, mask: Mask = "causal", prefix: int | None = None
) -> Kernel:
    """Equal weight on every visible token: no position, no content.

    It is also the mean kernel, at random initialisation, of every model whose logits have no
    positional bias, rotary models included, since E[q.k] = 0.

    >>> uniform(3).dense()[0].round(3).tolist()
    [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.333, 0.333, 0.333]]

    Args:
        n: number of tokens, >= 1.
        window: tokens seen on each side, the token itself included; None: all.
        mask: as listed in the module.
        prefix: length of the bidirectional prefix; only with mask `prefix`.

    Raises:
        ValueError: an argument is out of range.
    """
    return UniformKernel(_length(n), _window(n, window), _prefix(n, mask, prefix))


def alibi(
    n: int,
    slopes: Numbers,
    diagonal: Numbers = 0.0,
    *,
    window: int | None = None,
    temperature: float = 1.0,
    head_weights: Numbers | None = None,
    mask: Mask = "causal",
    prefix: int | None = None,
) -> Kernel:
    """Softmax of (-s |i-j| + d [i=j]) / temperature: ALiBi with [S]'s content term.

    A content logit that is constant off the diagonal cancels in the softmax. What remains is d,
    the mean content logit on the diagonal minus that off the diagonal. Slope 0 is the uniform
    kernel with content.

    >>> alibi(3, [np.log(2)]).dense()[0].round(3).tolist()
    [[1.0, 0.0, 0.0], [0.333, 0.667, 0.0], [0.143, 0.286, 0.571]]

    Args:
        n: number of tokens, >= 1.
        slopes: [H], >= 0; positive slopes favour near tokens.
        diagonal: a number or [H].
        window: tokens seen on each side, the token itself included; None: all.
        temperature: > 0; divides all logits.
        head_weights: [H], >= 0, normalised to sum 1; None: equal.
        mask: as listed in the module.
        prefix: length of the bidirectional prefix; only with mask `prefix`.

    Raises:
        ValueError: an argument is out of range, or a logit beyond `MAX_LOGIT`.
    """
    _length(n)
    scaled = _logits("slopes", slopes, temperature)
    if scaled.ndim != 1 or scaled.size == 0 or scaled.min() < 0:
        raise ValueError("slopes must be a list of at least one number >= 0")
    heads = scaled.size
    extra = _logits("diagonal", diagonal, temperature)
    if extra.ndim > 1 or extra.size not in (1, heads):
        raise ValueError(f"diagonal must be one number or one per head ({heads})")
    shared = shared_heads(
        n, scaled, _weights(heads, head_weights), _window(n, window), _prefix(n, mask, prefix)
    )
    return AlibiKernel(shared, np.broadcast_to(extra, (heads,)))


def distance(
    n: int,
    bias: Numbers,
    sink_bias: float | None = None,
    *,
    diagonal: Numbers = 0.0,
    window: int | None = None,
    temperature: float = 1.0,
    head_weights: Numbers | None = None,
) -> Kernel:
    """Softmax of b(i-j) + sink [j=0] + d [i=j] over j <= i: logits that depend on distance.

    Source: [S] (Toeplitz logits).

    >>> distance(3, [0.0, np.log(2)]).dense()[0].round(3).tolist()
    [[1.0, 0.0, 0.0], [0.667, 0.333, 0.0], [0.4, 0.4, 0.2]]

    Args:
        n: number of tokens, >= 1.
        bias: [L] or [H, L], the logits at distances 0..L-1; the last one holds beyond.
        sink_bias: added to every logit of token 0 (an attention sink); None: none.
        diagonal: a number or [H], added at distance 0.
        window: tokens seen, including the token itself; None: all.
        temperature: > 0; divides all logits.
        head_weights: [H], >= 0, normalised to sum 1; None: equal.

    Raises:
        ValueError: an argument is out of range, or a logit beyond `MAX_LOGIT`.
    """
    _length(n)
    profile = np.atleast_2d(_logits("bias", bias, temperature))[:, :n].copy()
    if profile.ndim != 2 or profile.size == 0:
        raise ValueError("bias must be a list of numbers, or one list per head")
    extra = _logits("diagonal", diagonal, temperature)
    heads = max(profile.shape[0], extra.size)
    if profile.shape[0] not in (1, heads) or extra.ndim > 1 or extra.size not in (1, heads):
        raise ValueError("bias and diagonal must agree on the number of heads")
    profile = np.repeat(profile, heads // profile.shape[0], axis=0)
    if profile.shape[1] == 1 and n > 1:  # the logit holds at all distances, the diagonal at 0 alone
        profile = np.repeat(profile, 2, axis=1)
    profile[:, 0] += extra
    sink = float(_logits("sink_bias", 0.0 if sink_bias is None else sink_bias, temperature))
    return DistanceKernel(n, profile, sink, _weights(heads, head_weights), _window(n, window))


def measured(attention: Numbers, head_weights: Numbers | None = None) -> Kernel:
    """A measured kernel: the mean attention matrix over documents.

    Args:
        attention: [n, n] or [H, n, n], >= 0, rows summing to 1 within 1%; they are normalised to
            sum to 1 exactly, since float32 sums do not.
        head_weights: [H], >= 0, normalised to sum 1; None: equal.

    Raises:
        ValueError: wrong shape, negative or non-finite entries, or rows that do not sum to 1.
    """
    matrices = np.array(attention, dtype=np.float64)
    if matrices.ndim == 2:
        matrices = matrices[None]
    if matrices.ndim != 3 or matrices.shape[1] != matrices.shape[2] or matrices.size == 0:
        raise ValueError("attention must have shape [n, n] or [heads, n, n]")
    sums = matrices.sum(axis=2, keepdims=True)
    if not np.isfinite(sums).all() or matrices.min() < 0 or np.abs(sums - 1).max() > 0.01:
        raise ValueError("attention rows must be non-negative and sum to 1")
    matrices /= sums
    return MeasuredKernel(matrices, _weights(matrices.shape[0], head_weights))


def standard_slopes(heads: int) -> F64:
    """The published ALiBi slopes, as BLOOM, MPT and Falcon use them.

    2^(-8 (h+1)/H) when H is a power of two; otherwise those of the power of two below H, followed
    by every other slope of the next power of two (Press et al. 2022, released code).

    >>> standard_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]

    Raises:
        ValueError: `heads` < 1.
    """
    if heads < 1:
        raise ValueError("heads must be at least 1")
    below = 1 << (heads.bit_length() - 1)
    if below == heads:
        return geometric_slopes(heads)
    between = geometric_slopes(2 * below)[0::2][: heads - below]
    return np.concatenate([geometric_slopes(below), between])


def geometric_slopes(heads: int) -> F64:
    """2^(-8 (h+1)/H) for any H: what [S] uses for BLOOM-176B's 112 heads.

    >>> geometric_slopes(2).tolist()
    [0.0625, 0.00390625]
    """
    if heads < 1:
        raise ValueError("heads must be at least 1")
    return np.asarray(2.0 ** (-8.0 * np.arange(1, heads + 1) / heads))


def _length(n: int) -> int:
    if n < 1:
        raise ValueError("n must be at least 1")
    return n


def _window(n: int, window: int | None) -> int:
    if window is not None and window < 1:
        raise ValueError("window must be at least 1")
    return n if window is None else min(window, n)


def _prefix(n: int, mask: Mask, prefix: int | None) -> int:
    if (mask == "prefix") != (prefix is not None):
        raise ValueError("prefix must be given with mask `prefix`, and only with it")
    if mask == "full":
        return n
    if prefix is not None and not 0 <= prefix <= n:
        raise ValueError(f"prefix must lie between 0 and n ({n})")
    return prefix or 0


def _logits(name: str, values: Numbers, temperature: float) -> F64:
    if not 0 < temperature < np.inf:
        raise ValueError("temperature must be positive and finite")
    scaled = np.asarray(values, dtype=np.float64)
    if temperature != 1:
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = np.asarray(scaled / temperature)
    if scaled.size and not np.abs(scaled).max() <= MAX_LOGIT:  # also refuses NaN
        raise ValueError(f"{name} / temperature must stay within +-{MAX_LOGIT:g}")
    return scaled


def _weights(heads: int, weights: Numbers | None) -> F64:
    if weights is None:
        return np.full(heads, 1.0 / heads)
    given = np.asarray(weights, dtype=np.float64)
    if given.shape != (heads,) or not np.isfinite(given).all() or given.min() < 0:
        raise ValueError(f"head_weights must be {heads} numbers >= 0")
    largest = given.max()
    if largest == 0:
        raise ValueError("head_weights must not all be 0")
    given = given / largest
    return np.asarray(given / given.sum())


_NO_DECAY = np.zeros(1)


class UniformKernel:
    """Equal weight on every visible token. Build it with `lacuna.theory.kernels.uniform`."""

    heads = 1

    def __init__(self, length: int, window: int, prefix: int) -> None:
        self.length, self.window, self.prefix = length, window, prefix
        position = np.arange(length, dtype=np.float64)
        behind = np.minimum(position, window - 1.0)
        ahead = np.clip(prefix - 1.0 - position, 0.0, window - 1.0)
        self._share = 1.0 / (1.0 + behind + ahead)

    def apply(self, row: F64) -> F64:
        """row @ A. `row`: [n], >= 0; returns [n]."""
        w = row * self._share
        if self.window >= self.length:
            out = np.cumsum(w[::-1])[::-1]
        else:
            out = w + windowed_suffix_sums(w[None], _NO_DECAY, self.window)[0]
        if self.prefix > 1:
            out = out.copy()
            mirrored = np.ascontiguousarray(w[None, self.prefix - 1 :: -1])
            out[: self.prefix] += windowed_suffix_sums(mirrored, _NO_DECAY, self.window)[0, ::-1]
        return np.asarray(out)

    def dense(self) -> F64:
        """[1, n, n], computed from the definition."""
        position = np.arange(self.length)
        visible = (position[None, :] <= position[:, None]) | (position[None, :] < self.prefix)
        visible &= np.abs(position[:, None] - position[None, :]) < self.window
        return np.asarray((visible / visible.sum(axis=1, keepdims=True))[None])

    def off_diagonal_mass(self) -> float:
        """max_i (1 - A[i, i])."""
        return float(1.0 - self._share.min())


class MeasuredKernel:
    """Matrices held in memory. Build it with `lacuna.theory.kernels.measured`."""

    def __init__(self, matrices: F64, weights: F64) -> None:
        self.heads, self.length = matrices.shape[0], matrices.shape[1]
        self._matrices = matrices
        self._mean = np.tensordot(weights, matrices, axes=1)

    def apply(self, row: F64) -> F64:
        """row @ (head-weighted mean). `row`: [n], >= 0; returns [n]."""
        return np.asarray(row @ self._mean)

    def dense(self) -> F64:
        """[H, n, n]: the given matrices, rows normalised."""
        return self._matrices

    def off_diagonal_mass(self) -> float:
        """max_i (1 - A[i, i]) of the mean."""
        return float(np.clip(1.0 - self._mean.diagonal().min(), 0.0, 1.0))
