from __future__ import annotations

import io
import re
import subprocess
import sys
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lacuna.contract.errors import InvalidRequest
from lacuna.contract.profiles import Profile
from lacuna.contract.recall import RecallCurve
from lacuna.pictures import profile_png, profile_svg, recall_png, recall_svg
from lacuna.pictures.profile import HEIGHT, WIDTH, scene
from lacuna.pictures.scene import STYLES, Line, Rect, Scene, Text, svg
from lacuna.pictures.terminal import chart, shown

SVG = "{http://www.w3.org/2000/svg}"


def with_influence(profile: Profile, influence: list[float]) -> Profile:
    measured = profile.measured.model_copy(
        update=dict.fromkeys(("influence", "smoothed", "low", "high"), influence)
    )
    return profile.model_copy(update={"measured": measured})


def points(element: ET.Element) -> list[tuple[float, float]]:
    return [
        (float(x), float(y)) for x, y in (p.split(",") for p in element.attrib["points"].split())
    ]


def test_the_svg_shows_the_curve_its_band_and_the_dead_zone(profile: Profile) -> None:
    root = ET.fromstring(profile_svg(profile))
    by_class: dict[str, list[ET.Element]] = {}
    for element in root.iter():
        by_class.setdefault(element.attrib.get("class", ""), []).append(element)
    (measured,) = (e for e in by_class["measured"] if len(points(e)) > 2)
    curve = points(measured)
    (tokens,) = (e for e in by_class["tokens"] if len(points(e)) > 2)
    lines = {"smoothed": curve, "influence": points(tokens)}
    for name, line in lines.items():
        values = getattr(profile.measured, name)
        heights = [-y for _, y in line]
        order = sorted(range(64), key=heights.__getitem__)
        assert order == sorted(range(64), key=values.__getitem__)
    assert len(points(by_class["band"][0])) == 2 * 64
    assert profile.dead_zone is not None
    (zone,) = by_class["zone"]
    left, width = float(zone.attrib["x"]), float(zone.attrib["width"])
    inside = [j for j, (x, _) in enumerate(curve) if left < x < left + width]
    assert inside == list(range(profile.dead_zone.start, profile.dead_zone.end))


def test_the_svg_is_accessible_and_self_contained(profile: Profile) -> None:
    text = profile_svg(profile).decode()
    root = ET.fromstring(text)
    assert root.attrib["role"] == "img"
    described = root.attrib["aria-labelledby"].split()
    assert [root[0].attrib["id"], root[1].attrib["id"]] == described
    assert "Dead zone from position" in (root[1].text or "")
    assert "prefers-color-scheme:dark" in text
    assert "<script" not in text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_every_text_is_escaped(profile: Profile) -> None:
    hostile = profile.model_copy(
        update={"predictions": {'"><script>x</script>&': profile.predictions["residual"]}}
    )
    root = ET.fromstring(profile_svg(hostile))
    assert root.find(f".//{SVG}script") is None


def test_the_png_is_the_same_picture(profile: Profile) -> None:
    image = Image.open(io.BytesIO(profile_png(profile)))
    assert image.size == (2 * WIDTH, 2 * HEIGHT)
    drawn = scene(profile)
    curve = next(s for s in drawn.shapes if isinstance(s, Line) and s.style == "measured")
    blue = tuple(int(STYLES["measured"].light[i : i + 2], 16) for i in (1, 3, 5))
    hits = 0
    for x, y in curve.points:
        box = (round(2 * x) - 3, round(2 * y) - 3, round(2 * x) + 4, round(2 * y) + 4)
        found = np.asarray(image.crop(box), dtype=int).reshape(-1, 3)
        hits += bool((abs(found - blue).max(axis=1) < 40).any())
    assert hits == len(curve.points)


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=70),
    st.integers(1, 131_072),
    st.integers(20, 200),
)
def test_any_curve_can_be_drawn(make_profile: Any, raw: list[float], n: int, width: int) -> None:
    total = sum(raw)
    influence = [value / total for value in raw] if total > 0 else [1.0] + [0.0] * (len(raw) - 1)
    profile = with_influence(make_profile(tokens=8), influence)
    request = profile.request.model_copy(update={"sequence_length": max(n, len(influence))})
    update = {"request": request, "dead_zone": None, "dead_zone_verdict": "none"}
    profile = profile.model_copy(update=update)
    drawn = scene(profile)
    for shape in drawn.shapes:
        if isinstance(shape, Line):
            assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in shape.points)
    ET.fromstring(svg(drawn))
    lines = chart(profile, width=width).splitlines()
    assert all(len(line) <= max(width, 40) for line in lines)


