"""What speaks for or against trusting a placement curve, in sentences."""

from __future__ import annotations

import numpy as np

from service.contract.profiles import NeedleCurve

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
