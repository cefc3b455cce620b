"""Recall of two profiles on the page: what is compared, its curves, its change, and the words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import numpy as np
import pytest

from lacuna.comparisons import compare
from lacuna.contract.errors import InvalidRequest
from lacuna.contract.profiles import Profile
from lacuna.contract.recall import RecallCurve
from service.local.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from playwright.sync_api import Page, expect

A, B, C, D = (letter * 32 for letter in "abcd")


def answered(page: Page, profiles: list[Profile], summary: dict[str, Any]) -> list[str]:
    """Answers with these profiles, and compares them as the service does; notes what is asked."""
    by_id = {one.id: one for one in profiles}
    listed = [
        summary
        | {
            "id": one.id, "model": one.model.id, "objective": one.request.objective,
            "sequence_length": one.request.sequence_length, "recall": one.recall is not None,
            "shape": one.shape and one.shape.class_, "dead_zone": None,
            "dead_zone_verdict": one.dead_zone_verdict,
        }
        for one in profiles
    ]  # fmt: skip
    asked: list[str] = []

    def compared(route: Any) -> Any:
        query = {
            name: values[0] for name, values in parse_qs(urlsplit(route.request.url).query).items()
        }
        asked.append(query.get("source", ""))
        source: Any = query.get("source")
        try:
            a, b = by_id[query["a"]], by_id[query["b"]]
            found = compare(a, b, source=source, bins=int(query["bins"]))
        except InvalidRequest as error:
            return route.fulfill(status=422, json={"detail": str(error)})
        return route.fulfill(json=found.model_dump(mode="json", by_alias=True))

    page.route("**/v1/comparisons?*", compared)
    page.route(
        "**/v1/profiles?*", lambda route: route.fulfill(json={"items": listed, "next": None})
    )
    for one in profiles:
        page.route(f"**/v1/profiles/{one.id}?*", giving(one))
    return asked


def giving(profile: Profile) -> Callable[[Any], None]:
    """What answers a request with this profile."""
    body = profile.model_dump(mode="json", by_alias=True)
    return lambda route: route.fulfill(json=body)


def fallen(groups: int) -> tuple[list[list[float]], list[list[float]]]:
    """Recall of the same groups before and after: .2 lower at the depth in the middle."""
    generator = np.random.default_rng(3)
    before = np.clip(
        generator.beta(2, 2, (groups, 1)) + generator.normal(0, 0.03, (groups, 5)), 0, 1
    )
    after = np.clip(before + generator.normal(0, 0.03, (groups, 5)), 0, 1)
    after[:, 2] = np.clip(after[:, 2] - 0.2, 0, 1)
    return before.tolist(), after.tolist()


@pytest.mark.parametrize("width", [360, 1280])
def test_recall_is_compared_where_there_is_nothing_else(
    stack: Stack,
    filled: str,
    open_page: Any,
    make_served: Callable[..., Profile],
    make_profile: Callable[..., Profile],
    recall_curve: RecallCurve,
    width: int,
) -> None:
    summary = httpx.get(f"{stack.url}/v1/profiles?limit=1").json()["items"][0]
    before, after = fallen(40)
    first, second = make_served(A, by_group=before), make_served(B, by_group=after)
    both, alone = (make_profile(identifier=one, documents=2) for one in (C, D))
    both = both.model_copy(update={"recall": {"facts": recall_curve}})
    watched = open_page("about:blank", width=width)
    page: Page = watched.page
    asked = answered(page, [first, second, both, alone], summary)
    found = compare(first, second)

    page.goto(f"{stack.url}/#/compare?a={A}&b={B}")
    expect(page.locator("#compare-lead")).to_contain_text(found.summary)
    assert asked == [""], "the service chooses recall by itself"
    expect(page.locator("#compare-source")).to_have_text("recall by depth")
    expect(page.locator("#compare-influence")).to_be_hidden()
    box = page.locator("#compare-recall")
    expect(box.locator("h3")).to_have_text(
        ["Recall of facts by depth", "What changed, on the same groups of facts"]
    )
    curves, change = box.locator(".plot").nth(0), box.locator(".plot").nth(1)
    expect(curves.locator("path.band")).to_have_count(2)
    expect(change.locator("path.band")).to_have_count(1)
    for _ in range(2):
        change.press("ArrowRight")
    reading = change.get_attribute("aria-valuetext") or ""
    middle = found.recall[0].depths[2]
    assert middle.low is not None
    assert middle.high is not None
    numbers = [float(f"{100 * one:.1f}") for one in (middle.value, middle.low, middle.high)]
    written = "{:g} pt ({:g} pt to {:g} pt)".format(*numbers)
    assert reading.startswith("a fact at 45% of the prompt: ")
    assert reading.endswith(written)
    expect(box.locator("[data-verdict=facts]")).to_contain_text("A difference: at most 1 in 20")
    expect(box.locator("tbody tr")).to_have_count(6)
    expect(box.locator("tbody tr").nth(2).locator("td").nth(3)).to_have_text(written)
    rows = page.locator("#compare-table tbody tr")
    expect(rows).to_have_count(4)
    expect(page.locator("#compare-table")).not_to_contain_text("Note:")
    assert page.evaluate("document.documentElement.scrollWidth") == width

    # Where both have both, influence comes first, and recall is a reader's choice.
    page.goto(f"{stack.url}/#/compare?a={A}&b={C}")
    expect(page.locator("#compare-lead")).to_contain_text("recall of facts")
    page.locator("#compare-a").select_option(D)
    expect(page.locator("#compare-source option[value=recall]")).to_have_count(0)
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.locator("#compare-influence")).to_be_visible()
    expect(box).to_be_hidden()
    page.locator("#compare-b").select_option(A)
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.locator("#compare-error")).to_contain_text("First has no recall")
    assert watched.complaints == []


def test_recall_can_be_chosen_where_both_have_it(
    stack: Stack,
    filled: str,
    open_page: Any,
    make_profile: Callable[..., Profile],
    recall_curve: RecallCurve,
) -> None:
    summary = httpx.get(f"{stack.url}/v1/profiles?limit=1").json()["items"][0]
    few = recall_curve.model_copy(
        update={"by_group": recall_curve.by_group[:8], "groups": 8, "low": None, "high": None}
    )
    pair = [
        make_profile(identifier=one, documents=2).model_copy(update={"recall": {"facts": few}})
        for one in (C, D)
    ]
    watched = open_page("about:blank")
    page: Page = watched.page
    asked = answered(page, pair, summary)
    page.goto(f"{stack.url}/#/compare?a={C}&b={D}")
    expect(page.locator("#compare-influence")).to_be_visible()
    page.locator("#compare-source").select_option("recall")
    page.get_by_role("button", name="Compare", exact=True).click()
    box = page.locator("#compare-recall")
    verdict = box.locator("[data-verdict=facts]")
    expect(verdict).to_contain_text("Undecided: a test takes 12 groups on each side, here are 8.")
    expect(box.locator("path.band")).to_have_count(0)
    assert asked == ["", "recall"]
    assert f"a={C}&b={D}&source=recall" in page.url
    page.reload()
    expect(verdict).to_be_visible()
    expect(page.locator("#compare-source")).to_have_value("recall")
    assert watched.complaints == []
