"""The Cesàro rollout: uniform causal kernels and one mixing coefficient, in closed form.

N = (1-a) I + a M with M[i, j] = 1/(i+1) for j <= i (the Cesàro operator), H layers.

Finite, n tokens:    last row of N^H, by H reverse cumulative sums.
Continuum, p = j/n:  density rho(p) = sum_{k=1..H} C(H, k) a^k (1-a)^(H-k) x^(k-1)/(k-1)!
                     = a (1-a)^(H-1) L^(1)_{H-1}(-a x/(1-a)),  x = ln 1/p  (generalised Laguerre)
                     and an atom of mass (1-a)^H at the last token.
Attention alone:     a = 1: rho(p) = x^(H-1)/(H-1)!, below tau for p > exp(-(tau (H-1)!)^(1/(H-1))).

With a < 1 the density falls monotonically from the first token towards the isolated atom at the
last. Its minimum stands next to the end, never in the middle, and equals H a (1-a)^(H-1).

Source: [B] arXiv 2603.10123 (Cesàro operator, atom, dead zone). The tests use the exact link
between the finite and the continuous form,
M^k[n-1, j] = C(n-1, j) int_0^1 x^j (1-x)^(n-1-j) (ln 1/x)^(k-1)/(k-1)! dx.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import gammaincc, gammaln

from lacuna.theory.curve import F64

_BLOCK = 1 << 20
"""Numbers in memory at once while a density is evaluated."""
_DEEPEST = 1e6
"""Boundaries are searched up to this ln(1/p); p is 0 in float64 long before."""


def finite(n: int, layers: int, a: float, check: Callable[[], object] | None = None) -> F64:
    """Last row of N^layers for n tokens, by reverse cumulative sums.

    >>> finite(4, 2, 1.0).round(6).tolist()  # 25/48, 13/48, 7/48, 1/16
    [0.520833, 0.270833, 0.145833, 0.0625]

    Args:
        n: >= 1.
        layers: H >= 1.
        a: mixing coefficient in [0, 1].
        check: called before each layer; what it raises ends the computation.

    Returns:
        [n], sum 1.
    """
    _check(layers, a)
    if n < 1:
        raise ValueError("n must be at least 1")
    row = np.zeros(n)
    row[-1] = 1.0
    share = a / np.arange(1.0, n + 1)
    work = np.empty(n)
    for _ in range(layers):
        if check is not None:
            check()
        np.multiply(row, share, out=work)
        np.cumsum(work[::-1], out=work[::-1])
        row *= 1.0 - a
        row += work
    return row


def density(p: npt.ArrayLike, layers: int, a: float) -> tuple[F64, float]:
    """Continuum density at p and the atom at the last token.

    The terms are summed as logarithms, so that factorials and (1-a)^H stay within the range of
    float64. Every term is non-negative, so nothing cancels.

    >>> density([np.exp(-1.0)], 2, 1.0)
    (array([1.]), 0.0)

    Args:
        p: relative positions in (0, 1]; any shape.
        layers: H >= 1.
        a: in [0, 1].

    Returns:
        rho(p), same shape, >= 0 (integral over (0, 1] is 1 - atom); and the atom (1-a)^H.
    """
    _check(layers, a)
    positions = np.asarray(p, dtype=np.float64)
    if not ((positions > 0) & (positions <= 1)).all():
        raise ValueError("p must lie in (0, 1]")
    x = -np.log(positions)
    return np.exp(_log_density(x.ravel(), layers, a)).reshape(x.shape), atom(layers, a)


def atom(layers: int, a: float) -> float:
    """Mass (1-a)^H that the residual stream leaves on the last token.

    >>> atom(2, 0.5)
    0.25
    """
    _check(layers, a)
    return float((1.0 - a) ** layers)


def dead_zone_boundary(layers: int, threshold: float, a: float = 1.0) -> float:
    """p* above which the density stays below `threshold`: the dead zone is (p*, 1).

    For a = 1 it has a closed form, exp(-(threshold (H-1)!)^(1/(H-1))). Otherwise it is a root of
    density - threshold; the density is monotone.

    >>> round(dead_zone_boundary(3, 0.5), 6)  # exp(-1)
    0.367879

    Args:
        layers: H >= 1.
        threshold: > 0.
        a: in [0, 1].

    Returns:
        p* in [0, 1]; 1 if the density is nowhere below the threshold, 0 if it is everywhere.
    """
    _check(layers, a)
    if not 0 < threshold < np.inf:
        raise ValueError("threshold must be positive and finite")
    if a == 0:
        return 0.0
    if layers == 1:
        return 0.0 if a < threshold else 1.0
    if a == 1:
        x = np.exp((np.log(threshold) + gammaln(layers)) / (layers - 1))
        return float(np.exp(-x))

    def excess(x: float) -> float:
        return float(_log_density(np.array([x]), layers, a)[0] - np.log(threshold))

    if excess(0.0) >= 0:
        return 1.0
    high = 1.0
    while excess(high) < 0 and high < _DEEPEST:
        high *= 2.0
    if excess(high) < 0:
        return 0.0
    from scipy.optimize import brentq

    return float(np.exp(-brentq(excess, 0.0, high, xtol=1e-14, rtol=1e-14)))


@dataclass(frozen=True)
class Decomposition:
    """[B]'s three parts of the curve; the masses sum to 1."""

    primacy_tail_mass: float
    """Mass before the dead zone: the logarithmic tail of the first tokens."""
    dead_zone_mass: float
    """Mass between p* and the last token."""
    recency_delta: float
    """The atom (1-a)^H on the last token."""
    dead_zone_start: float
    """p*, as a fraction of the prompt; 1 when there is no dead zone."""
    dead_zone_width: float
    """1 - p*."""
    floor: float
    """Least density, reached at the end of the zone: H a (1-a)^(H-1)."""


