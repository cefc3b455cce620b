"""A picture as shapes in pixels, each with the name of its style; and the picture as SVG.

The SVG describes itself to screen readers, and is light or dark as the page around it. `png` draws
the same shapes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

Point = tuple[float, float]


@dataclass(frozen=True)
class Rect:
    """A filled box; `x` and `y` are its upper left corner."""

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
    """One line of text; `x` is its `anchor`, `y` its baseline."""

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


# Okabe and Ito's palette: people with any kind of colour vision can tell these colours apart. The
# dashes differ too, for prints without colour.
STYLES: dict[str, Style] = {
    "page": Style("#ffffff", "#16181d"),
    "zone": Style("#9a9a9a", "#8a8f99", opacity=0.22),
    "grid": Style("#d9d9d9", "#33373f"),
    "axis": Style("#555555", "#a8adb7"),
    "uniform": Style("#555555", "#a8adb7", dash=(2, 3)),
    "band": Style("#0072b2", "#56b4e9", opacity=0.25),
    "measured": Style("#0072b2", "#56b4e9", width=2.0),
    "tokens": Style("#0072b2", "#56b4e9", width=0.6),
    "prediction0": Style("#d55e00", "#e8833a", width=1.5, dash=(7, 3)),
    "prediction1": Style("#009e73", "#2fc79b", width=1.5, dash=(4, 3)),
    "prediction2": Style("#aa5585", "#d98cb8", width=1.5, dash=(2, 2)),
    "prediction3": Style("#8a7600", "#f0e442", width=1.5, dash=(9, 3, 2, 3)),
    "label": Style("#222222", "#e6e8ec"),
    "small": Style("#555555", "#a8adb7", size=11),
    "heading": Style("#111111", "#f2f3f5", size=15),
}
PREDICTION_STYLES = 4
"""Number of predictions that have a style of their own."""

_FONT = "system-ui,-apple-system,'Segoe UI',Roboto,sans-serif"


def svg(scene: Scene) -> bytes:
    """UTF-8 bytes of a self-contained SVG document (no script, nothing external)."""
    used = {shape.style for shape in scene.shapes}
    body = "\n".join(_element(shape) for shape in scene.shapes)
    document = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {scene.width} {scene.height}" '
        f'width="{scene.width}" height="{scene.height}" role="img" '
        f'aria-labelledby="lacuna-title lacuna-description">\n'
        f'<title id="lacuna-title">{escape(scene.title)}</title>\n'
        f'<desc id="lacuna-description">{escape(scene.description)}</desc>\n'
        f"<style>{_css(scene, used)}</style>\n{body}\n</svg>\n"
    )
    return document.encode()


def _css(scene: Scene, used: set[str]) -> str:
    kinds = {shape.style: type(shape) for shape in scene.shapes}
    names = [name for name in STYLES if name in used]
    light = "".join(_rule(name, STYLES[name], kinds[name]) for name in names)
    dark = "".join(
        f".{name}{{{'stroke' if kinds[name] is Line else 'fill'}:{STYLES[name].dark}}}"
        for name in names
    )
    return f"text{{font-family:{_FONT}}}{light}@media(prefers-color-scheme:dark){{{dark}}}"


def _rule(name: str, style: Style, kind: type) -> str:
    if kind is Line:
        dash = f";stroke-dasharray:{' '.join(map(str, style.dash))}" if style.dash else ""
        return (
            f".{name}{{fill:none;stroke:{style.light};stroke-width:{style.width:g}"
            f";stroke-linejoin:round{dash}}}"
        )
    if kind is Text:
        return f".{name}{{fill:{style.light};font-size:{style.size}px}}"
    opacity = f";fill-opacity:{style.opacity:g}" if style.opacity < 1 else ""
    return f".{name}{{fill:{style.light}{opacity}}}"


def _element(shape: Rect | Area | Line | Text) -> str:
    name = quoteattr(shape.style)
    if isinstance(shape, Rect):
        return (
            f'<rect class={name} x="{shape.x:.2f}" y="{shape.y:.2f}" '
            f'width="{shape.width:.2f}" height="{shape.height:.2f}"/>'
        )
    if isinstance(shape, Area):
        return f'<polygon class={name} points="{_points(shape.points)}"/>'
    if isinstance(shape, Line):
        return f'<polyline class={name} points="{_points(shape.points)}"/>'
    return (
        f'<text class={name} x="{shape.x:.2f}" y="{shape.y:.2f}" '
        f'text-anchor="{shape.anchor}">{escape(shape.text)}</text>'
    )


def _points(points: Iterable[Point]) -> str:
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
