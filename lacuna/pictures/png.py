"""A scene as PNG. Needs Pillow, which brings its own font."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import hypot

from PIL import Image, ImageColor, ImageDraw, ImageFont

from lacuna.pictures.scene import STYLES, Area, Line, Point, Rect, Scene, Style, Text

_SCALE = 2
"""Pixels per unit of the scene in the file."""
_OVERSAMPLE = 2
"""Shapes are drawn this much larger and scaled down, because Pillow's lines have hard edges."""
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
    # The font's rasteriser smooths text itself, so text is drawn at the final size.
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
    """Draws one shape, `factor` pixels per unit of the scene."""
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
    """The dashes of a polyline, each a polyline, in the units of the scene.

    Args:
        points: of the whole polyline.
        pattern: lengths of dashes and gaps in turn; empty for a solid line.
    """
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
