"""The second moment from the architecture alone: uniform or ALiBi kernels, mixing, MLP gain.

Two recursions over an n x n matrix. FORWARD, the stream's own second moment F[j, k] = E x_j . x_k
from independent embeddings (F = I), because it decides how loud a token is when it is normalised.
BACKWARD, the gradient's (see `second_moment`). Each token enters a branch through a norm layer, so
its gain is D(j) = sqrt(F[0, 0] / F[j, j]).

Kernels of this kind apply to both sides of a matrix by two first-order recursions: O(n^2) per
distinct slope instead of O(n^3). Where even that is too much, positions are binned, and the
kernels' means over bins have a closed form. Derivation: ours.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from lacuna.theory._recursion import geometric
from lacuna.theory.binning import I64, BinnedKernel, edges, expand
from lacuna.theory.curve import F64
from lacuna.theory.second_moment import Moment

EXACT_WORK = 3e7
"""Up to this many filtered numbers (layers x distinct heads x n^2), every token is kept."""
BINNED_WORK = 8e9
"""Above, the number of bins m makes layers x distinct heads x m^3 about this."""
BINS = (48, 256)
"""Fewest and most bins."""

Heads = list[tuple[F64, F64]]
"""Per layer: distinct (slope, diagonal) pairs F64[U, 2], and the share of heads with each."""


def from_architecture(
    length: int,
    layers: int,
    mixing: npt.ArrayLike,
    slopes: npt.ArrayLike = 0.0,
    diagonal: npt.ArrayLike = 0.0,
    mlp_gain: npt.ArrayLike = 0.0,
    mlp_coherence: float = 0.5,
    bins: int | None = None,
    check: Callable[[], object] | None = None,
) -> F64:
    """Second-moment prediction from parameters, without a model.

    Args:
        length: n >= 1. Cost O(n) once positions are binned.
        layers: T >= 1; layer 0 is nearest the embeddings.
        mixing: lambda_t in [0, 1], a number or F64[T]: the attention update's share of the norm,
            |Attn| / (|X| + |Attn|), at token 0, where attention averages nothing away. The value
            path's gain is lambda/(1 - lambda); 1 leaves no residual path.
        slopes: ALiBi slopes >= 0: a number, [heads] or [layers, heads]. 0 is the uniform kernel
            (no position; any rotary model at initialisation).
        diagonal: mean content logit of a token with itself minus that with others; same shapes.
        mlp_gain: squared gain of the MLP branch at token 0 on the same scale, a number or F64[T].
            0 (default) leaves out the MLP and the tokens' scales D. The two cancel in part, so
            that one without the other is worse than neither.
        mlp_coherence: correlation in [0, 1] of the MLP's Jacobians at tokens with orthogonal
            streams (0.5 for units that are on or off at random); 1 at equal streams.
        bins: number of bins; None keeps every token where layers x heads x n^2 allows it, and
            takes 48 to 256 bins otherwise.
        check: called before each pass through a layer; what it raises ends the computation.

    Returns:
        F64[n], sums to 1. Equal heads are computed only once.

    Raises:
        ValueError: a value outside its range or of the wrong shape.

    >>> from_architecture(3, 1, mixing=1.0).round(4).tolist()
    [0.3333, 0.3333, 0.3333]
    """
    if length < 1 or layers < 1:
        raise ValueError(f"length and layers must be at least 1, not {length} and {layers}")
    if not 0 <= mlp_coherence <= 1:
        raise ValueError(f"mlp_coherence must lie between 0 and 1, not {mlp_coherence}")
    lam = _per_layer_number(mixing, layers, "mixing", 1.0)
    mlp = _per_layer_number(mlp_gain, layers, "mlp_gain", 1e12)
    heads = _heads(_per_layer(slopes, layers, "slopes"), _per_layer(diagonal, layers, "diagonal"))
    work = sum(len(share) for _, share in heads)
    if bins is None:
        bins = bins_for(length, work)
    bounds = edges(length, length if bins is None else bins)
    branches = _Branches(heads, bounds)
    widths = np.diff(bounds).astype(np.float64)
    scales = _forward(branches, lam, mlp, mlp_coherence, widths, check) if mlp.any() else None
    moment = _backward(branches, lam, scales, widths, check)
    return expand(np.sqrt(moment.diagonal()), bounds)


def bins_for(length: int, work: int) -> int | None:
    """The number of bins that `from_architecture` chooses; None where it keeps every token.

    Args:
        length: n >= 1.
        work: distinct heads, summed over layers.
    """
    if work * float(length) ** 2 <= EXACT_WORK:
        return None
    return int(np.clip(np.cbrt(BINNED_WORK / work), *BINS))


def _per_layer(values: npt.ArrayLike, layers: int, name: str) -> F64:
    """Brings a number, [heads] or [layers, heads] to F64[layers, heads]."""
    rows = np.atleast_1d(np.asarray(values, dtype=np.float64))
    if rows.ndim == 1:
        rows = np.broadcast_to(rows, (layers, rows.size))
    if rows.ndim != 2 or rows.shape[0] != layers or rows.shape[1] == 0:
        raise ValueError(f"{name} must be a number, [heads] or [layers = {layers}, heads]")
    if not np.isfinite(rows).all():
        raise ValueError(f"{name} must be finite")
    return rows


def _per_layer_number(values: npt.ArrayLike, layers: int, name: str, high: float) -> F64:
    """Brings a number or [layers] to F64[layers], and checks that it lies in [0, high]."""
    row = np.broadcast_to(np.asarray(values, dtype=np.float64), (layers,))
    if not ((row >= 0) & (row <= high)).all():
        raise ValueError(f"{name} must lie between 0 and {high:g} in every layer")
    return row


def _heads(slopes: F64, diagonal: F64) -> Heads:
    """From F64[layers, heads] each, or F64[layers, 1] for all heads."""
    if (slopes < 0).any():
        raise ValueError("slopes must be at least 0")
    slopes, diagonal = np.broadcast_arrays(slopes, diagonal)
    return [_distinct(s, d) for s, d in zip(slopes, diagonal, strict=True)]


def _distinct(slopes: F64, diagonal: F64) -> tuple[F64, F64]:
    """One layer of `Heads` from the heads' slopes and diagonals."""
    pairs, counts = np.unique(np.stack([slopes, diagonal], axis=-1), axis=0, return_counts=True)
    return pairs, counts / counts.sum()


