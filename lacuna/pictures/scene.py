"""What is drawn, free of any format: shapes in pixels, each with the name of its style.

A scene as SVG: accessible, and light or dark as the page around it.

A scene as PNG, by Pillow, which brings its own font.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import hypot
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

from PIL import Image, ImageColor, ImageDraw, ImageFont

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


_SCALE = 2
"""Pixels per unit of the scene in the file."""
_OVERSAMPLE = 2
"""Drawn this much larger and averaged down: Pillow's lines have hard edges."""
_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}


def png(scene: Scene) -> bytes:
    """PNG bytes at twice the scene's size, on the light page."""
    factor = _SCALE * _OVERSAMPLE
    size = (scene.width * factor, scene.height * factor)
    image = Image.new("RGB", size, STYLES["page"].light)
    draw = ImageDraw.Draw(image, "RGBA")
    texts = []
    for shape in scene.shapes:
        if isinstance(shape, Text):
            texts.append(shape)
        else:
            _shape(draw, shape, factor)
    image = image.resize((scene.width * _SCALE, scene.height * _SCALE), Image.Resampling.LANCZOS)
    # Text is antialiased by the font's own rasteriser, so it is drawn at the final size.
    pen = ImageDraw.Draw(image)
    for text in texts:
        style = STYLES[text.style]
        font = ImageFont.load_default(style.size * _SCALE)
        at = (text.x * _SCALE, text.y * _SCALE)
        pen.text(at, text.text, fill=style.light, font=font, anchor=_ANCHORS[text.anchor])
    out = io.BytesIO()
    image.save(out, "PNG", optimize=True)
    return out.getvalue()


def _shape(draw: ImageDraw.ImageDraw, shape: Rect | Area | Line, factor: int) -> None:
    style = STYLES[shape.style]
    if isinstance(shape, Rect):
        corner = (shape.x * factor, shape.y * factor)
        far = ((shape.x + shape.width) * factor, (shape.y + shape.height) * factor)
        draw.rectangle((corner, far), fill=_fill(style))
    elif isinstance(shape, Area):
        draw.polygon([(x * factor, y * factor) for x, y in shape.points], fill=_fill(style))
    else:
        width = max(1, round(style.width * factor))
        for stretch in _dashes(shape.points, style.dash):
            points = [(x * factor, y * factor) for x, y in stretch]
            draw.line(points, fill=style.light, width=width, joint="curve")


def _fill(style: Style) -> tuple[int, int, int, int]:
    red, green, blue = ImageColor.getrgb(style.light)[:3]
    return red, green, blue, round(255 * style.opacity)


def _dashes(points: Sequence[Point], pattern: Sequence[int]) -> Iterator[list[Point]]:
    """The drawn stretches of a dashed polyline, in the units of the scene."""
    if not pattern:
        yield list(points)
        return
    number, left, drawn = 0, float(pattern[0]), [points[0]]
    for start, end in pairwise(points):
        length = hypot(end[0] - start[0], end[1] - start[1])
        done = 0.0
        while length - done > left:
            done += left
            share = done / length
            at = (start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1]))
            if number % 2 == 0:
                yield [*drawn, at]
            number += 1
            left, drawn = float(pattern[number % len(pattern)]), [at]
        left -= length - done
        drawn.append(end)
    if number % 2 == 0 and len(drawn) > 1:
        yield drawn
