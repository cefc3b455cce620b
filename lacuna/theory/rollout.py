"""The residual-aware rollout, the four forces behind it, and what depth does to it.

R_t = (1 - lambda_t) I + lambda_t A_t ;  P = R_{T-1} ... R_0 ;  influence p(j) = P[n-1, j]

P is never built. The row e_{n-1} is carried from the top layer down, at the cost of one
`Kernel.apply` per layer. Layer 0 is nearest the embeddings.

Source: [S] arXiv 2602.16837, sections 3 to 5; the attention-only collapse [W] arXiv 2502.01951.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from lacuna.theory.curve import F64, Curve
from lacuna.theory.kernels import Kernel
from lacuna.theory.shape import END_SHARE

ForceName = Literal["causal_mask", "residual", "positional_encoding", "content"]
COLLAPSED = 0.9
"""P[n-1, 0] from which a rollout of given depth counts as collapsed."""
NO_COLLAPSE = "no collapse as layers are added"
COLLAPSES = "collapses onto the first token as layers are added"
NOT_COLLAPSED_HERE = "not collapsed at this depth"
COLLAPSED_HERE = "collapsed onto the first token at this depth"


def rollout(
    kernels: Sequence[Kernel], mixing: npt.ArrayLike, check: Callable[[], object] | None = None
) -> F64:
    """Influence of each token on the last one: the last row of P.

    >>> from lacuna.theory.kernels import uniform
    >>> rollout([uniform(4)] * 2, [0.5, 0.5]).tolist()  # 49/192, 37/192, 31/192, 25/64
    [0.2552083333333333, 0.19270833333333331, 0.16145833333333331, 0.390625]

    Args:
        kernels: T kernels of one length n, layer 0 first.
        mixing: [T], lambda_t; or [T, n], lambda_t(i) per token i; in [0, 1].
        check: called before each layer; what it raises ends the computation (a deadline, say).

    Returns:
        [n], >= 0, sum 1 to rounding.

    Raises:
        ValueError: lengths disagree, or a coefficient is outside [0, 1].
    """
    coefficients = _mixing(kernels, mixing)
    row = np.zeros(kernels[0].length)
    row[-1] = 1.0
    for kernel, coefficient in zip(reversed(kernels), reversed(coefficients), strict=True):
        if check is not None:
            check()
        if coefficient.size == 1 and coefficient.item() == 1.0:
            row = kernel.apply(row)
        elif coefficient.any():
            row = row * (1.0 - coefficient) + kernel.apply(row * coefficient)
    return row


def constant(layers: int, value: float) -> F64:
    """lambda_t = value, [layers]. Its sum over depth diverges unless value is 0."""
    return np.full(layers, value)


def power_law(layers: int, initial: float, exponent: float) -> F64:
    """lambda_t = initial / (t+1)^exponent, [layers]. Its sum converges if and only if exponent > 1.

    >>> power_law(3, 0.5, 1.0).tolist()
    [0.5, 0.25, 0.16666666666666666]
    """
    return np.asarray(initial * np.arange(1.0, layers + 1) ** -exponent)


@dataclass(frozen=True)
class Force:
    """What one force changes when it is switched on after the ones before it."""

    name: ForceName
    influence: F64
    """[n], with this force and the ones before it."""
    mean_position: float
    """Mean of position/(n-1); 0 is the first token, 1 the last."""
    shift: float
    """Change of `mean_position`; for the first force, from an even spread (0.5)."""
    primacy_mass: float
    """Mass on the first END_SHARE of the prompt; `recency_mass` on the last."""
    recency_mass: float
    primacy_shift: float
    recency_shift: float


def forces(curves: Sequence[tuple[ForceName, F64]]) -> list[Force]:
    """The shift that each force causes, from the curves after each one is switched on.

    [S] switches them on in this order: causal mask (uniform kernels, lambda = 1), residual (the
    model's own lambda), positional encoding (its kernels), content. Each shift is relative to the
    curve before, the first one to an even spread over positions.

    Args:
        curves: (name, influence [n]) in that order.
    """
    found: list[Force] = []
    for name, influence in curves:
        curve = Curve(influence)
        n = len(curve)
        mean = curve.mean_position()
        primacy = curve.mass(0.0, END_SHARE * n)
        recency = curve.mass((1 - END_SHARE) * n, float(n))
        before = (0.5 if n > 1 else 0.0, END_SHARE, END_SHARE)
        if found:
            last = found[-1]
            before = (last.mean_position, last.primacy_mass, last.recency_mass)
        found.append(
            Force(
                name=name,
                influence=curve.influence,
                mean_position=mean,
                shift=mean - before[0],
                primacy_mass=primacy,
                recency_mass=recency,
                primacy_shift=primacy - before[1],
                recency_shift=recency - before[2],
            )
        )
    return found


@dataclass(frozen=True)
class Collapse:
    """The depth limit; fields as in `lacuna.contract.profiles.Collapse`."""

    verdict: str
    collapses: bool
    lambda_sum: float
    off_diagonal_sum: float
    last_to_last: float
    last_to_first: float
    row_entropy: float
    evidence: str


def collapse(
    kernels: Sequence[Kernel],
    mixing: npt.ArrayLike,
    influence: F64,
    *,
    causal: bool = True,
    diverges: bool | None = None,
    check: Callable[[], object] | None = None,
) -> Collapse:
    """Does influence collapse onto the first token as layers are added?

    By [S]'s theorem, if the sum of lambda_t delta_t stays finite, the diagonal of P stays positive
    and there is no collapse. If the sum diverges, every row of P tends to the first token. delta_t
    is the largest off-diagonal mass of layer t.

    A formula for lambda_t says whether the sum diverges (`diverges`). A list of numbers or of
    measured kernels says nothing about further layers. It is judged by the row it produces:
    collapsed if P[n-1, 0] is at least 0.9.

    Args:
        kernels: T kernels.
        mixing: [T] or [T, n].
        influence: [n], `rollout(kernels, mixing)`.
        causal: whether the mask is causal; otherwise the theorem does not apply.
        diverges: whether the sum diverges with depth; None if lambda_t has no formula.
        check: called before each distinct kernel; what it raises ends the computation.
    """
    coefficients = _mixing(kernels, mixing)
    lambdas = np.array([float(c.mean()) for c in coefficients])
    peaks = np.array([float(c.max()) for c in coefficients])
    off = float(peaks @ _off_diagonal_masses(kernels, check))
    first, last = (float(np.clip(influence[i], 0.0, 1.0)) for i in (0, -1))
    positive = influence[influence > 0]
    entropy = max(0.0, float(-(positive * np.log(positive)).sum()))
    total = float(lambdas.sum())
    numbers = (
        f"over {_layers(len(kernels))} sum lambda = {total:.4g}, sum lambda*delta = {off:.4g}, "
        f"P[n-1,0] = {first:.4g}, P[n-1,n-1] = {last:.4g}"
    )
    collapses, reason = _verdict(len(kernels), influence.size, causal, off, first, diverges)
    return Collapse(
        verdict=_WORDS[diverges is None, collapses],
        collapses=collapses,
        lambda_sum=total,
        off_diagonal_sum=off,
        last_to_last=last,
        last_to_first=first,
        row_entropy=entropy,
        evidence=f"{reason}; {numbers}",
    )


def _off_diagonal_masses(kernels: Sequence[Kernel], check: Callable[[], object] | None) -> F64:
    """delta_t of each layer, [T]; layers that share a kernel share the work."""
    deltas: dict[int, float] = {}
    for kernel in kernels:
        if id(kernel) in deltas:
            continue
        if check is not None:
            check()
        deltas[id(kernel)] = kernel.off_diagonal_mass()
    return np.array([deltas[id(kernel)] for kernel in kernels])


_WORDS = {
    (False, True): COLLAPSES,
    (False, False): NO_COLLAPSE,
    (True, True): COLLAPSED_HERE,
    (True, False): NOT_COLLAPSED_HERE,
}
"""Keys: whether further layers are unknown, whether it collapses."""


def _verdict(
    layers: int, length: int, causal: bool, off: float, first: float, diverges: bool | None
) -> tuple[bool, str]:
    """Whether it collapses, and why. The reason starts with what holds at this depth."""
    if length == 1:
        return False, "a single token has nothing to collapse onto"
    if not causal:
        return False, "the mask is not causal, so no token comes before all others"
    if off == 0:
        return False, "no layer moves weight off the diagonal"
    reached = first >= COLLAPSED
    here = (
        f"at {_layers(layers)} this rollout gives the first token "
        f"{first:.4g} of the influence, {'at least' if reached else 'below'} the "
        f"{COLLAPSED:g} that counts as collapsed"
    )
    if diverges is None:
        return reached, f"{here}; what is given layer by layer says nothing about further ones"
    if diverges:
        tail = "its sum diverges, and influence goes to the first token"
    else:
        tail = "its sum converges, and later tokens keep a share"
    return diverges, f"{here}; as layers are added without end to this schedule, {tail}"


def _layers(count: int) -> str:
    return "1 layer" if count == 1 else f"{count} layers"


def monotone_violation(attention: npt.ArrayLike) -> float:
    """How far a kernel is from being stochastically monotone, as [S]'s collapse theorem assumes.

    Monotone means that later tokens look at later tokens on the whole: for every j, the mass that
    row i puts on tokens 0..j does not increase with i.

    >>> monotone_violation([[1.0, 0.0], [0.5, 0.5]])
    0.0

    Args:
        attention: [n, n] or [H, n, n], row-stochastic.

    Returns:
        max over heads, i, j of (mass of row i+1 on 0..j) - (mass of row i on 0..j), in [0, 1]; 0
        when monotone. Compare with 1e-9, not 0: sums of n numbers have rounding errors.
    """
    matrices = np.asarray(attention, dtype=np.float64)
    if matrices.shape[-1] < 2:
        return 0.0
    cumulative = np.cumsum(matrices, axis=-1)
    breach = (cumulative[..., 1:, :] - cumulative[..., :-1, :]).max()
    return float(np.clip(breach, 0.0, 1.0))


def _mixing(kernels: Sequence[Kernel], mixing: npt.ArrayLike) -> list[F64]:
    """The mixing coefficients as one array per layer, of size 1 or n, checked."""
    coefficients = np.asarray(mixing, dtype=np.float64)
    if not kernels or coefficients.ndim not in (1, 2) or len(coefficients) != len(kernels):
        raise ValueError("mixing must have one entry per kernel, and there must be a kernel")
    n = kernels[0].length
    if any(kernel.length != n for kernel in kernels):
        raise ValueError("all kernels must have the same length")
    if coefficients.ndim == 2 and coefficients.shape[1] != n:
        raise ValueError(f"mixing per token must have {n} entries per layer")
    if not ((coefficients >= 0) & (coefficients <= 1)).all():
        raise ValueError("mixing coefficients must lie in [0, 1]")
    return [np.atleast_1d(row) for row in coefficients]