def _backward(
    branches: _Branches,
    lam: F64,
    scales: list[tuple[F64, F64, F64]] | None,
    widths: F64,
    check: Callable[[], object] | None,
) -> Moment:
    """The gradient's second moment at the embeddings; `scales` from `_forward` or None (no MLP)."""
    moment = Moment.read_out(widths)
    for t in range(len(lam) - 1, -1, -1):
        if check is not None:
            check()
        draw = np.ones(widths.size)
        if scales is not None:
            draw, gain, between = scales[t]
            moment = moment.through_mlp(gain, between)
        drawn = branches.of(t).pull(moment)
        keep, take = (1 - lam[t]) ** 2, lam[t] ** 2
        moment = Moment(
            keep * moment.between + take * np.outer(draw, draw) * drawn.between,
            keep * moment.own + take * draw**2 * drawn.own,
            widths,
        ).rescaled()
    return moment


def _forward(
    branches: _Branches,
    lam: F64,
    mlp: F64,
    coherence: float,
    widths: F64,
    check: Callable[[], object] | None,
) -> list[tuple[F64, F64, F64]]:
    """The forward recursion over m bins; `lam` and `mlp` are F64[T], `widths` F64[m].

    Returns:
        Per layer: D of the attention branch F64[m], and the MLP's M of a token with itself F64[m]
        and of two different tokens F64[m, m].
    """
    found = []
    stream = Moment.independent(widths)
    for t, (mix, squared) in enumerate(zip(lam, mlp, strict=True)):
        if check is not None:
            check()
        alike, loudness = _correlation(stream)
        drawn = branches.of(t).push(alike)
        keep, take = (1 - mix) ** 2, mix**2 * loudness[0]
        stream = Moment(
            keep * stream.between + take * drawn.between,
            keep * stream.own + take * drawn.own,
            widths,
        )
        draw = np.sqrt(loudness[0] / loudness)
        alike, loudness = _correlation(stream)
        quiet = np.sqrt(loudness[0] / loudness)
        # Jacobians are equal at equal streams, and correlated by `coherence` at orthogonal ones.
        agree = coherence + (1 - coherence) * alike.between
        found.append((draw, squared * quiet**2, squared * np.outer(quiet, quiet) * agree))
        # The branch reads normalised tokens: it adds to each what it adds to token 0.
        added = squared * loudness[0]
        between = stream.between + added * agree * alike.between
        own = stream.diagonal() + added
        index = np.flatnonzero(widths == 1)
        between[index, index] = own[index]
        stream = Moment(between, np.where(widths == 1, 0.0, own - np.diagonal(between)), widths)
        stream = stream.rescaled()
    return found


