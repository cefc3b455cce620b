"""Which curve a placement follows, and how far it can be trusted."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from service.contract.errors import InvalidRequest
from service.contract.placements import Architecture, Confidence, Source
from service.contract.profiles import NeedleCurve, ProfileBody
from service.theory.calibration import cumulative
from service.usecases.placement_theory import from_architecture, theory_length
from service.usecases.placement_trust import covered, stretched, within_noise

F64 = npt.NDArray[np.float64]
Level = Literal["high", "medium", "low"]
Basis = Literal["needle", "measured", "prediction", "theory", "given"]

NOISY = 0.05
"""Split-half Wasserstein distance, or distance of a prediction, above which trust falls."""
AGREEMENT = 0.3
"""Rank agreement of needle and influence below which the answer says that they disagree."""
_LEVELS: tuple[Level, ...] = ("low", "medium", "high")
_CACHED = 64


@dataclass(frozen=True, eq=False)
class PlacementCurve:
    """One curve with its origin.

    Args:
        influence: shape [n0]; None for `architecture`, whose curve follows the prompt's length.
        length: tokens at which it was measured; None for a curve over relative positions.
        anchored: whether its ends keep their distance in tokens (`calibration.cumulative`).
        doubts: what speaks against trusting it, a sentence each; every one lowers the level.
        notes: what the reader should know that does not change the level.
    """

    source: Source | Literal["density", "theory"]
    basis: Basis
    level: Level
    influence: F64 | None = None
    length: int | None = None
    anchored: bool = True
    architecture: Architecture | None = None
    profile_id: str | None = None
    max_length: int | None = None
    tokenizer_digest: str | None = None
    noise: float | None = None
    agreement: float | None = None
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=())

    def cumulative(self, length: int) -> F64:
        """Cumulative influence over a prompt of `length` tokens, shape [length + 2]."""
        if self.influence is None:
            assert self.architecture is not None
            return cumulative(from_architecture(self.architecture, length), length)
        return cumulative(self.influence, length, anchored=self.anchored)

    def extrapolated(self, length: int) -> bool:
        """Whether the curve belongs to another length than `length`."""
        if self.architecture is not None:
            return theory_length(self.architecture, length) < length
        return self.length is not None and self.length != length

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
            spearman_needle_influence=self.agreement,
            reasons=[*self.notes, *self.doubts, *said],
        )


def of_density(density: list[float]) -> PlacementCurve:
    """The caller's own curve over relative positions."""
    return PlacementCurve(
        source="density",
        basis="given",
        level="medium",
        influence=np.array(density),
        anchored=False,
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
        notes=("computed from the architecture alone; nothing was measured",),
        warnings=("theory only: training may have changed the curve; measure the model",),
    )


@lru_cache(maxsize=_CACHED)
def of_profile(document: bytes, source: Source | None) -> PlacementCurve:
    """A curve of a stored profile; the default is the needle curve where it was measured.

    Args:
        document: the profile's body as JSON.
        source: which curve; None chooses.

    Raises:
        InvalidRequest: the profile has no such curve, or only bins of it.
    """
    return of_body(ProfileBody.of_stored(document), source)


def of_body(body: ProfileBody, source: Source | None) -> PlacementCurve:
    """`of_profile` for a profile that is parsed already."""
    measured = body.measured
    needle = measured.needle
    chosen: Source = source or ("needle" if needle is not None else "measured")
    if chosen == "needle":
        if needle is None:
            raise InvalidRequest(_missing(body, chosen), field="source")
        return _of_needle(body, needle)
    if chosen in ("measured", "per_document", "last_token_attention"):
        values = {
            "measured": measured.influence,
            "per_document": measured.per_document,
            "last_token_attention": measured.last_token_attention,
        }[chosen]
        if values is None:
            raise InvalidRequest(_missing(body, chosen), field="source")
        return _of_influence(body, chosen, values)
    if chosen not in body.predictions:
        raise InvalidRequest(_missing(body, chosen), field="source")
    prediction = body.predictions[chosen]
    doubts = _doubts(body)
    if prediction.wasserstein > NOISY:
        doubts.append(
            f"the prediction is {prediction.wasserstein:.3g} away from the measured curve "
            "(Wasserstein)"
        )
    return _curve(body, chosen, "prediction", "medium", prediction.influence, doubts)


