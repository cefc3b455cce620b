"""The whole way in one go: measure, see it appear, place, drag, compare, experiment. Then every
address again, in a window that has nothing but the address."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from service.local.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from playwright.sync_api import Page, expect

WAIT_MS = 240_000
MAX_SHIFT = 0.02
QUESTIONS = "\n".join(
    json.dumps(
        {
            "question": f"What is number {n}?",
            "answers": [f"answer {n}"],
            "chunks": [
                {"id": "a", "text": f"It is answer {n}.", "score": 0.9},
                {"id": "b", "text": "Something else.", "score": 0.4},
                {"id": "c", "text": "Nothing at all.", "score": 0.2},
            ],
        }
    )
    for n in range(12)
)
OUTSIDE = (
    "() => [...document.querySelectorAll('main > section:not([hidden]) *')].filter(one => "
    "!one.closest('.scroll, datalist, .hidden-visually') && "
    "one.getBoundingClientRect().right > innerWidth + 0.5).map(one => one.outerHTML.slice(0, 90))"
)


@dataclass
class Journey:
    """A page on its way, and where it stopped: each address with what one element said there."""

    page: Page
    stops: dict[str, tuple[str, str]] = field(default_factory=dict)

    def stop(self, element: str) -> None:
        """Notes the address, and checks the state that it names."""
        expect(self.page.locator(element)).not_to_have_text(re.compile("^…?$"))  # it still loads
        self.stops[self.page.url] = (element, self.page.locator(element).text_content() or "")
        check(self.page)


def check(page: Page) -> None:
    """Nothing serious for people who do not see or point, and nothing beyond the window's edge."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing")
    found = axe.Axe().run(page).response["violations"]
    assert [(one["id"], [node["html"][:90] for node in one["nodes"]]) for one in found] == []
    assert page.evaluate(OUTSIDE) == []
    width = page.evaluate("innerWidth")
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_the_whole_way(stack: Stack, open_page: Any, measure: Any, scheme: str, width: int) -> None:
    watched = open_page(stack.url, scheme=scheme, width=width)
    page: Page = watched.page
    on_the_way = Journey(page)

    # Two measurements; each shows itself when it is done.
    for seed in (width, width + 1):
        measure(page, documents=12, seed=seed)
        expect(page.locator("#profile-kicker")).to_contain_text(f"seed {seed},", timeout=WAIT_MS)
        on_the_way.stop("#profile-title")
    newest = page.url

    page.get_by_role("link", name="Place chunks").click()
    page.locator("#chunks").fill("a, 12, 0.9\nb, 8, 0.6\nc, 16, 0.4\nd, 10, 0.1")
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator(".movable")).to_have_count(4)
    on_the_way.stop("#place-lead")
    drag(page, "a", "d")
    expect(page.locator("#place-moved")).to_contain_text("As moved")
    page.wait_for_function("document.querySelector('#place-moved').ariaBusy === null")
    expect(page).to_have_url(re.compile("order=1.2.3.0"))
    on_the_way.stop("#place-moved")

    page.goto(newest)
    page.locator("#next-steps").get_by_role("link", name="Compare").click()
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.locator("#compare-table td").first).to_be_visible()
    on_the_way.stop("#compare-lead")

    page.goto(newest)
    page.locator("#next-steps").get_by_role("link", name="Experiment").click()
    page.locator("#questions").fill(QUESTIONS)
    expect(page.locator("#experiment-estimate")).to_contain_text("for 12 questions.")
    check(page)
    page.get_by_role("button", name="Compare orders").click()
    expect(page.locator("#experiment-found")).to_be_visible(timeout=WAIT_MS)
    on_the_way.stop("#experiment-title")

    assert watched.complaints == []
    assert len(on_the_way.stops) == 6
    for address, (element, said) in on_the_way.stops.items():
        other = open_page(address, scheme=scheme, width=width)
        expect(other.page.locator(element)).to_have_text(said)
        other.page.wait_for_load_state("networkidle")
        assert sum(other.page.evaluate("window.shifts")) <= MAX_SHIFT, address
        other.page.reload()
        expect(other.page.locator(element)).to_have_text(said)
        assert other.complaints == []


def drag(page: Page, what: str, behind: str) -> None:
    """Takes a chunk with the mouse and lets it go behind another."""
    page.locator("#chart-place").scroll_into_view_if_needed()
    held = page.locator(f".movable[data-id='{what}']").bounding_box()
    last = page.locator(f".movable[data-id='{behind}']").bounding_box()
    assert held is not None
    assert last is not None
    y = held["y"] + 10
    page.mouse.move(held["x"] + held["width"] / 2, y)
    page.mouse.down()
    for step in range(1, 13):
        page.mouse.move(held["x"] + (last["x"] + last["width"] - held["x"]) * step / 12, y + 2)
    page.mouse.up()
