"""A profile as text: bars of the measured density, the dead zone under them, predictions below."""

from __future__ import annotations

import math
from collections.abc import Sequence

from service.contract.profiles import Profile
from service.render.profile import shown_predictions

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_LABEL = 18
_FLOOR = 1e-3


def chart(profile: Profile, width: int = 80, height: int = 10) -> str:
    """Plain text, at most `width` columns wide.

    Bars are logarithmic in the density (1 = uniform); each column is the mean over its tokens.
    """
    columns = max(10, min(width - 9, profile.request.sequence_length))
    density = _columns(profile.measured.influence, columns)
    low = max(min(*density, 0.5), max(density) * _FLOOR)
    high = max(*density, 2.0)
    lines = ["density (log; 1 = uniform)"]
    for row in range(height, 0, -1):
        top = low * (high / low) ** (row / height)
        bars = "".join(_cell(value, low, high, height, row) for value in density)
        lines.append(f"{top:7.2g} ┤{bars}".rstrip())
    lines.append(f"{low:7.2g} └{'─' * columns}")
    last = str(profile.request.sequence_length - 1)
    lines.append(f"{'':9}0{last:>{columns - 1}}")
    lines += _zone(profile, columns)
    lines += _predictions(profile, width)
    return "\n".join(lines)


def _columns(influence: Sequence[float], columns: int) -> list[float]:
    """Mean density per column; positions are shared between columns by overlap."""
    count = len(influence)
    out = []
    for column in range(columns):
        start, end = column * count / columns, (column + 1) * count / columns
        mass = 0.0
        for i in range(int(start), min(math.ceil(end), count)):
            mass += influence[i] * (min(i + 1, end) - max(i, start))
        out.append(mass * columns)
    return out


def _level(value: float, low: float, high: float) -> float:
    return math.log(max(value, low) / low) / math.log(high / low)


def _cell(value: float, low: float, high: float, height: int, row: int) -> str:
    filled = _level(value, low, high) * height - (row - 1)
    return _EIGHTHS[round(8 * min(max(filled, 0.0), 1.0))]


def _zone(profile: Profile, columns: int) -> list[str]:
    zone, tokens = profile.dead_zone, profile.request.sequence_length
    if zone is None:
        return [f"{'':9}no dead zone"]
    start = int(zone.start / tokens * columns)
    end = max(start + 1, round(zone.end / tokens * columns))
    return [
        f"{'':9}{' ' * start}{'░' * (end - start)}",
        f"{'':9}░ dead zone {zone.start}-{zone.end}",
    ]


def _predictions(profile: Profile, width: int) -> list[str]:
    names = shown_predictions(profile)
    if not names:
        return []
    columns = max(10, min(width - _LABEL - 1, profile.request.sequence_length))
    curves = {"measured": profile.measured.influence}
    curves |= {name: profile.predictions[name].influence for name in names}
    rows = {name: _columns(curve, columns) for name, curve in curves.items()}
    high = max(*(value for row in rows.values() for value in row), 2.0)
    low = max(min(*rows["measured"], 0.5), high * _FLOOR)
    return ["", "the same scale for all:"] + [
        f"{name[:_LABEL]:<{_LABEL}} "
        + "".join(_EIGHTHS[1 + round(7 * min(_level(v, low, high), 1.0))] for v in row)
        for name, row in rows.items()
    ]
