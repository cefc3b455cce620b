"""A profile as a picture: measured density, smoothed, with its band; predictions; the dead zone.

The curve of single tokens is drawn thin. The dead zone is shaded where the documents show one.

The vertical axis is the density, n times the influence: 1 is what a model that weighs every
position alike would give. It is logarithmic unless asked otherwise, since the ends of a real curve
stand one or two orders of magnitude above its middle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from lacuna.contract.errors import InvalidRequest
from lacuna.contract.profile_requests import PredictionName
from lacuna.contract.profiles import Profile, Shape, zone_words
from lacuna.pictures.scene import PREDICTION_STYLES, Area, Line, Point, Rect, Scene, Text

WIDTH, HEIGHT = 860, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 24, 76, 92
_DECADES = 3.0
"""No more than this many decades below the highest point: a collapsed curve has zeros."""
SHOWN_PREDICTIONS: tuple[PredictionName, ...] = (
    "residual",
    "residual_content",
    "second_moment",
    "measured_kernel",
)
MEASURED, BY_TOKEN = "measured", "by_token"
"""Names of the smoothed curve with its band, and of the curve of single tokens."""
Across = Literal["tokens", "share"]
Upwards = Literal["log", "linear"]


@dataclass(frozen=True)
class _Axes:
    tokens: int
    low: float
    high: float
    across: Across
    upwards: Upwards

    def x(self, token: float) -> float:
        return _LEFT + token / self.tokens * (WIDTH - _LEFT - _RIGHT)

    def y(self, density: float) -> float:
        if self.upwards == "linear":
            share = density / self.high
        else:
            share = math.log(max(density, self.low) / self.low) / math.log(self.high / self.low)
        return HEIGHT - _BOTTOM - min(share, 1.0) * (HEIGHT - _TOP - _BOTTOM)

    def curve(self, influence: Sequence[float]) -> tuple[Point, ...]:
        """Points at the middle of each position; a curve may be coarser than the tokens."""
        count = len(influence)
        step = self.tokens / count
        return tuple(
            (self.x((i + 0.5) * step), self.y(mass * count)) for i, mass in enumerate(influence)
        )


def scene(
    profile: Profile,
    curves: Sequence[str] | None = None,
    x: Across = "tokens",
    y: Upwards = "log",
) -> Scene:
    """The picture of a profile.

    Args:
        profile: curves of any length.
        curves: which to draw: see `chosen`.
        x: positions in tokens, or as shares of the prompt.
        y: density on a logarithmic or on a linear axis.

    Raises:
        InvalidRequest: the profile has no such curve, more than four predictions are asked for, or
            no influence was measured.
    """
    tokens = profile.request.sequence_length
    drawn = chosen(profile, curves)
    names = [name for name in drawn if name not in (MEASURED, BY_TOKEN)]
    measured = profile.influence
    band_top = measured.high if MEASURED in drawn and measured.high is not None else []
    axes = _axes(tokens, [*drawn.values(), *([band_top] if band_top else [])], x, y)
    shapes: list[Rect | Area | Line | Text] = [Rect(0, 0, WIDTH, HEIGHT, "page")]
    shapes += _zone(profile, axes)
    shapes += _frame(axes)
    band = _band(profile, axes) if MEASURED in drawn else None
    shapes += [] if band is None else [band]
    for number, name in enumerate(names):
        shapes.append(Line(axes.curve(drawn[name]), f"prediction{number}"))
    for name, style in ((BY_TOKEN, "tokens"), (MEASURED, "measured")):
        if name in drawn:
            shapes.append(Line(axes.curve(drawn[name]), style))
    title = f"{profile.model.id}, {tokens} tokens"
    shapes.append(Text(_LEFT, 24, title, style="heading"))
    shapes.append(Text(_LEFT, 44, _facts(profile), style="small"))
    shapes += _legend(list(drawn), band is not None)
    return Scene(WIDTH, HEIGHT, f"Influence profile of {title}", describe(profile), tuple(shapes))


def chosen(profile: Profile, curves: Sequence[str] | None = None) -> dict[str, list[float]]:
    """Masses of curves by name.

    Args:
        curves: `measured` (smoothed, with its band), `by_token`, and names of predictions; None
            takes the first two and `shown_predictions`.

    Raises:
        InvalidRequest: the profile has no such curve, no influence at all, or more than four
            predictions are asked for.
    """
    if curves is None:
        curves = [MEASURED, BY_TOKEN, *shown_predictions(profile)]
    measured = profile.influence
    known = {MEASURED: measured.smoothed, BY_TOKEN: measured.influence}
    known |= {name: one.influence for name, one in profile.predictions.items()}
    for name in curves:
        if name not in known:
            offered = ", ".join(known)
            raise InvalidRequest(f"`curves`: {name!r:.80} is none of {offered}", field="curves")
    found = {name: known[name] for name in curves}
    if len(found.keys() - {MEASURED, BY_TOKEN}) > PREDICTION_STYLES:
        raise InvalidRequest(
            f"`curves`: at most {PREDICTION_STYLES} predictions stay readable", field="curves"
        )
    if not found:
        raise InvalidRequest("`curves` names none", field="curves")
    return found


def shown_predictions(profile: Profile) -> list[str]:
    """Predictions that are drawn, the most telling first; at most four stay readable."""
    known = [name for name in SHOWN_PREDICTIONS if name in profile.predictions]
    rest = [name for name in profile.predictions if name not in SHOWN_PREDICTIONS]
    return (known + rest)[:PREDICTION_STYLES]


def describe(profile: Profile) -> str:
    """The picture in words, for those who do not see it."""
    shape = _form(profile)
    parts = [
        f"Share of the influence on the last token by position, over {profile.influence.documents} "
        f"documents. Shape: {_shape(profile)}. The first 10% of positions hold "
        f"{shape.primacy_mass:.1%} of it, the last 10% {shape.recency_mass:.1%}."
    ]
    zone = profile.dead_zone
    if profile.dead_zone_verdict == "undecided":
        parts.append("The documents do not decide whether there is a dead zone.")
    elif zone is None:
        parts.append("There is no dead zone.")
    else:
        parts.append(
            f"Dead zone from position {zone.start} to {zone.end - 1} ({zone.fraction:.0%} of the "
            f"prompt), mean density {zone.mean_density:.2f}."
        )
    for name in shown_predictions(profile):
        distance = profile.predictions[name].wasserstein
        parts.append(f"Prediction {name}: Wasserstein distance {distance:.3f}.")
    return " ".join(parts)


def _facts(profile: Profile) -> str:
    form = _form(profile)
    where = zone_words(profile.dead_zone, profile.dead_zone_verdict or "undecided")
    where = "no dead zone" if where == "none" else f"dead zone {where}"
    return (
        f"{_shape(profile, '-')}; {where}; first 10% hold "
        f"{form.primacy_mass:.1%}, last 10% hold {form.recency_mass:.1%}"
    )


def _shape(profile: Profile, joint: str = " ") -> str:
    shape = _form(profile)
    return shape.class_.replace("_", joint) if shape.decided else "undecided"


def _form(profile: Profile) -> Shape:
    assert profile.shape is not None  # measured influence has one
    return profile.shape


def density_range(curves: Iterable[Sequence[float]]) -> tuple[float, float]:
    """Ends of a logarithmic axis for curves of masses: at most three decades below the top."""
    densities = [mass * len(curve) for curve in curves for mass in curve]
    high = max(*densities, 2.0) * 1.2
    floor = high / 10**_DECADES
    positive = [density for density in densities if density >= floor]
    return min([*positive, 0.5]) / 1.2, high


def _axes(
    tokens: int, curves: Sequence[Sequence[float]], across: Across, upwards: Upwards
) -> _Axes:
    return _Axes(tokens, *density_range(curves), across, upwards)


def _zone(profile: Profile, axes: _Axes) -> list[Rect | Text]:
    zone = profile.dead_zone
    if zone is None or profile.dead_zone_verdict == "undecided":
        return []
    left, right = axes.x(zone.start), axes.x(zone.end)
    height = HEIGHT - _TOP - _BOTTOM
    box = Rect(left, _TOP, right - left, height, "zone")
    if right - left < 70:
        return [box]
    return [box, Text((left + right) / 2, _TOP + 16, "dead zone", "middle", "small")]


def _frame(axes: _Axes) -> list[Line | Text]:
    shapes: list[Line | Text] = []
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    for value in _ticks(axes):
        y = axes.y(value)
        style = "uniform" if value == 1 else "grid"
        shapes.append(Line(((_LEFT, y), (right, y)), style))
        shapes.append(Text(_LEFT - 8, y + 4, f"{value:g}", "end", "small"))
    if axes.upwards == "linear":
        shapes.append(Line(((_LEFT, axes.y(1.0)), (right, axes.y(1.0))), "uniform"))
    for token, label in _positions(axes):
        x = axes.x(token)
        shapes.append(Line(((x, bottom), (x, bottom + 5)), "axis"))
        shapes.append(Text(x, bottom + 19, label, "middle", "small"))
    shapes.append(Line(((_LEFT, _TOP), (_LEFT, bottom), (right, bottom)), "axis"))
    middle = (_LEFT + right) / 2
    unit = "tokens" if axes.across == "tokens" else "share of its length"
    shapes.append(Text(middle, bottom + 38, f"position in the prompt ({unit})", "middle", "small"))
    shapes.append(Text(8, _TOP - 10, "density (1 = an even share)", "start", "small"))
    return shapes


def _ticks(axes: _Axes) -> list[float]:
    """1, 2 and 5 times powers of ten, powers alone when the range is wide; or even steps."""
    low, high = axes.low, axes.high
    if axes.upwards == "linear":
        step = _step(high, 6)
        return [number * step for number in range(int(high / step) + 1)]
    digits = (1,) if high / low > 200 else (1, 2, 5)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [float(f"{digit}e{decade}") for decade in decades for digit in digits]
    return [value for value in values if low <= value <= high]


def _positions(axes: _Axes) -> list[tuple[float, str]]:
    """Round positions in tokens and their labels, for at most nine marks."""
    if axes.across == "share":
        return [(axes.tokens * tenth / 10, f"{10 * tenth}%") for tenth in range(0, 11, 2)]
    step = max(1, round(_step(axes.tokens, 8)))
    return [(token, str(token)) for token in range(0, axes.tokens + 1, step)]


def _step(length: float, most: int) -> float:
    """The least of 1, 2 and 5 times powers of ten that fits into `length` at most `most` times."""
    decade = math.floor(math.log10(length / most))
    return next(
        value
        for power in (decade, decade + 1)
        for digit in (1, 2, 5)
        if length / (value := float(f"{digit}e{power}")) <= most
    )


def _band(profile: Profile, axes: _Axes) -> Area | None:
    measured = profile.influence
    if measured.low is None or measured.high is None:
        return None
    upper, lower = axes.curve(measured.high), axes.curve(measured.low)
    return Area((*upper, *reversed(lower)), "band")


def _legend(names: Sequence[str], band: bool) -> list[Line | Text]:
    shapes: list[Line | Text] = []
    own = {
        MEASURED: ("measured", "measured, smoothed" + (" (95% band)" if band else "")),
        BY_TOKEN: ("tokens", "by token"),
    }
    entries = [own[name] for name in own if name in names]
    predicted = [name for name in names if name not in own]
    entries += [(f"prediction{i}", name.replace("_", " ")) for i, name in enumerate(predicted)]
    y = HEIGHT - 18
    x = float(_LEFT)
    for style, text in entries:
        shapes.append(Line(((x, y - 4), (x + 26, y - 4)), style))
        shapes.append(Text(x + 32, y, text, style="small"))
        x += 52 + 6.3 * len(text)
    return shapes
