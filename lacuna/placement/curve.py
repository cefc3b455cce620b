"""The curve that a placement follows: its origin, its documents, and how far to trust it.

A curve comes from a stored profile (`profile_curve`), from the caller, or from the architecture
that the model is born with.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from lacuna.architectures.table import find
from lacuna.contract.placements import Architecture, Confidence, Source
from lacuna.placement.advice import INFLUENCE_MARGIN
from lacuna.placement.document_curves import DocumentCurves, exact
from lacuna.theory import kernels, rollout
from lacuna.theory.curve import cumulative

F64 = npt.NDArray[np.float64]
Level = Literal["high", "medium", "low"]
Basis = Literal["recall", "measured", "prediction", "theory", "given"]

_CACHED = 64
_LEVELS: tuple[Level, ...] = ("low", "medium", "high")
_THEORY = "the curve comes from the architecture alone, and training changes it: measure the model"
NEAR = 1.25
"""Ratio of prompt to profile length, either way, up to which the curves are taken as alike."""
FAR = 2.0
"""The ratio beyond which trust falls by one level. A prompt shorter than the profile by more gets
no decision: up to 23% of such orders were changed for the worse (`bench/lengths.py`)."""
VERY_FAR = 8.0
"""The ratio beyond which it falls by two, and beyond which there is no decision either way. Up to
it at most .8% of the orders for longer prompts were changed for the worse."""
_THEORY_COST = 1e8
"""Length x layers x heads up to which a theory curve is computed at the prompt's own length."""
_WINDOW_COST = 40
"""How much dearer a windowed ALiBi kernel is."""


@dataclass(frozen=True, eq=False)
class PlacementCurve:
    """One curve with its origin.

    Args:
        influence: unsmoothed and with its first token, shape [n0], for the dead zone; None where
            orders are chosen on that very curve.
        documents: what orders are chosen and judged on; None for `architecture`.
        length: tokens at which it was measured; None for a curve over relative positions.
        architecture: of a theory curve.
        unsure: why no gain on this curve has an interval; None where it has.
        doubts: what speaks against trusting it, a sentence each; every one lowers the level.
        notes: what the reader should know that does not change the level.
    """

    source: Source | Literal["density", "theory"]
    basis: Basis
    level: Level
    influence: F64 | None = None
    documents: DocumentCurves | None = None
    length: int | None = None
    architecture: Architecture | None = None
    profile_id: str | None = None
    max_length: int | None = None
    tokenizer_digest: str | None = None
    noise: float | None = None
    agreement: float | None = None
    unsure: str | None = None
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        own = 0 if self.influence is None else self.influence.nbytes
        return own + (0 if self.documents is None else self.documents.nbytes)

    @property
    def margin(self) -> float:
        """What an order must gain over the safe fixed rule to be proposed (`advice.advise`)."""
        return INFLUENCE_MARGIN if self.basis in ("measured", "prediction") else 0.0

    @property
    def anchored(self) -> bool:
        """Whether its ends keep their distance in tokens at another length."""
        return self.documents is None or self.documents.anchored

    def curves(self, length: int) -> DocumentCurves:
        """What orders of a prompt of `length` tokens are chosen and judged on."""
        if self.documents is not None:
            return self.documents
        assert self.architecture is not None
        return _theory_curves(self.architecture, theory_length(self.architecture, length))

    def cumulative(self, length: int) -> F64:
        """The curve that orders are chosen on, over a prompt of `length` tokens: shape [length + 2]
        as `OrderProblem.cumulative`."""
        return self.curves(length).at(length)

    def as_measured(self, length: int) -> F64 | None:
        """The unsmoothed curve with its first token, cumulative, shape [length + 2]; None where it
        is `cumulative`."""
        if self.influence is None:
            return None
        return cumulative(self.influence, length, anchored=self.anchored)

    def extrapolated(self, length: int) -> bool:
        """Whether the curve belongs to another length than `length`."""
        if self.architecture is not None:
            return theory_length(self.architecture, length) < length
        return self.length is not None and self.length != length

    def unsure_at(self, length: int) -> str | None:
        """Why no gain can be relied on in a prompt of `length` tokens, or None."""
        if self.unsure is not None or self.length is None:
            return self.unsure
        if self.length / FAR <= length <= self.length * VERY_FAR:
            return None
        return (
            f"the curve was measured at {self.length} tokens and the prompt has {length}: "
            "measure nearer to this length"
        )

    def length_warnings(self, length: int) -> list[str]:
        """A warning where the interval of a gain does not hold in a prompt of `length` tokens."""
        if self.length is None or self.unsure_at(length) is not None:
            return []
        if self.length / NEAR <= length <= self.length * NEAR:
            return []
        return [
            f"the gain is that of the curve at {self.length} tokens: at {length} tokens its sign "
            "holds, its size and interval may be far off"
        ]

    def confidence(self, length: int) -> Confidence:
        """The trust that it deserves for a prompt of `length` tokens, with reasons."""
        said, steps = stretched(self.length, length, anchored=self.anchored)
        rank = max(0, _LEVELS.index(self.level) - len(self.doubts) - steps)
        return Confidence(
            level=_LEVELS[rank],
            basis=self.basis,
            noise=self.noise,
            profile_tokens=self.length,
            prompt_tokens=length,
            spearman_recall_influence=self.agreement,
            reasons=[*self.notes, *self.doubts, *said],
        )


