"""What a rollout means for someone who writes a prompt, in sentences."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from service.contract.curves import DeadZone
from service.contract.rollouts import CesaroReport
from service.theory.curve import Curve
from service.theory.shape import END_SHARE
from service.usecases.rollout_inputs import Inputs

F64 = npt.NDArray[np.float64]
_MARGIN = 0.02
"""Share of the prompt that is too short to put anything into."""


def summarise(
    inputs: Inputs, influence: F64, zone: DeadZone | None, report: CesaroReport
) -> list[str]:
    """Where such a model listens before it has learned anything.

    Args:
        influence: [n], the curve that uses everything the request says.
        zone: its dead zone.
        report: the closed form.
    """
    n = inputs.length
    if n == 1:
        return ["A prompt of one token has no places to compare: all influence is on that token."]
    curve = Curve(influence)
    head = curve.mass(0.0, END_SHARE * n)
    last = float(curve.influence[-1])
    inner = curve.mass(n - max(1.0, END_SHARE * n), n - 1.0)
    half = float(np.searchsorted(curve.cumulative(), 0.5, side="left")) / n
    sentences = [
        f"The first tenth of the prompt gets {head:.1%} of the influence (an even share is 10%); "
        f"the last token keeps {last:.1%}, the rest of the last tenth gets {inner:.1%}.",
        f"Half of all influence comes from the first {min(1.0, half):.1%} of the prompt.",
    ]
    threshold = inputs.request.threshold
    if zone is None:
        sentences.append(f"No stretch of the prompt falls below {threshold:g} of an even share.")
    else:
        last_density = n * float(curve.influence[-1])
        sentences += [_dead(zone, n), _advice(zone, n, last_density >= threshold)]
    same = inputs.kernel.type == "uniform" and inputs.request.mask.type == "causal"
    attention = "" if same and not inputs.has_content else " with uniform causal attention instead"
    layers = "1 layer" if report.layers == 1 else f"{report.layers} layers"
    sentences.append(
        f"In the closed form for {layers}{attention} the dead zone covers "
        f"{report.dead_zone_width:.0%} of the prompt, from {report.dead_zone_start:.0%} on; its "
        f"least density, next to the end, is {report.floor:.2g}."
    )
    return sentences


def _dead(zone: DeadZone, n: int) -> str:
    return (
        f"Dead zone: tokens {zone.start} to {zone.end - 1} of {n} ({zone.fraction:.0%} of the "
        f"prompt) get less than {zone.threshold:g} of an even share, {zone.mean_density:.2g} of it "
        f"on average; the quietest place is {_place(zone.argmin, n)}."
    )


def _place(position: int, n: int) -> str:
    """Where a token stands, in words; the ends by name, which percentages would round into."""
    if position == n - 1:
        return "the last token"
    if position == n - 2:
        return "just before the last token"
    if position == 0:
        return "the first token"
    share = 100 * position / (n - 1)
    if round(share) >= 100:
        return f"{n - 1 - position} tokens before the last"
    return f"at {share:.0f}% of the prompt"


def _advice(zone: DeadZone, n: int, last_is_heard: bool) -> str:
    """Where to put things.

    Args:
        last_is_heard: whether the last token has the density that the zone lacks.
    """
    margin = max(1.0, _MARGIN * n)
    before, after = zone.start > margin, zone.end < n - margin
    if before and after:
        return f"Put what matters before token {zone.start} or after token {zone.end - 1}."
    if before and last_is_heard:
        return f"Put what matters before token {zone.start}, and the question at the very end."
    if before:
        return f"Put what matters before token {zone.start}: the very end is not heard well either."
    if after:
        return f"Put what matters after token {zone.end - 1}."
    heard = ["the very beginning"] * (zone.start > 0) + ["the very end"] * last_is_heard
    apart = f"Apart from {' and '.join(heard)}, no" if heard else "No"
    return f"{apart} place in this prompt is heard well."
