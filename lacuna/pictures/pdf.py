"""A scene as PDF: one page of vectors and text, for papers.

The font is Helvetica, which every reader has, so nothing is embedded; letters beyond Latin-1 become
question marks. The same scene gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from lacuna.pictures.scene import STYLES, Area, Line, Point, Rect, Scene, Style, Text

_POINTS = 0.75
"""Points per pixel of the scene."""
_WIDTHS = (
    "278 278 355 556 556 889 667 191 333 333 389 584 278 333 278 278 556 556 556 556 556 556 556 "
    "556 556 556 278 278 584 584 584 556 1015 667 667 722 722 667 611 778 722 278 500 667 556 833 "
    "722 778 667 778 722 667 611 722 667 944 667 667 611 278 278 278 469 556 333 556 556 500 556 "
    "556 278 556 556 222 222 500 222 833 556 556 556 556 333 500 278 556 500 722 500 500 500 334 "
    "260 334 584"
)
_ADVANCE = dict(enumerate(map(int, _WIDTHS.split()), start=32))
"""Widths of Helvetica's letters from the blank to the tilde, in thousandths of the size."""
_OTHER = 556


def pdf(scene: Scene) -> bytes:
    """PDF bytes, 0.75 points a pixel, on the light page."""
    opacities = sorted({STYLES[shape.style].opacity for shape in scene.shapes})
    states = {opacity: f"G{number}" for number, opacity in enumerate(opacities)}
    body = "\n".join(_drawn(shape, states) for shape in scene.shapes)
    # Pixels, with the origin in the upper left corner, as the scene has them.
    height = scene.height * _POINTS
    content = f"{_POINTS} 0 0 {-_POINTS} 0 {height:g} cm 1 j\n{body}".encode("cp1252", "replace")
    resources = " ".join(f"/{name} << /ca {value:g} >>" for value, name in states.items())
    title = _string(scene.title)
    return _document(
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {scene.width * _POINTS:g} {height:g}] "
            f"/Contents 4 0 R /Resources << /Font << /F 5 0 R >> /ExtGState << {resources} >> >> "
            ">>".encode(),
            b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
            b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
            f"<< /Title {title} >>".encode("cp1252", "replace"),
        ]
    )


def _document(objects: Iterable[bytes]) -> bytes:
    """The file: the objects, numbered from 1, and the table of where each begins."""
    out = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")
    starts = []
    for number, content in enumerate(objects, 1):
        starts.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table, count = len(out), len(starts) + 1
    out += b"xref\n0 %d\n0000000000 65535 f \n" % count
    out += b"".join(b"%010d 00000 n \n" % start for start in starts)
    out += b"trailer\n<< /Size %d /Root 1 0 R /Info 6 0 R >>\n" % count
    out += b"startxref\n%d\n%%%%EOF\n" % table
    return bytes(out)


def _drawn(shape: Rect | Area | Line | Text, states: dict[float, str]) -> str:
    style = STYLES[shape.style]
    if isinstance(shape, Text):
        return _text(shape, style)
    if isinstance(shape, Line):
        dash = " ".join(map(str, style.dash))
        return f"{_colour(style)} RG {style.width:g} w [{dash}] 0 d {_path(shape.points)} S"
    if isinstance(shape, Rect):
        path = f"{shape.x:.2f} {shape.y:.2f} {shape.width:.2f} {shape.height:.2f} re"
    else:
        path = _path(shape.points)
    return f"/{states[style.opacity]} gs {_colour(style)} rg {path} f"


def _text(text: Text, style: Style) -> str:
    raw = text.text.encode("cp1252", "replace")
    width = sum(_ADVANCE.get(letter, _OTHER) for letter in raw) * style.size / 1_000
    x = text.x - {"start": 0.0, "middle": width / 2, "end": width}[text.anchor]
    # Upright again: the page is turned over.
    return (
        f"{_colour(style)} rg BT /F {style.size} Tf 1 0 0 -1 {x:.2f} {text.y:.2f} Tm "
        f"{_string(text.text)} Tj ET"
    )


def _string(text: str) -> str:
    escaped = text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
    return f"({escaped})"


def _path(points: Iterable[Point]) -> str:
    return " ".join(
        f"{x:.2f} {y:.2f} {'l' if number else 'm'}" for number, (x, y) in enumerate(points)
    )


def _colour(style: Style) -> str:
    red, green, blue = bytes.fromhex(style.light[1:])
    return f"{red / 255:.3g} {green / 255:.3g} {blue / 255:.3g}"