def decompose(layers: int, a: float, threshold: float) -> Decomposition:
    """Primacy tail, dead zone and recency delta of the continuum.

    The mass on (0, p) is sum_k C(H, k) a^k (1-a)^(H-k) Q(k, ln 1/p), Q the regularised upper
    incomplete gamma function.

    >>> parts = decompose(2, 0.5, 0.75)
    >>> parts.recency_delta, parts.floor
    (0.25, 0.5)
    """
    start = dead_zone_boundary(layers, threshold, a)
    delta = atom(layers, a)
    tail = 0.0
    if start > 0 and a > 0:
        k = np.arange(1, layers + 1)
        weights = np.exp(_log_binomial(layers, a))
        tail = float(weights @ gammaincc(k, -np.log(start)))
    tail = min(tail, 1.0 - delta)
    return Decomposition(
        primacy_tail_mass=tail,
        dead_zone_mass=max(0.0, 1.0 - delta - tail),
        recency_delta=delta,
        dead_zone_start=start,
        dead_zone_width=1.0 - start,
        floor=float(density(1.0, layers, a)[0]),
    )


def width_by_depth(depths: npt.ArrayLike, a: float, threshold: float) -> F64:
    """Width 1 - p* of the dead zone, as a fraction of the prompt, for each depth.

    Args:
        depths: layer counts, each >= 1.
        a: in [0, 1].
        threshold: > 0.
    """
    layers = [int(depth) for depth in np.atleast_1d(np.asarray(depths))]
    return np.array([1.0 - dead_zone_boundary(depth, threshold, a) for depth in layers])


def _check(layers: int, a: float) -> None:
    if layers < 1:
        raise ValueError("layers must be at least 1")
    if not 0 <= a <= 1:
        raise ValueError("a must lie in [0, 1]")


def _log_binomial(layers: int, a: float) -> F64:
    """ln C(H, k) a^k (1-a)^(H-k) for k = 1..H; a > 0."""
    k = np.arange(1.0, layers + 1)
    if a == 1:
        return np.where(k == layers, 0.0, -np.inf)
    choose = gammaln(layers + 1) - gammaln(k + 1) - gammaln(layers - k + 1)
    return np.asarray(choose + k * np.log(a) + (layers - k) * np.log1p(-a))


def _log_density(x: F64, layers: int, a: float) -> F64:
    """ln rho at x = ln(1/p) >= 0; -inf where the density is 0."""
    if a == 0:
        return np.full(x.shape, -np.inf)
    k = np.arange(1.0, layers + 1)
    constant = _log_binomial(layers, a) - gammaln(k)
    used = np.isfinite(constant)
    k, constant = k[used], constant[used]
    out = np.empty(x.shape)
    step = max(1, _BLOCK // k.size)
    for first in range(0, x.size, step):
        part = x[first : first + step, None]
        with np.errstate(divide="ignore"):
            logs = np.log(part)
        # x^0 = 1 also at x = 0, where ln x is -inf
        powers = np.multiply(k - 1, logs, out=np.zeros((part.shape[0], k.size)), where=k > 1)
        terms = constant + powers
        largest = terms.max(axis=1)
        scale = np.where(np.isfinite(largest), largest, 0.0)
        with np.errstate(divide="ignore"):
            sums = np.log(np.exp(terms - scale[:, None]).sum(axis=1))
        out[first : first + step] = sums + scale
    return out