def _correlation(stream: Moment) -> tuple[Moment, F64]:
    """The second moment of the streams scaled to norm 1, and their squared norms F64[m]."""
    loudness = stream.diagonal()
    norm = np.sqrt(loudness)
    return (
        Moment(stream.between / np.outer(norm, norm), stream.own / loudness, stream.widths),
        loudness,
    )


@dataclass(frozen=True, eq=False)
class _Exact:
    """One layer's attention on a second moment of single tokens."""

    heads: list[AlibiHead]
    share: F64

    def pull(self, moment: Moment) -> Moment:
        """sum_h share_h A_h^T S A_h."""
        terms = (
            c * k.pull(k.pull(moment.between).T)
            for k, c in zip(self.heads, self.share, strict=True)
        )
        return Moment(sum(terms), moment.own, moment.widths)

    def push(self, moment: Moment) -> Moment:
        """sum_h share_h A_h F A_h^T."""
        terms = (
            c * k.push(k.push(moment.between).T)
            for k, c in zip(self.heads, self.share, strict=True)
        )
        return Moment(sum(terms), moment.own, moment.widths)


@dataclass(frozen=True, eq=False)
class _Binned:
    """One layer's attention on a second moment over bins."""

    kernels: BinnedKernel
    share: F64

    def pull(self, moment: Moment) -> Moment:
        nothing = Moment(moment.between, moment.own, moment.widths)
        return nothing.through_attention(self.kernels, self.share, np.ones_like(nothing.own), 0.0)

    def push(self, moment: Moment) -> Moment:
        # Seen from the rows, a token of bin B receives mass[B, A] w_A / w_B from bin A.
        ratio = moment.widths / moment.widths[:, None]
        turned = BinnedKernel(
            (self.kernels.mass * ratio).transpose(0, 2, 1),
            None
            if self.kernels.square is None
            else (self.kernels.square * ratio).transpose(0, 2, 1),
        )
        return moment.through_attention(turned, self.share, np.ones_like(moment.own), 0.0)


_Branch = _Exact | _Binned


class _Branches:
    """The layers' attention operators, built on demand. Layers with equal heads share one.

    Only the last few are kept: binned kernels for all heads of all layers would take gigabytes.
    """

    _KEPT = 4

    def __init__(self, heads: Heads, bounds: I64) -> None:
        self._heads, self._bounds = heads, bounds
        self._known: OrderedDict[bytes, _Branch] = OrderedDict()

    def of(self, layer: int) -> _Branch:
        """The operator of one layer."""
        pairs, share = self._heads[layer]
        key = pairs.tobytes() + share.tobytes()
        if key not in self._known:
            if len(self._known) == self._KEPT:
                self._known.popitem(last=False)
            self._known[key] = _branch(pairs, share, self._bounds)
        self._known.move_to_end(key)
        return self._known[key]


def _branch(pairs: F64, share: F64, bounds: I64) -> _Branch:
    """The operator of one layer of `Heads`; exact where every token is a bin of its own."""
    length = int(bounds[-1])
    heads = [AlibiHead.of(length, float(s), float(d)) for s, d in pairs]
    if bounds.size == length + 1:
        return _Exact(heads, share)
    mass, square, own = map(np.stack, zip(*(k.binned(bounds) for k in heads), strict=True))
    return _Binned(BinnedKernel(mass, square, own), share)


