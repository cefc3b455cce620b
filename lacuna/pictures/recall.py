"""Recall by depth as a picture: a panel for each probe, with the bands of level and of shape.

The wide band says how often facts are recalled at a depth. The narrow one says how depths differ:
facts differ more than depths do, and the same facts stand at every depth.
"""

from __future__ import annotations

from lacuna.contract.profiles import Profile
from lacuna.contract.recall import RecallCurve, recall_curves
from lacuna.pictures.scene import Area, Line, Point, Rect, Scene, Text

WIDTH = 860
PANEL = 300
_LEFT, _RIGHT, _HEAD, _TOP, _BOTTOM, _LEGEND = 62, 24, 36, 46, 44, 34
_MARKS = 4

Shape = Rect | Area | Line | Text


def scene(profile: Profile) -> Scene:
    """The recall curves of a profile.

    Raises:
        InvalidRequest: recall was not measured.
    """
    curves = recall_curves(profile.recall)
    title = f"{profile.model.id}, {profile.request.sequence_length} tokens"
    height = _HEAD + PANEL * len(curves) + _LEGEND
    shapes: list[Shape] = [Rect(0, 0, WIDTH, height, "page")]
    shapes.append(Text(_LEFT, 24, f"Recall by depth: {title}", style="heading"))
    for number, (name, curve) in enumerate(curves.items()):
        shapes += _panel(name, curve, _HEAD + PANEL * number)
    shapes += _legend(height - 14, any(curve.low for curve in curves.values()))
    described = " ".join(describe(name, curve) for name, curve in curves.items())
    return Scene(WIDTH, height, f"Recall by depth of {title}", described, tuple(shapes))


def describe(name: str, curve: RecallCurve) -> str:
    """A curve in words, for those who do not see it."""
    parts = [
        f"{value:.3f} at token {at:.0f}"
        for at, value in zip(curve.position, curve.probability, strict=True)
    ]
    return f"Probability of recalling {name}: {', '.join(parts)}. Verdict: {curve.verdict}."


def facts_line(curve: RecallCurve) -> str:
    """Verdict, controls and agreement of a curve in one line."""
    p = "" if curve.p is None else f" (p = {curve.p:.3g})"
    checks, rank = curve.controls, curve.spearman_with_influence
    parts = [
        f"{curve.verdict}{p}",
        f"{curve.groups} groups of {curve.facts} facts",
        f"fact alone {checks.oracle:.3f}, closed book {checks.closed_book:.3f}",
    ]
    if rank is not None:
        ranks = f"{rank.value:.2f} [{rank.low:.2f}, {rank.high:.2f}]"
        parts.append(f"rank agreement with influence {ranks}")
    return "; ".join(parts)


def _panel(name: str, curve: RecallCurve, top: float) -> list[Shape]:
    upper, lower = top + _TOP, top + PANEL - _BOTTOM
    highest = max(*curve.probability, *(curve.high or ()), *(curve.simultaneous_high or ()), 1e-6)
    limit = min(1.0, 1.1 * highest)

    def x(token: float) -> float:
        return _LEFT + token / curve.prompt_tokens * (WIDTH - _LEFT - _RIGHT)

    def y(probability: float) -> float:
        return lower - min(probability / limit, 1.0) * (lower - upper)

    def points(values: list[float]) -> tuple[Point, ...]:
        return tuple((x(at), y(v)) for at, v in zip(curve.position, values, strict=True))

    shapes: list[Shape] = [
        Text(_LEFT, top + 18, f"{name} ({curve.form} prompts)", style="label"),
        Text(_LEFT, top + 34, facts_line(curve), style="small"),
    ]
    for mark in range(_MARKS + 1):
        value = limit * mark / _MARKS
        shapes.append(Line(((_LEFT, y(value)), (WIDTH - _RIGHT, y(value))), "grid"))
        shapes.append(Text(_LEFT - 8, y(value) + 4, f"{value:.2g}", "end", "small"))
    bands = (
        (curve.low, curve.high, "zone"),
        (curve.simultaneous_low, curve.simultaneous_high, "band"),
    )
    for low, high, style in bands:
        if low is not None and high is not None:
            shapes.append(Area((*points(high), *reversed(points(low))), style))
    for at in curve.position:
        shapes.append(Line(((x(at), lower), (x(at), lower + 5)), "axis"))
        shapes.append(Text(x(at), lower + 19, f"{at:.0f}", "middle", "small"))
    shapes.append(Line(((_LEFT, upper), (_LEFT, lower), (WIDTH - _RIGHT, lower)), "axis"))
    shapes.append(Line(points(curve.probability), "measured"))
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    shapes.append(Text(middle, lower + 36, "token at which the fact begins", "middle", "small"))
    return shapes


def _legend(y: float, banded: bool) -> list[Shape]:
    shapes: list[Shape] = [
        Line(((_LEFT, y - 4), (_LEFT + 26, y - 4)), "measured"),
        Text(_LEFT + 32, y, "probability of a right answer", style="small"),
    ]
    if banded:
        for left, style, text in (
            (270, "band", "differences between depths, all together (95%)"),
            (590, "zone", "level at each depth (95%)"),
        ):
            shapes.append(Rect(left, y - 10, 26, 12, style))
            shapes.append(Text(left + 32, y, text, style="small"))
    return shapes
