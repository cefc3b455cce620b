"""How far a placement curve can be trusted, in sentences."""

from __future__ import annotations

from lacuna.contract.profiles import ProfileBody
from lacuna.contract.recall import RecallCurve

NEAR = 1.25
"""Ratio of prompt to profile length, either way, up to which the curves are taken as alike."""
FAR = 2.0
"""The ratio beyond which trust falls by one level."""
VERY_FAR = 8.0
"""The ratio beyond which it falls by two."""
NOISY = 0.05
"""Split-half Wasserstein distance, or distance of a prediction, above which trust falls."""


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


def doubts_of(body: ProfileBody) -> list[str]:
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


def noise_doubts(body: ProfileBody) -> list[str]:
    """What the spread of the documents says against the measured curve."""
    noise = body.influence.split_half_wasserstein
    if noise is None:
        return ["one document only: the noise of the curve is unknown"]
    if noise > NOISY:
        return [f"two halves of the documents differ by {noise:.3g} (Wasserstein)"]
    return []


_VERDICTS = {
    "flat": "recall is the same at all depths, as far as was measured",
    "undecided": "recall may be the same at all depths: more groups of facts may tell",
    "floor": "the model hardly recalls a fact at any depth",
    "ceiling": "the model recalls nearly every fact at every depth",
}


def recall_doubts(recall: RecallCurve) -> list[str]:
    """What the verdict on recall says against an order that follows it."""
    return [_VERDICTS[recall.verdict]] if recall.verdict in _VERDICTS else []


def recall_range(recall: RecallCurve) -> str:
    """Which part of the prompt was measured, and what is taken for the rest."""
    first, last = min(recall.depth), max(recall.depth)
    text = (
        f"recall was measured at {len(recall.depth)} depths from {first:.0%} to {last:.0%} of the "
        f"prompt, {recall.facts} competing facts each time"
    )
    outside = [f"before {first:.0%}"] if first > 0 else []
    outside += [f"after {last:.0%}"] if last < 1 else []
    return f"{text}; {' and '.join(outside)} the nearest depth stands in" if outside else text
