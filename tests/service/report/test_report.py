"""What the terminal says of a profile and of a comparison."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from service.contract.curves import DeadZone, Interval
from service.contract.profiles import NeedleCurve
from service.report import comparison
from service.report import profile as profiles
from service.usecases.comparisons import compare


def console() -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=100, color_system=None), text


def test_retrieval_is_printed_by_depth(make_profile: Any) -> None:
    plain = make_profile(tokens=64)
    needle = NeedleCurve(
        depth=[0.0, 0.5],
        position=[0, 32],
        log_probability=[-1.25, -2.5],
        low=[-1.5, -3.0],
        high=[-1.0, -2.0],
        baseline=-18.4,
        facts=7,
        spearman_with_influence=0.62,
    )
    measured = plain.measured.model_copy(update={"needle": needle})
    for profile, there in ((plain, False), (plain.model_copy(update={"measured": measured}), True)):
        out, text = console()
        profiles.report(out, profile)
        said = text.getvalue()
        for words in ("7 facts", "-2.50", "-3.00..-2.00", "-18.40 without the fact", "0.62"):
            assert (words in said) == there


def test_a_zone_that_not_all_draws_have_says_so(make_profile: Any) -> None:
    band = Interval(low=1, high=9)
    for support, there in ((0.64, True), (1.0, False), (None, False)):
        zone = DeadZone(
            start=5, end=9, fraction=0.1, mean_density=0.5, min_density=0.4, argmin=6,
            threshold=0.75, start_band=band, end_band=band, support=support,
        )  # fmt: skip
        out, text = console()
        profiles.report(out, make_profile(tokens=64).model_copy(update={"dead_zone": zone}))
        assert ("64%" in text.getvalue()) == there


def test_a_comparison_says_what_else_differs(make_profile: Any) -> None:
    a = make_profile(tokens=64)
    request = a.request.model_copy(update={"positional_encoding": "off"})
    for b, there in ((a, False), (a.model_copy(update={"request": request}), True)):
        out, text = console()
        curve = a.measured.influence
        comparison.report(out, compare(a, b), curve, curve)
        assert ("note: different positional encodings" in text.getvalue()) == there
