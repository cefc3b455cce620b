"""Which curve a placement follows, with its origin and the documents behind it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from lacuna.contract.errors import InvalidRequest
from lacuna.contract.placements import Architecture, Confidence, Source
from lacuna.contract.profiles import ProfileBody
from lacuna.contract.recall import LEAST_GROUPS, RecallCurve, main_recall
from lacuna.evidence.bands import MIN_EFFECTIVE
from lacuna.placement.architecture import from_architecture, theory_length
from lacuna.placement.confidence import (
    NOISY,
    doubts_of,
    noise_doubts,
    recall_doubts,
    recall_range,
    stretched,
)
from lacuna.placement.document_curves import DocumentCurves, at_depths, exact, of_masses, prepare
from lacuna.theory.curve import cumulative

F64 = npt.NDArray[np.float64]
Level = Literal["high", "medium", "low"]
Basis = Literal["recall", "measured", "prediction", "theory", "given"]

_CACHED = 64
AGREEMENT = 0.3
"""Rank agreement of recall and influence below which the answer says that they disagree."""
_LEVELS: tuple[Level, ...] = ("low", "medium", "high")
_THEORY = "the curve comes from the architecture alone, and training changes it: measure the model"
_PREDICTED = "a prediction has no interval: only the curve `measured` has documents behind it"
_MEAN_ONLY = "the profile keeps this curve as a mean, without the documents behind it"


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


def of_profile(document: bytes, source: Source | None) -> PlacementCurve:
    """A curve of a stored profile. The default is `recall` where facts competed in enough groups
    and the model is neither always right nor always wrong, else `measured`.

    Args:
        document: the profile's body as JSON.
        source: which curve; None chooses.

    Raises:
        InvalidRequest: the profile has no such curve, or only bins of it.
    """
    return of_body(ProfileBody.of_stored(document), source)


def of_body(body: ProfileBody, source: Source | None) -> PlacementCurve:
    """`of_profile` for a profile that is parsed already."""
    alone = body.measured is None
    chosen: Source = source or ("recall" if alone or _usable_recall(body) else "measured")
    if chosen == "recall":
        return _of_recall(body)
    if chosen == "measured" and not alone:
        return _of_measured(body)
    if alone:
        raise InvalidRequest(_missing(body, chosen), field="source")
    if chosen in ("mean_of_norms", "last_token_attention"):
        return _of_mean(body, chosen)
    if chosen not in body.predictions:
        raise InvalidRequest(_missing(body, chosen), field="source")
    prediction = body.predictions[chosen]
    doubts = doubts_of(body)
    if prediction.wasserstein > NOISY:
        doubts.append(
            f"the prediction is {prediction.wasserstein:.3g} away from the measured curve "
            "(Wasserstein)"
        )
    return _of_one(body, chosen, "prediction", prediction.influence, doubts, _PREDICTED)


def _recall(body: ProfileBody) -> RecallCurve | None:
    return main_recall(body.recall)


def _usable_recall(body: ProfileBody) -> bool:
    found = _recall(body)
    return (
        found is not None
        and len(found.by_group) >= LEAST_GROUPS
        and found.verdict not in ("floor", "ceiling")
    )


def _of_recall(body: ProfileBody) -> PlacementCurve:
    """Density proportional to the probability of recall: the value is then the expected rate of
    right answers. Groups of competing facts are what is drawn independently."""
    found = _recall(body)
    if found is None:
        raise InvalidRequest(_missing(body, "recall"), field="source")
    groups = np.array(found.by_group)
    unsure = None
    if len(groups) < LEAST_GROUPS:
        unsure = (
            f"{len(groups)} groups of facts are too few for an interval, which takes {LEAST_GROUPS}"
        )
    if not groups.any():
        raise InvalidRequest("the model recalled no fact at any depth", field="source")
    length = max(1, round(found.prompt_tokens))
    curves = prepare(at_depths(np.array(found.depth), groups), kind="recall", length=length)
    return PlacementCurve(
        source="recall",
        basis="recall",
        level="high",
        documents=curves,
        length=length,
        profile_id=body.id,
        max_length=body.model.max_length,
        tokenizer_digest=body.model.tokenizer_digest,
        noise=None if body.measured is None else body.measured.split_half_wasserstein,
        agreement=_agreement(body),
        unsure=unsure,
        doubts=(*doubts_of(body), *recall_doubts(found)),
        notes=(recall_range(found),),
        warnings=_disagreement(body),
    )


def _disagreement(body: ProfileBody) -> tuple[str, ...]:
    """A warning where recall and influence surely rank places differently."""
    found = _recall(body)
    agreement = None if found is None else found.spearman_with_influence
    if agreement is None or agreement.high >= AGREEMENT:
        return ()
    return (
        f"recall and influence disagree about which places are best (Spearman "
        f"{agreement.value:.2f}, at most {agreement.high:.2f})",
    )


def _of_measured(body: ProfileBody) -> PlacementCurve:
    """The main curve, with the documents that it is the mean of."""
    measured, length = body.influence, body.request.sequence_length
    influence = _whole(body, measured.influence)
    kept = measured.summaries
    documents = of_masses(np.array(kept.masses), np.array(kept.first), length)
    unsure = None
    if len(kept.masses) < MIN_EFFECTIVE:
        unsure = (
            f"{len(kept.masses)} documents are too few for an interval, which takes "
            f"{MIN_EFFECTIVE:.0f}: measure more"
        )
    doubts = doubts_of(body) + noise_doubts(body)
    return _curve(body, "measured", "measured", influence, documents, doubts, unsure)


def _of_mean(
    body: ProfileBody, source: Literal["mean_of_norms", "last_token_attention"]
) -> PlacementCurve:
    values = getattr(body.influence, source)
    if values is None:
        raise InvalidRequest(_missing(body, source), field="source")
    doubts = doubts_of(body) + noise_doubts(body)
    if source == "last_token_attention":
        doubts.append("attention weights are no measure of influence")
    return _of_one(body, source, "measured", values, doubts, _MEAN_ONLY)


def _of_one(
    body: ProfileBody,
    source: Source,
    basis: Basis,
    values: list[float],
    doubts: list[str],
    unsure: str,
) -> PlacementCurve:
    """A curve without single documents."""
    influence = _whole(body, values)
    return _curve(body, source, basis, influence, prepare(influence[None]), doubts, unsure)


def _whole(body: ProfileBody, values: list[float]) -> F64:
    length = body.request.sequence_length
    if len(values) != length:
        raise InvalidRequest(
            f"the profile has its curves in {len(values)} bins, not at its {length} tokens: "
            "save it without `bins`",
            field="profile_id",
        )
    return np.array(values)


def _curve(
    body: ProfileBody,
    source: Source,
    basis: Basis,
    influence: F64,
    documents: DocumentCurves,
    doubts: list[str],
    unsure: str | None,
) -> PlacementCurve:
    return PlacementCurve(
        source=source,
        basis=basis,
        level="medium",
        influence=influence,
        documents=documents,
        length=body.request.sequence_length,
        profile_id=body.id,
        max_length=body.model.max_length,
        tokenizer_digest=body.model.tokenizer_digest,
        noise=body.influence.split_half_wasserstein,
        agreement=_agreement(body),
        unsure=unsure,
        doubts=tuple(doubts),
        warnings=_disagreement(body),
    )


def _agreement(body: ProfileBody) -> float | None:
    found = _recall(body)
    agreement = None if found is None else found.spearman_with_influence
    return None if agreement is None else agreement.value


def _missing(body: ProfileBody, source: str) -> str:
    known = [] if body.measured is None else ["measured", "mean_of_norms", *body.predictions]
    if body.recall:
        known.insert(0, "recall")
    if body.measured is not None and body.measured.last_token_attention is not None:
        known.append("last_token_attention")
    return f"this profile has no curve {source}; it has {', '.join(known)}"
