"""The curve of a stored profile: which profile, which of its curves, and what speaks against it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from lacuna.contract.errors import InvalidRequest
from lacuna.contract.models import ModelDescription
from lacuna.contract.placements import Architecture, PlacementRequest, Source
from lacuna.contract.profiles import ProfileBody, ProfileSummary
from lacuna.contract.recall import LEAST_GROUPS, RecallCurve, main_recall
from lacuna.evidence.bands import MIN_EFFECTIVE
from lacuna.placement.curve import Basis, PlacementCurve
from lacuna.placement.document_curves import DocumentCurves, at_depths, of_masses, prepare

F64 = npt.NDArray[np.float64]

NOISY = 0.05
"""Split-half Wasserstein distance, or distance of a prediction, above which trust falls."""
AGREEMENT = 0.3
"""Rank agreement of recall and influence below which the answer says that they disagree."""
_PREDICTED = "a prediction has no interval: only the curve `measured` has documents behind it"
_INFLUENCE = (
    "visibility is influence: only recall or an experiment tells whether answers get better"
)
_MEAN_ONLY = "the profile keeps this curve as a mean, without the documents behind it"
_VERDICTS = {
    "flat": "recall is the same at all depths, as far as was measured",
    "undecided": "recall may be the same at all depths: more groups of facts may tell",
    "floor": "the model hardly recalls a fact at any depth",
    "ceiling": "the model recalls nearly every fact at every depth",
}
_CHARACTERS = 4
"""Of English text in a token, to estimate a prompt whose texts are not counted yet."""


def by_suitability(
    newest_first: Sequence[ProfileSummary], request: PlacementRequest
) -> list[ProfileSummary]:
    """The profiles, most suitable first. The first criterion that tells two apart decides:

    1. the revision that was measured last;
    2. the model as it is used, not an ablation;
    3. how it reads, not how it reaches one target;
    4. Lacuna's or the operator's texts, not a caller's own: that caller's prompts need not be like
       this one (name such a profile by its id);
    5. enough documents for an interval of the gain;
    6. a length within the same power of two of the prompt's;
    7. a recall curve, if the request names that source;
    8. at least twice as many documents;
    9. the newest.
    """
    if not newest_first:
        return []
    tokens = _prompt_tokens(request)
    revision = newest_first[0].revision

    def key(summary: ProfileSummary) -> tuple[float, ...]:
        octaves = abs(math.log2(summary.sequence_length / tokens))
        return (
            summary.revision != revision,
            not summary.as_used,
            summary.objective == "target_logprob",
            summary.documents_source == "inline",
            summary.documents < MIN_EFFECTIVE,
            round(octaves),
            request.source == "recall" and not summary.recall,
            -summary.documents.bit_length(),
        )

    return sorted(newest_first, key=key)


def _prompt_tokens(request: PlacementRequest) -> int:
    """About how long the prompt will be, at least 1."""
    chunks = [
        chunk.tokens if chunk.tokens is not None else len(chunk.text or "") / _CHARACTERS
        for chunk in request.chunks
    ]
    between = request.separator_tokens * max(0, len(chunks) - 1)
    whole = request.prefix_tokens + sum(chunks) + between + request.suffix_tokens
    return max(1, round(min(whole, request.max_tokens or whole)))


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
    doubts = _doubts(body)
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
    elif found.verdict in _VERDICTS:
        unsure = _VERDICTS[found.verdict]
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
        doubts=(*_doubts(body), *_recall_doubts(found)),
        notes=(_recall_range(found),),
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
    doubts = _doubts(body) + _noise_doubts(body)
    return _curve(body, "measured", "measured", influence, documents, doubts, unsure)


def _of_mean(
    body: ProfileBody, source: Literal["mean_of_norms", "last_token_attention"]
) -> PlacementCurve:
    values = getattr(body.influence, source)
    if values is None:
        raise InvalidRequest(_missing(body, source), field="source")
    doubts = _doubts(body) + _noise_doubts(body)
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
        notes=() if body.recall else (_INFLUENCE,),
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


def _noise_doubts(body: ProfileBody) -> list[str]:
    """What the spread of the documents says against the measured curve."""
    noise = body.influence.split_half_wasserstein
    if noise is None:
        return ["one document only: the noise of the curve is unknown"]
    if noise > NOISY:
        return [f"two halves of the documents differ by {noise:.3g} (Wasserstein)"]
    return []


def _recall_doubts(recall: RecallCurve) -> list[str]:
    """What the verdict on recall says against an order that follows it."""
    return [_VERDICTS[recall.verdict]] if recall.verdict in _VERDICTS else []


def _recall_range(recall: RecallCurve) -> str:
    """Which part of the prompt was measured, and what is taken for the rest."""
    first, last = min(recall.depth), max(recall.depth)
    text = (
        f"recall was measured at {len(recall.depth)} depths from {first:.0%} to {last:.0%} of the "
        f"prompt, {recall.facts} competing facts each time"
    )
    outside = [f"before {first:.0%}"] if first > 0 else []
    outside += [f"after {last:.0%}"] if last < 1 else []
    return f"{text}; {' and '.join(outside)} the nearest depth stands in" if outside else text


def architecture_of(body: ProfileBody) -> Architecture | None:
    """What a profile (of untrained weights, say) tells about its model's architecture; None for a
    model behind an endpoint."""
    model: ModelDescription = body.model
    layers, heads, positions = model.attention_layers, model.heads, model.positional_encoding
    if layers is None or heads is None or positions is None:
        return None
    mixing = Architecture.model_fields["mixing"].default
    if body.mixing is not None and body.mixing.lambda_:
        mixing = float(np.mean(body.mixing.lambda_)) or mixing
    return Architecture(
        layers=max(1, layers),
        heads=heads,
        positional_encoding=positions,
        window=model.window,
        mixing=mixing,
    )