@lru_cache(maxsize=_CACHED)
def _theory_curves(architecture: Architecture, length: int) -> DocumentCurves:
    return exact(from_architecture(architecture, length), anchored=True)


def of_density(density: list[float]) -> PlacementCurve:
    """The caller's own curve over relative positions."""
    return PlacementCurve(
        source="density",
        basis="given",
        level="medium",
        documents=exact(np.array(density)),
        notes=("the curve is the caller's own",),
    )


def of_architecture(
    architecture: Architecture, max_length: int | None = None, tokenizer_digest: str | None = None
) -> PlacementCurve:
    """A curve from architecture alone: what the model is born with, not what it learnt.

    Args:
        architecture: layers, heads, positions.
        max_length: longest prompt that the model takes, where it is known.
        tokenizer_digest: of the model's tokenizer, where it is known.
    """
    return PlacementCurve(
        source="theory",
        basis="theory",
        level="low",
        architecture=architecture,
        max_length=max_length,
        tokenizer_digest=tokenizer_digest,
        unsure=_THEORY,
        notes=("computed from the architecture alone; nothing was measured",),
        warnings=("theory only: training may have changed the curve; measure the model",),
    )


def architecture_by_name(model: str) -> Architecture | None:
    """The architecture of a model of the table, with the usual mixing."""
    found = find(model)
    if found is None:
        return None
    return Architecture(
        layers=found.layers,
        heads=found.heads,
        positional_encoding=found.positional_encoding,
        window=found.window,
    )


def theory_length(architecture: Architecture, length: int) -> int:
    """Tokens at which the curve of an architecture is computed for a prompt of `length`."""
    cost = architecture.layers
    if architecture.positional_encoding == "alibi":
        cost *= architecture.heads * (1 if architecture.window is None else _WINDOW_COST)
    return max(1, min(length, int(_THEORY_COST / cost)))


@lru_cache(maxsize=_CACHED)
def from_architecture(architecture: Architecture, length: int) -> F64:
    """Residual rollout of the positional kernel alone [S], at the prompt's own length where the
    cost allows, else at the largest length that it allows. Shape [n] or shorter, read-only."""
    n = theory_length(architecture, length)
    if architecture.positional_encoding == "alibi":
        slopes = kernels.standard_slopes(architecture.heads)
        kernel = kernels.alibi(n, slopes, window=architecture.window)
    else:
        kernel = kernels.uniform(n, window=architecture.window)
    mixing = np.full(architecture.layers, architecture.mixing)
    influence: F64 = rollout.rollout([kernel] * architecture.layers, mixing)
    influence.setflags(write=False)
    return influence


def stretched(measured: int | None, length: int, *, anchored: bool) -> tuple[list[str], int]:
    """What another length than the profile's does to a curve.

    Args:
        measured: tokens of the profile; None for a curve without a length of its own.
        length: tokens of the prompt.
        anchored: whether the curve's ends keep their distance in tokens.

    Returns:
        A sentence, or none where the lengths agree; and the levels of trust that it costs.
    """
    if measured is None or length < 1 or length == measured:
        return [], 0
    ratio = max(length / measured, measured / length)
    relation, verb = ("as long", "stretched") if length > measured else ("as short", "squeezed")
    part = "the middle of the curve" if anchored else "the curve"
    if ratio <= NEAR:
        steps, meaning = 0, "next to no difference"
    elif ratio <= FAR:
        steps, meaning = 0, f"{part} is {verb} a little"
    elif ratio <= VERY_FAR:
        steps, meaning = 1, f"{part} is {verb}; measure nearer to this length"
    else:
        steps, meaning = 2, f"{part} is {verb} beyond what was measured; measure again"
    times = f"{ratio:.4g} times {relation}"
    return [f"measured at {measured} tokens and read at {length}, {times}: {meaning}"], steps
