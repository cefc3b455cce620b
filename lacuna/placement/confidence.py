"""How far a placement curve can be trusted, in sentences."""

from __future__ import annotations

from lacuna.contract.profiles import ProfileBody

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
    noise = body.measured.split_half_wasserstein
    if noise is None:
        return ["one document only: the noise of the curve is unknown"]
    if noise > NOISY:
        return [f"two halves of the documents differ by {noise:.3g} (Wasserstein)"]
    return []
