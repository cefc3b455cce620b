"""What speaks for or against trusting a placement curve, in sentences.

The curve that an architecture is born with, for placements without a measurement.

Which curve a placement follows, and how far it can be trusted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from lacuna.architectures.table import find
from lacuna.contract.errors import InvalidRequest
from lacuna.contract.models import ModelDescription
from lacuna.contract.placements import Architecture, Confidence, Source
from lacuna.contract.profiles import NeedleCurve, ProfileBody
from lacuna.theory import kernels, rollout
from lacuna.theory.curve import cumulative

NEAR = 1.25
"""Ratio of prompt to profile length, either way, up to which the curves are taken as alike."""
FAR = 2.0
"""The ratio beyond which trust falls by one level."""
VERY_FAR = 8.0
"""The ratio beyond which it falls by two."""


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


def within_noise(needle: NeedleCurve) -> bool:
    """Whether the depths cannot be told apart: one level lies within every depth's band, or the
    whole range of the curve is no wider than a band is on average."""
    band = np.array(needle.high) - np.array(needle.low)
    common = max(needle.low) <= min(needle.high)
    return common or bool(np.ptp(needle.log_probability) < band.mean())


def covered(needle: NeedleCurve) -> str:
    """Which part of the prompt was measured, and what is taken for the rest."""
    first, last = min(needle.depth), max(needle.depth)
    text = (
        f"retrieval was measured at {len(needle.depth)} depths from {first:.0%} to {last:.0%} of "
        "the prompt"
    )
    outside = [f"before {first:.0%}"] if first > 0 else []
    outside += [f"after {last:.0%}"] if last < 1 else []
    return f"{text}; {' and '.join(outside)} the nearest depth stands in" if outside else text


F64 = npt.NDArray[np.float64]

_CACHED = 64
_THEORY_COST = 1e8
"""Length x layers x heads up to which a theory curve is computed at the prompt's own length."""
_WINDOW_COST = 40
"""How much dearer a windowed ALiBi kernel is."""


def architecture_of(body: ProfileBody) -> Architecture:
    """What a profile (of untrained weights, say) tells about its model's architecture."""
    model: ModelDescription = body.model
    mixing = Architecture.model_fields["mixing"].default
    if body.mixing is not None and body.mixing.lambda_:
        mixing = float(np.mean(body.mixing.lambda_)) or mixing
    return Architecture(
        layers=max(1, model.attention_layers),
        heads=model.heads,
        positional_encoding=model.positional_encoding,
        window=model.window,
        mixing=mixing,
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


Level = Literal["high", "medium", "low"]
Basis = Literal["needle", "measured", "prediction", "theory", "given"]

NOISY = 0.05
"""Split-half Wasserstein distance, or distance of a prediction, above which trust falls."""
AGREEMENT = 0.3
"""Rank agreement of needle and influence below which the answer says that they disagree."""
_LEVELS: tuple[Level, ...] = ("low", "medium", "high")


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
