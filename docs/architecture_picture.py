"""Draws docs/images/architecture.svg from the import table of docs/architecture.md.

Each box is a floor of the table. It stands above everything that it may import; lines lead to the
floors right below that it uses. Run: `.venv/bin/python docs/architecture_picture.py`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

DOCS = Path(__file__).parent
WIDTH, HEIGHT, GAP, TOP = 172, 34, 14, 20
RISE = 74
COLOURS = {"lacuna": "#2f6f4f", "service": "#2b5d8a", "workers": "#8a5a2b"}


def levels(table: Mapping[str, set[str]]) -> dict[str, int]:
    """Height of each floor: one above the highest that it may import."""
    found: dict[str, int] = {}

    def height(floor: str) -> int:
        if floor not in found:
            below = [other for other in table[floor] - {floor} if other in table]
            found[floor] = 1 + max(map(height, below), default=-1)
        return found[floor]

    for floor in table:
        height(floor)
    return found


def needed(floor: str, table: Mapping[str, set[str]]) -> set[str]:
    """The floors that one uses and that no other floor below it already uses."""
    direct = {other for other in table[floor] - {floor} if other in table}
    through: set[str] = set()
    for other in direct:
        through |= table[other] - {other}
    return direct - through


def svg(table: Mapping[str, set[str]]) -> str:
    """The picture, for a table as `tests/test_architecture.py` reads it."""
    rows: dict[int, list[str]] = defaultdict(list)
    height = levels(table)
    for floor in sorted(table, key=lambda name: (list(COLOURS).index(name.split(".")[0]), name)):
        rows[height[floor]].append(floor)
    widest = max(map(len, rows.values()))
    wide, top = widest * (WIDTH + GAP) + GAP, max(rows)
    at: dict[str, tuple[float, float]] = {}
    for level, floors in rows.items():
        left = (wide - len(floors) * (WIDTH + GAP) + GAP) / 2
        for number, floor in enumerate(floors):
            at[floor] = (left + number * (WIDTH + GAP), TOP + (top - level) * RISE)
    tall = TOP * 2 + top * RISE + HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tall}" role="img" '
        'aria-label="Which part of Lacuna stands on which">',
        f'<rect width="{wide}" height="{tall}" fill="#ffffff"/>',
    ]
    for floor, (x, y) in at.items():
        for other in sorted(needed(floor, table)):
            to_x, to_y = at[other]
            parts.append(
                f'<line x1="{x + WIDTH / 2:g}" y1="{y + HEIGHT:g}" x2="{to_x + WIDTH / 2:g}" '
                f'y2="{to_y:g}" stroke="#9aa5ad" stroke-width="1.2"/>'
            )
    for floor, (x, y) in at.items():
        colour = COLOURS[floor.split(".")[0]]
        parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="5" fill="{colour}"/>'
            f'<text x="{x + WIDTH / 2:g}" y="{y + HEIGHT / 2 + 4.5:g}" text-anchor="middle" '
            f'font-family="sans-serif" font-size="13" fill="#ffffff">{floor}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Write the picture."""
    text = (DOCS / "architecture.md").read_text()
    rows = re.findall(r"^\| `([a-z_.]+)` \|([^|]*)\|", text, re.MULTILINE)
    table = {floor: {floor, *re.findall(r"`([a-z_.]+)`", allowed)} for floor, allowed in rows}
    (DOCS / "images" / "architecture.svg").write_text(svg(table))


if __name__ == "__main__":
    main()
