"""The second-moment rollout: influence as the NORM of a gradient.

A residual rollout adds influences. But norms of sums of independent vectors add in squares. Let r_j
be the backward vector (the gradient of the read-out) at token j and S[j, k] = E r_j . r_k. At the
top S = e e^T, for the last token. Then, for layers T-1..0:

    MLP branch        S <- S o (1 + M)     1 + M[j, k] = E b_j . b_k / |v|^2,  b_j = v + J(j)^T v
    attention branch  S <- S + D (sum_h g_h^2 A_h^T S A_h) D
    prediction        p(j) ~ sqrt(S[j, j])

- v is one random cotangent for all tokens, and J(j) the branch's Jacobian at token j. So M includes
  how far the branch is aligned with the stream (the trace of J); with isotropic weights it is not.
- A_h is head h's kernel. Averaging kernels over heads first would lose most of the gain.
- D is the diagonal of the branch's gain at each token, from the Jacobian of the norm layer:
  |X(0)|/|X(j)| at initialisation.
- g_h^2 is the squared gain of head h's value path.

The paths need not be independent. With a Gram matrix G over (identity, head 1, ..., head H),
G[a, b] = tr(V_a V_b^T)/d, the attention branch is

    S <- S + sum_h G[0, h] (D A_h^T S + S A_h D) + D (sum_{h, h'} G[h, h'] A_h^T S A_h') D.

S is evaluated exactly, in float64, and rescaled only as a whole. Monte Carlo over random signs
cannot replace it: on trained models its estimate has a kurtosis of hundreds to tens of thousands.

Positions may be bins (`binning`). Then S is C between different tokens of bins and C + e for a
token with itself, and a second matrix, of squares, carries e through a kernel. Derivation: ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lacuna.theory.binning import I64, BinnedKernel, expand
from lacuna.theory.curve import F64


@dataclass(frozen=True, eq=False)
class Moment:
    """A second moment S over m bins.

    Attributes:
        between: C, F64[m, m]: S of two different tokens. A bin of one token has no second token
            and keeps its S[j, j] here.
        own: e, F64[m]: S[j, j] - C of a token in its bin; 0 in bins of one token.
        widths: F64[m], tokens per bin.
    """

    between: F64
    own: F64
    widths: F64

    @classmethod
    def read_out(cls, widths: F64) -> Moment:
        """S = e e^T: the output is read at the last token, which is a bin of its own."""
        between = np.zeros((widths.size, widths.size))
        between[-1, -1] = 1.0
        return cls(between, np.zeros(widths.size), widths)

    @classmethod
    def independent(cls, widths: F64) -> Moment:
        """S = I: tokens independent of each other, each of norm 1."""
        single = widths == 1
        return cls(np.diag(single.astype(np.float64)), np.where(single, 0.0, 1.0), widths)

    def diagonal(self) -> F64:
        """S[j, j] of one token per bin, F64[m]; rounding errors below 0 become 0."""
        return np.asarray(np.maximum(np.diagonal(self.between) + self.own, 0.0))

    def rescaled(self) -> Moment:
        """The same divided by its largest diagonal entry, so that nothing overflows over depth."""
        peak = float(self.diagonal().max())
        if not peak > 0:
            return self
        return Moment(self.between / peak, self.own / peak, self.widths)

    def through_mlp(self, gain: F64, between: F64 | None = None) -> Moment:
        """One step back through a branch that acts on each token by itself.

        Args:
            gain: F64[m], M[j, j]: squared gain of the branch at a token.
            between: F64[m, m], M[j, k] of two different tokens, >= -1; None if what the branch adds
                is independent between tokens.
        """
        total = self.diagonal() * (1 + gain)
        off = self.between if between is None else self.between * (1 + between)
        single = self.widths == 1
        off = off.copy()
        index = np.flatnonzero(single)
        off[index, index] = total[index]
        own = np.where(single, 0.0, total - np.diagonal(off))
        return Moment(off, own, self.widths)

    def through_attention(
        self, kernels: BinnedKernel, gains: F64, scale: F64, keep: float = 1.0
    ) -> Moment:
        """One step back through an attention branch.

        Args:
            kernels: H heads over m bins.
            gains: F64[H], squared gains of independent heads; or F64[H+1, H+1], a Gram matrix with
                the identity path first.
            scale: D, F64[m].
            keep: squared weight of the identity path; ignored with a Gram matrix, which has it.
        """
        mass = kernels.mass
        gram = gains if gains.ndim == 2 else None
        keep = keep if gram is None else float(gram[0, 0])
        squared = np.diagonal(gram)[1:] if gram is not None else gains
        full = self.between + np.diag(self.own / self.widths)
        between = keep * self.between
        between += np.outer(scale, scale) * _congruence(
            mass, full, squared if gram is None else gram[1:, 1:]
        )
        own = keep * self.own
        if kernels.square is not None:
            spread = kernels.square - np.square(mass) / self.widths[:, None]
            own = own + scale**2 * np.einsum("h,hba,b->a", squared, spread, self.own)
        if gram is not None:
            cross = scale[:, None] * (np.tensordot(gram[0, 1:], mass, axes=1).T @ full)
            between += cross + cross.T
            if kernels.diagonal is not None:
                local = kernels.diagonal - np.diagonal(mass, axis1=-2, axis2=-1) / self.widths
                own = own + 2 * scale * self.own * (gram[0, 1:] @ local)
        return Moment(between, own, self.widths)


def _congruence(kernels: F64, middle: F64, gains: F64) -> F64:
    """sum_{h, h'} G[h, h'] A_h^T S A_h' as two large products; `gains` F64[H] is a diagonal G."""
    heads, m, _ = kernels.shape
    right = middle @ kernels.transpose(1, 0, 2).reshape(m, heads * m)
    stack = right.reshape(m, heads, m).transpose(1, 0, 2)
    alone = gains.ndim == 1
    mixed = stack * gains[:, None, None] if alone else np.tensordot(gains, stack, axes=1)
    return np.asarray(kernels.reshape(heads * m, m).T @ mixed.reshape(heads * m, m))


