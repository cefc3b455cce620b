"""A scene as SVG: accessible, and light or dark as the page around it."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

from service.render.scene import STYLES, Area, Line, Point, Rect, Scene, Style, Text

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
