"""Curves as text: bars of a density, the dead zone under them, several curves on one scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from lacuna.contract.profiles import DeadZone, Profile
from lacuna.pictures.profile import shown_predictions

_EIGHTHS = " ▁▂▃▄▅▆▇█"
ASCII = str.maketrans(
    {
        **dict(zip(_EIGHTHS, " .:-=+*%#", strict=True)),
        **dict(zip("▏▎▍▌▋▊▉", "....:::", strict=True)),
        **dict(zip("┤└─░–−×", "|+-~--x", strict=True)),
        "…": "...",
    }
)
"""For `str.translate`: the chart, and what stands around it, for a terminal without Unicode."""
_LABEL = 18
_FLOOR = 1e-3


def chart(profile: Profile, width: int = 80, height: int = 10) -> str:
    """A profile as plain text, at most `width` columns wide: smoothed curve, then predictions.

    Raises:
        InvalidRequest: no influence was measured.
    """
    tokens = profile.request.sequence_length
    measured = profile.influence.smoothed
    undecided = profile.dead_zone_verdict == "undecided"
    text = bars(measured, tokens, profile.dead_zone, width, height, undecided=undecided)
    names = shown_predictions(profile)
    if not names:
        return text
    curves = {"measured": measured}
    curves |= {name: profile.predictions[name].influence for name in names}
    return f"{text}\n\n{side_by_side(curves, tokens, width)}"


def shown(text: str, encoding: str | None) -> str:
    """A chart as a terminal of this encoding can show it: whole, or in ASCII.

    Args:
        encoding: of the terminal; None can show everything.
    """
    try:
        text.encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return text.translate(ASCII)
    return text


def bars(
    influence: Sequence[float],
    tokens: int,
    zone: DeadZone | None,
    width: int = 80,
    height: int = 10,
    *,
    undecided: bool = False,
) -> str:
    """One curve as plain text.

    Bars are logarithmic in the density (1 = an even share). Each column is the mean over its
    tokens.

    Args:
        influence: masses of the positions, or of equal bins of them; they sum to 1.
        tokens: length of the prompt.
        zone: its dead zone, in tokens.
        undecided: the documents do not show it, so it is not drawn.
    """
    columns = max(10, min(width - 9, tokens))
    density = _columns(influence, columns)
    low = max(min(*density, 0.5), max(density) * _FLOOR)
    high = max(*density, 2.0)
    lines = ["density (log; 1 = an even share)"]
    for row in range(height, 0, -1):
        top = low * (high / low) ** (row / height)
        drawn = "".join(_cell(value, low, high, height, row) for value in density)
        lines.append(f"{top:7.2g} ┤{drawn}".rstrip())
    lines.append(f"{low:7.2g} └{'─' * columns}")
    lines.append(f"{'':9}0{tokens - 1:>{columns - 1}}")
    if undecided:
        return "\n".join([*lines, f"{'':9}dead zone: undecided"])
    return "\n".join(lines + _zone(zone, tokens, columns))


def side_by_side(curves: Mapping[str, Sequence[float]], tokens: int, width: int = 80) -> str:
    """A line of bars for each curve, on one scale.

    Args:
        curves: by name, each summing to 1; the first one decides where the scale begins.
        tokens: length of the prompt.
    """
    columns = max(10, min(width - _LABEL - 1, tokens))
    rows = {name: _columns(curve, columns) for name, curve in curves.items()}
    high = max(*(value for row in rows.values() for value in row), 2.0)
    low = max(min(*next(iter(rows.values())), 0.5), high * _FLOOR)
    lines = ["the same scale for all:"]
    for name, row in rows.items():
        drawn = "".join(_EIGHTHS[1 + round(7 * min(_level(v, low, high), 1.0))] for v in row)
        lines.append(f"{name[:_LABEL]:<{_LABEL}} {drawn}")
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


def _zone(zone: DeadZone | None, tokens: int, columns: int) -> list[str]:
    if zone is None:
        return [f"{'':9}no dead zone"]
    start = int(zone.start / tokens * columns)
    end = max(start + 1, round(zone.end / tokens * columns))
    return [
        f"{'':9}{' ' * start}{'░' * (end - start)}",
        f"{'':9}░ dead zone {zone.span}",
    ]
