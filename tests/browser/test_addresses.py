"""Every state of the page has an address that survives a reload and can be sent."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from service.local.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from playwright.sync_api import Page, expect

WAIT_MS = 60_000


def same_elsewhere(page: Page, open_page: Any, element: str) -> str:
    """What an element says, after a reload and in a window that only has the address."""
    expect(page.locator(element)).not_to_have_text(re.compile("^…?$"))  # it still loads
    said = page.locator(element).text_content() or ""
    page.reload()
    expect(page.locator(element)).to_have_text(said)
    other: Page = open_page(page.url).page
    expect(other.locator(element)).to_have_text(said)
    return said


def test_a_profile(stack: Stack, filled: str, open_page: Any) -> None:
    page: Page = open_page(f"{stack.url}/#/profiles").page
    page.locator(f"#known tr[data-id='{filled}'] a").click()
    expect(page.locator("#profile-title")).to_be_focused()
    assert page.url == f"{stack.url}/#/profile/{filled}"
    same_elsewhere(page, open_page, "#profile-title")


def test_another_threshold(stack: Stack, filled: str, open_page: Any) -> None:
    page: Page = open_page(f"{stack.url}/#/profile/{filled}").page
    page.get_by_text("Another threshold").click()
    page.locator("#threshold").fill("1.5")
    expect(page.locator("#threshold-zone")).to_contain_text("Below 1.5×")
    expect(page.locator("#live")).to_contain_text("Below 1.5×")
    assert page.url.endswith(f"{filled}?threshold=1.5")
    same_elsewhere(page, open_page, "#profile-title")


def test_a_comparison(stack: Stack, filled: str, open_page: Any) -> None:
    page: Page = open_page(f"{stack.url}/#/compare?a={filled}").page
    expect(page.locator("#compare-b option")).not_to_have_count(1)
    page.locator("#compare-source").select_option("residual")
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.locator("#compare-table td").first).to_be_visible()
    assert f"a={filled}" in page.url
    assert "source=residual" in page.url
    same_elsewhere(page, open_page, "#compare-lead")
    expect(page.locator("#compare-source")).to_have_value("residual")


def test_a_placement_with_the_order_that_was_tried(
    stack: Stack, filled: str, open_page: Any
) -> None:
    page: Page = open_page(f"{stack.url}/#/place?profile={filled}").page
    page.locator("#chunks").fill("a, 10, 0.9\nb, 20, 0.5\nc, 15, 0.1")
    page.get_by_text("More options").locator("visible=true").click()
    page.locator("#place-objective").select_option("total_mass")
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator(".movable")).to_have_count(3)
    page.locator(".movable[data-id='a']").press("End")
    expect(page.locator("#place-moved")).to_contain_text("As moved")
    expect(page).to_have_url(re.compile("order=1.2.0"))
    same_elsewhere(page, open_page, "#place-moved")
    expect(page.locator("#chunks")).to_have_value("a, 10, 0.9\nb, 20, 0.5\nc, 15, 0.1")
    expect(page.locator("#place-objective")).to_have_value("total_mass")
    shown = page.locator(".movable").evaluate_all("all => all.map(one => one.dataset.id)")
    assert shown == ["b", "c", "a"]


def test_texts_of_ones_own_are_not_put_into_the_address(
    stack: Stack, filled: str, open_page: Any
) -> None:
    page: Page = open_page(f"{stack.url}/#/place?profile={filled}").page
    page.locator("#chunks").fill(
        '[{"id": "a", "text": "a private word", "relevance": 0.9},'
        ' {"id": "b", "text": "and others", "relevance": 0.2}]'
    )
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator(".movable")).to_have_count(2)
    assert "private" not in page.url
    assert "tokens" in page.url
    same_elsewhere(page, open_page, "#place-lead")


def test_a_theory(stack: Stack, open_page: Any) -> None:
    page: Page = open_page(f"{stack.url}/#/theory").page
    expect(page.locator("#architecture option").first).to_be_attached()
    page.locator("#architecture").select_option("bloom-560m")
    page.get_by_role("button", name="Compute").click()
    expect(page.locator("#theory-lead")).to_contain_text("By theory")
    assert "architecture=bloom-560m" in page.url
    same_elsewhere(page, open_page, "#theory-words")


def test_a_job_opens_its_profile(stack: Stack, filled: str, open_page: Any) -> None:
    body = {"model": "local:tiny", "sequence_length": 64, "documents": {"count": 4}, "seed": 40}
    job = httpx.post(f"{stack.url}/v1/profiles", json=body).json()
    identifier = job.get("id")
    page: Page = open_page(f"{stack.url}/#/jobs/{identifier}").page
    expect(page.locator("#profile-kicker")).to_contain_text("seed 40", timeout=WAIT_MS)
    assert "#/profile/" in page.url
    # The address of a finished job leads to its profile as well.
    again: Page = open_page(f"{stack.url}/#/jobs/{identifier}").page
    expect(again.locator("#profile-kicker")).to_contain_text("seed 40", timeout=WAIT_MS)
    # The way back does not lead into the job again.
    page.go_back()
    assert "#/jobs/" not in page.url


def test_what_is_not_there_is_said(stack: Stack, filled: str, open_page: Any) -> None:
    page: Page = open_page(f"{stack.url}/#/profile/{'0' * 32}").page
    expect(page.locator("#profile-title")).to_have_text("This profile cannot be shown")
    expect(page.get_by_role("alert")).to_contain_text("profile")
    expect(page.locator("#profile-body")).to_be_hidden()
    page.goto(f"{stack.url}/#/nowhere/at?all=1")
    expect(page.locator("main > section:visible h2")).to_have_text(
        "There is nothing at this address"
    )
    page.goto(f"{stack.url}/#/jobs/{'0' * 32}")
    expect(page.locator("#jobs article").first).to_contain_text("no longer known")
    page.goto(f"{stack.url}/#/place?profile={'0' * 32}&chunks=a%2C+10%2C+0.5")
    expect(page.locator("#place-error")).to_contain_text("profile")


def test_back_and_forth(stack: Stack, filled: str, open_page: Any) -> None:
    page: Page = open_page(stack.url).page
    for name in ("Profiles", "Status", "Theory"):
        page.locator("nav").get_by_role("link", name=name).click()
        expect(page.locator("nav a[aria-current]")).to_have_text(name)
    page.go_back()
    expect(page.locator("#view-status")).to_be_visible()
    assert page.title() == "Service · Lacuna"
    # A jump within the page is no other view.
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#view-status")).to_be_visible()


def test_the_shipped_example_stands_where_nothing_was_measured(
    stack: Stack, open_page: Any
) -> None:
    watched = open_page("about:blank")
    page: Page = watched.page
    page.route("**/v1/profiles?**", lambda route: route.fulfill(json={"items": [], "next": None}))
    page.goto(stack.url)
    expect(page.locator("#profile-kicker")).to_contain_text("Example, measured elsewhere.")
    expect(page.locator("#profile-title")).to_contain_text("smollm2-135m-instruct listens least")
    expect(page.locator("#chart-recall svg")).to_be_visible()
    for summary in page.locator("#profile-details summary").all():
        summary.click()
    page.locator("#threshold").fill("1")
    expect(page.locator("#threshold-zone")).to_contain_text("Below 1×")
    same_elsewhere(page, open_page, "#profile-title")
    expect(page.locator("#profile-kicker")).to_contain_text("Example, measured elsewhere.")
    page.get_by_role("link", name="Measure this model here").click()
    expect(page.get_by_label("Model", exact=True)).to_have_value("demo:smollm2-135m-instruct")
    assert watched.complaints == []


@pytest.mark.parametrize("width", [360, 1280])
def test_chunks_are_placed_along_the_shipped_example(
    stack: Stack, open_page: Any, width: int
) -> None:
    watched = open_page("about:blank", width=width)
    page: Page = watched.page
    page.route("**/v1/profiles?**", lambda route: route.fulfill(json={"items": [], "next": None}))
    page.goto(stack.url)
    page.get_by_role("link", name="Place chunks").click()
    chosen = page.locator("#place-profile option:checked")
    expect(chosen).to_have_text(
        "Example, measured elsewhere: demo:smollm2-135m-instruct, 256 tokens"
    )
    page.locator("#chunks").fill("a, 60, 0.9\nb, 60, 0.5\nc, 60, 0.1")
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator(".movable")).to_have_count(3)
    expect(page.locator("#place-lead")).to_contain_text("95% interval")
    expect(page.locator("#place-lead")).to_be_in_viewport()
    same_elsewhere(page, open_page, "#place-lead")
    expect(chosen).to_contain_text("Example, measured elsewhere")
    # The list of profiles has it not, but without an address it is what there is.
    page.goto(f"{stack.url}/#/place")
    expect(chosen).to_contain_text("Example, measured elsewhere")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert watched.complaints == []