@dataclass(frozen=True, eq=False)
class AlibiHead:
    """One distinct head: A[i, j] ~ exp(-slope (i - j)) for j < i, exp(diagonal) for j = i.

    It is held as A[i, i] = alpha_i and A[i, j] = w_i q^(i-j-1) with q = exp(-slope). This form
    neither overflows nor underflows, for any slope >= 0 and any finite diagonal.

    Attributes:
        q: exp(-slope).
        alpha: F64[n], the diagonal of A; alpha_0 = 1 (token 0 sees itself alone).
        rest: w, F64[n]; w_0 = 0.
    """

    q: float
    alpha: F64
    rest: F64

    @classmethod
    def of(cls, length: int, slope: float, diagonal: float) -> AlibiHead:
        """From a slope >= 0 and a finite diagonal, for `length` tokens."""
        alpha, rest = np.ones(length), np.zeros(length)
        powers = geometric(np.array(slope), np.arange(1.0, length))
        # A[i, i] = e^d / (e^d + q g_i), g_i = 1 + q + ... + q^(i-1).
        alpha[1:] = expit(diagonal + slope - np.log(powers))
        rest[1:] = expit(np.log(powers) - diagonal - slope) / powers
        return cls(float(np.exp(-slope)), alpha, rest)

    def pull(self, columns: F64) -> F64:
        """A^T X for X of F64[n, ...]."""
        alpha, rest = self._shaped(columns.ndim)
        later = _recursion(self.q, (rest * columns)[::-1])[::-1]
        return np.asarray(alpha * columns + later)

    def push(self, columns: F64) -> F64:
        """A X for X of F64[n, ...]."""
        alpha, rest = self._shaped(columns.ndim)
        earlier = _recursion(self.q, columns)
        return np.asarray(alpha * columns + rest * earlier)

    def _shaped(self, axes: int) -> tuple[F64, F64]:
        shape = (-1,) + (1,) * (axes - 1)
        return self.alpha.reshape(shape), self.rest.reshape(shape)

    def binned(self, bounds: I64) -> tuple[F64, F64, F64]:
        """The (mass, square, diagonal) of a `BinnedKernel`, in O(n + m^2)."""
        mass, diagonal = _binned(self.q, self.rest, self.alpha, bounds)
        square, _ = _binned(self.q**2, self.rest**2, self.alpha**2, bounds)
        return mass, square, diagonal


def _recursion(q: float, columns: F64) -> F64:
    """y_0 = 0, y_i = q y_(i-1) + x_(i-1), along the first axis."""
    from scipy.signal import lfilter

    return np.asarray(lfilter([0.0, 1.0], [1.0, -q], columns, axis=0))


def _decay(slope: float, steps: npt.NDArray[np.int64]) -> F64:
    """exp(-slope steps), cut to 0 below 1e-290, because arithmetic on denormals is slow."""
    reach = 660 / slope if slope > 0 else np.inf
    near = np.minimum(steps, reach)
    decayed = np.exp(-slope * near) if np.isfinite(slope) else np.where(steps == 0, 1.0, 0.0)
    return np.where(steps <= reach, decayed, 0.0)


def _binned(q: float, rest: F64, own: F64, bounds: I64) -> tuple[F64, F64]:
    """Means over bins of A[i, j] = rest_i q^(i-j-1), A[i, i] = own_i: F64[m, m]; of own: F64[m].

    For i in a later bin than j, the power splits into three factors: i within its bin, the gap
    between the bins, and j within its bin. So the sum over two bins is an outer product.
    """
    starts, ends = bounds[:-1], bounds[1:]
    widths = (ends - starts).astype(np.float64)
    inside = np.arange(bounds[-1]) - np.repeat(starts, ends - starts)
    slope = -np.log(q) if q > 0 else np.inf
    series = np.minimum(inside, 1).astype(np.float64)
    reach = np.ones_like(widths)
    if q > 0:
        series, reach = (geometric(np.array(slope), c) for c in (inside.astype(np.float64), widths))
    sent = np.add.reduceat(rest * _decay(slope, inside), starts)
    gap = starts[:, None] - ends[None, :]
    between = sent[:, None] * reach[None, :] * _decay(slope, np.maximum(gap, 0))
    diagonal = np.add.reduceat(own, starts) / widths
    within = np.add.reduceat(rest * series, starts)
    mass = np.where(gap >= 0, between, 0.0) / widths
    index = np.arange(widths.size)
    mass[index, index] = within / widths + diagonal
    return mass, diagonal
