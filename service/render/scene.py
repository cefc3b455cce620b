"""What is drawn, free of any format: shapes in pixels, each with the name of its style."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Point = tuple[float, float]


@dataclass(frozen=True)
class Rect:
    """An axis-parallel box, filled."""

    x: float
    y: float
    width: float
    height: float
    style: str


@dataclass(frozen=True)
class Area:
    """A filled polygon."""

    points: tuple[Point, ...]
    style: str


@dataclass(frozen=True)
class Line:
    """An open polyline."""

    points: tuple[Point, ...]
    style: str


@dataclass(frozen=True)
class Text:
    """One line of text; `y` is its baseline."""

    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "start"
    style: str = "label"


@dataclass(frozen=True)
class Scene:
    """A picture: size in pixels, shapes from back to front, and its description in words."""

    width: int
    height: int
    title: str
    description: str
    shapes: tuple[Rect | Area | Line | Text, ...]


@dataclass(frozen=True)
class Style:
    """How one kind of shape looks, on a light and on a dark page."""

    light: str
    dark: str
    opacity: float = 1.0
    width: float = 1.0
    dash: tuple[int, ...] = field(default=())
    size: int = 12


# Okabe and Ito's palette: told apart with any kind of colour vision. Dashes tell lines apart
# where there is no colour at all.
STYLES: dict[str, Style] = {
    "page": Style("#ffffff", "#16181d"),
    "zone": Style("#9a9a9a", "#8a8f99", opacity=0.22),
    "grid": Style("#d9d9d9", "#33373f"),
    "axis": Style("#555555", "#a8adb7"),
    "uniform": Style("#555555", "#a8adb7", dash=(2, 3)),
    "band": Style("#0072b2", "#56b4e9", opacity=0.25),
    "measured": Style("#0072b2", "#56b4e9", width=2.0),
    "prediction0": Style("#d55e00", "#e8833a", width=1.5, dash=(7, 3)),
    "prediction1": Style("#009e73", "#2fc79b", width=1.5, dash=(4, 3)),
    "prediction2": Style("#aa5585", "#d98cb8", width=1.5, dash=(2, 2)),
    "prediction3": Style("#8a7600", "#f0e442", width=1.5, dash=(9, 3, 2, 3)),
    "label": Style("#222222", "#e6e8ec"),
    "small": Style("#555555", "#a8adb7", size=11),
    "heading": Style("#111111", "#f2f3f5", size=15),
}
PREDICTION_STYLES = 4