@dataclass(frozen=True, eq=False)
class LayerMoments:
    """What one layer does to a second moment. Shapes as in `Moment`.

    Attributes:
        kernels: the heads' kernels.
        gains: F64[H] or F64[H+1, H+1].
        scale: D, F64[m].
        mlp_gain: F64[m], or None without an MLP branch.
        mlp_between: F64[m, m] or None.
        parallel: the MLP reads the stream that the attention reads, not the attention's result.
        keep: squared weight of the identity path, for independent heads.
    """

    kernels: BinnedKernel
    gains: F64
    scale: F64
    mlp_gain: F64 | None = None
    mlp_between: F64 | None = None
    parallel: bool = False
    keep: float = 1.0


def second_moment(layers: Iterable[LayerMoments], bounds: I64) -> F64:
    """The predicted influence of each token, proportional to sqrt(S[j, j]).

    Args:
        layers: from the TOP layer (nearest the read-out) DOWN. Pass a generator to have only one
            layer's kernels in memory at a time.
        bounds: I64[m+1] from `binning.edges`; `np.arange(n + 1)` evaluates exactly.

    Returns:
        F64[n], sums to 1. Cost 4 T H m^3 operations.
    """
    moment = Moment.read_out(np.diff(bounds).astype(np.float64))
    for layer in layers:
        moment = apply(moment, layer).rescaled()
    return expand(np.sqrt(moment.diagonal()), bounds)


def apply(moment: Moment, layer: LayerMoments) -> Moment:
    """One layer backwards. The MLP branch comes first: it is the later one going forward."""
    after = moment
    if layer.mlp_gain is not None:
        after = moment.through_mlp(layer.mlp_gain, layer.mlp_between)
    entering = moment if layer.parallel else after
    drawn = entering.through_attention(layer.kernels, layer.gains, layer.scale, layer.keep)
    if not layer.parallel:
        return drawn
    return Moment(
        drawn.between + (after.between - moment.between),
        drawn.own + (after.own - moment.own),
        moment.widths,
    )