def _of_influence(body: ProfileBody, source: Source, values: list[float]) -> PlacementCurve:
    doubts = _doubts(body)
    noise = body.measured.split_half_wasserstein
    if noise is None:
        doubts.append("one document only: the noise of the curve is unknown")
    elif noise > NOISY:
        doubts.append(f"two halves of the documents differ by {noise:.3g} (Wasserstein)")
    if source == "last_token_attention":
        doubts.append("attention weights are no measure of influence")
    needle = body.measured.needle
    agree = needle.spearman_with_influence if needle is not None else None
    level: Level = "high" if agree is not None and agree >= 0.5 else "medium"
    return _curve(body, source, "measured", level, values, doubts)


def _of_needle(body: ProfileBody, needle: NeedleCurve) -> PlacementCurve:
    """Density proportional to the probability of recall, exp(mean log-probability), linear
    between the depths that were measured: the value is then the expected rate of right answers
    when the question concerns each chunk with probability proportional to its relevance."""
    recall = np.exp(np.array(needle.log_probability) - max(needle.log_probability))
    n = body.request.sequence_length
    depth = np.array(needle.depth)
    order = np.argsort(depth, kind="stable")
    at = (np.arange(n) + 0.5) / n
    values = np.interp(at, depth[order], recall[order])
    doubts = _doubts(body)
    level: Level = "high"
    if within_noise(needle):
        # With the doubt that makes `low`: never more than `measured` has.
        level = "medium"
        doubts.append("the needle curve's differences between depths lie within its noise")
    if max(needle.log_probability) < needle.baseline + 1:
        doubts.append("the model hardly retrieves at any depth")
    return _curve(
        body,
        "needle",
        "needle",
        level,
        values.tolist(),
        doubts,
        anchored=False,
        notes=(covered(needle),),
    )


def _curve(
    body: ProfileBody,
    source: Source,
    basis: Basis,
    level: Level,
    values: list[float],
    doubts: list[str],
    *,
    anchored: bool = True,
    notes: tuple[str, ...] = (),
) -> PlacementCurve:
    length = body.request.sequence_length
    if anchored and len(values) != length:
        raise InvalidRequest(
            f"the profile has its curves in {len(values)} bins, not at its {length} tokens: "
            "save it without `bins`",
            field="profile_id",
        )
    needle = body.measured.needle
    agreement = needle.spearman_with_influence if needle is not None else None
    warnings: list[str] = []
    if agreement is not None and agreement < AGREEMENT:
        other = "influence" if basis == "needle" else "retrieval (source `needle`)"
        warnings.append(
            f"retrieval and influence disagree about which depths are best (Spearman "
            f"{agreement:.2f}); {other} would give another order"
        )
        if basis != "needle":
            doubts = [*doubts, "influence does not rank depths as retrieval does on this model"]
    elif needle is None:
        warnings.append("retrieval was not measured; influence may rank places otherwise")
    return PlacementCurve(
        source=source,
        basis=basis,
        level=level,
        influence=np.array(values),
        length=length,
        anchored=anchored,
        profile_id=body.id,
        max_length=body.model.max_length,
        tokenizer_digest=body.model.tokenizer_digest,
        noise=body.measured.split_half_wasserstein,
        agreement=agreement,
        doubts=tuple(doubts),
        notes=notes,
        warnings=tuple(warnings),
    )


def _doubts(body: ProfileBody) -> list[str]:
    """How the profile differs from the model as it is used."""
    asked = body.request
    doubts = []
    if asked.weights == "random":
        doubts.append("the weights are random: an untrained model retrieves nothing")
    elif asked.documents_source == "random_tokens":
        doubts.append("measured on random tokens, not on text")
    if asked.positional_encoding == "off":
        doubts.append("measured without the model's positional encoding: an ablation")
    return doubts


def _missing(body: ProfileBody, source: str) -> str:
    known = ["measured", "per_document", *body.predictions]
    if body.measured.needle is not None:
        known.insert(0, "needle")
    if body.measured.last_token_attention is not None:
        known.append("last_token_attention")
    return f"this profile has no curve {source}; it has {', '.join(known)}"