def test_the_terminal_chart_marks_the_dead_zone(profile: Profile) -> None:
    lines = chart(profile, width=73).splitlines()
    (ruler,) = (line for line in lines if "░" in line and "dead zone" not in line)
    assert profile.dead_zone is not None
    assert ruler.index("░") - 9 == profile.dead_zone.start
    assert len(ruler) - 9 == profile.dead_zone.end
    top = next(line for line in lines if "┤" in line)
    assert top.endswith("█")
    none = profile.model_copy(update={"dead_zone": None, "dead_zone_verdict": "none"})
    assert "no dead zone" in chart(none)


def test_what_the_documents_do_not_decide_is_not_drawn(make_profile: Any) -> None:
    few = make_profile(tokens=64, documents=8)
    assert few.dead_zone is not None
    drawn = scene(few)
    assert not any(isinstance(s, Rect) and s.style == "zone" for s in drawn.shapes)
    assert not any(s.style == "band" for s in drawn.shapes)
    assert "The documents do not decide" in drawn.description
    assert "Shape: undecided" in drawn.description
    assert "░" not in chart(few)
    assert "dead zone: undecided" in chart(few)


def test_a_flat_curve_has_flat_bars(profile: Profile) -> None:
    flat = with_influence(profile, [1 / 64] * 64)
    rows = [line.split("┤")[1] for line in chart(flat).splitlines() if "┤" in line]
    assert all(len(set(row.ljust(64))) == 1 for row in rows)


def test_dashes_and_fonts_are_drawn_in_every_style() -> None:
    shapes = [Rect(0, 0, 50, 50, "page"), Text(5, 10, "a&b", style="label")]
    shapes += [
        Line(((5, 10 + i), (45, 10 + i)), name)  # type: ignore[list-item]
        for i, name in enumerate(STYLES)
    ]
    drawn = Scene(50, 50, "t", "d", tuple(shapes))
    assert ET.fromstring(svg(drawn)) is not None


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_tiny_profiles_are_drawn(make_profile: Any, tokens: int) -> None:
    tiny = make_profile(tokens=tokens)
    assert profile_svg(tiny)
    assert profile_png(tiny)
    assert chart(tiny)


def test_svg_and_terminal_charts_need_no_pillow() -> None:
    code = "import sys; sys.modules['PIL'] = None; import lacuna.pictures.terminal"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_recall_has_a_panel_for_each_probe(profile: Profile, recall_curve: RecallCurve) -> None:
    flat = recall_curve.model_copy(
        update={"verdict": "flat", "p": None, "spearman_with_influence": None}
        | dict.fromkeys(("low", "high", "simultaneous_low", "simultaneous_high"))
    )
    both = profile.model_copy(update={"recall": {"facts": recall_curve, "pairs": flat}})
    root = ET.fromstring(recall_svg(both))
    lines = [e for e in root.iter() if e.attrib.get("class") == "measured" and len(points(e)) == 5]
    assert len(lines) == 2
    for line in lines:
        heights = [-y for _, y in points(line)]
        assert np.argsort(heights).tolist() == np.argsort(recall_curve.probability).tolist()
    areas = {e.attrib["class"]: points(e) for e in root.iter(f"{SVG}polygon")}
    assert {style: len(area) for style, area in areas.items()} == {"band": 10, "zone": 10}
    text = " ".join(e.text or "" for e in root.iter())
    for words in ("Verdict: varies", "Verdict: flat", "rank agreement with influence 0.90"):
        assert words in text
    image = Image.open(io.BytesIO(recall_png(both)))
    assert image.size[1] > Image.open(io.BytesIO(profile_png(both))).size[1]
    with pytest.raises(InvalidRequest, match="recall was not measured"):
        recall_svg(profile)


def test_recall_near_the_floor_is_drawn(profile: Profile, recall_curve: RecallCurve) -> None:
    nothing = recall_curve.model_copy(
        update=dict.fromkeys(("probability", "low", "high"), [0.0] * 5)
        | dict.fromkeys(("simultaneous_low", "simultaneous_high"), [0.0] * 5)
    )
    shown = profile.model_copy(update={"recall": {"facts": nothing}})
    assert b"<polyline" in recall_svg(shown)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "cp437", "cp850"])
def test_a_terminal_without_unicode_gets_an_ascii_chart(profile: Profile, encoding: str) -> None:
    whole = chart(profile)
    plain = shown(whole, encoding)
    assert plain.isascii()
    assert "?" not in plain
    assert [len(line) for line in plain.splitlines()] == [len(line) for line in whole.splitlines()]
    # Higher bars have more ink: the full cell and the marks of the scale differ.
    assert len({whole.count("█"), plain.count("#")}) == 1
    assert shown(whole, "utf-8") == shown(whole, None) == whole
    assert shown(whole, "no-such-encoding").isascii()
