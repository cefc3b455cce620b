"""The page in a real browser: one journey from a model's name to a placement, and its manners."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from service.local.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from playwright.sync_api import Page, expect

KEY = "browser-test-key-0123456789"
MAX_WEIGHT = 1_500_000
MAX_SHIFT = 0.02
WAIT_MS = 60_000


def test_from_a_model_to_a_placement(stack: Stack, open_page: Any, measure: Any) -> None:
    watched = open_page(stack.url)
    page: Page = watched.page
    expect(page.locator("#tile-workers")).to_have_text("1 live")
    measure(page)
    job = page.locator("#jobs article").first
    expect(job).to_contain_text("local:tiny, 64 tokens: done", timeout=WAIT_MS)
    job.get_by_text("Show the profile").click()
    expect(page.locator("#profile-title")).to_have_text("local:tiny, 64 tokens")
    expect(page.locator("#known tr")).not_to_have_count(0)
    assert page.url.startswith(f"{stack.url}/#profile=")
    identifier = page.url.rpartition("=")[2]
    stored = httpx.get(f"{stack.url}/v1/profiles/{identifier}").json()
    chart = page.locator("#chart-profile .plot")
    density = 64 * stored["measured"]["influence"][0]
    reading = chart.get_attribute("aria-valuetext") or ""
    assert reading.startswith("token 0: measured ")
    assert float(reading.split()[3].rstrip(",")) == pytest.approx(density, rel=6e-3)

    measure(page, seed=1)
    expect(job).to_contain_text("local:tiny, 64 tokens: done", timeout=WAIT_MS)
    expect(page.locator("#compare-b option")).not_to_have_count(1)
    page.get_by_role("button", name="Compare", exact=True).click()
    assert page.locator("#compare-a").input_value() == identifier
    assert page.locator("#compare-b").input_value() != identifier
    expect(page.locator("#compare-lead")).to_contain_text("Second against first: ")
    expect(page.locator("#compare-table td").first).to_be_visible()

    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator("#place-table tbody tr")).to_have_count(6)
    expect(page.locator("#place-lead")).to_contain_text("Worth")
    expect(page.locator("#place-table")).to_contain_text("over zigzag, best last")
    answer = json.loads(page.locator("#place-table pre").text_content() or "")
    shown = page.locator("#place-table tbody td:nth-child(2)").all_text_contents()
    assert shown == answer["order"]
    assert watched.complaints == []
    assert watched.hosts == {stack.url.removeprefix("http://")}
    assert watched.bytes < MAX_WEIGHT


def test_nothing_moves_while_the_page_loads(stack: Stack, filled: str, open_page: Any) -> None:
    for width in (360, 1180):
        watched = open_page(f"{stack.url}/#profile={filled}", width=width)
        expect(watched.page.locator("#profile-links a").first).to_be_visible()
        expect(watched.page.locator("#tile-workers")).to_have_text("1 live")
        watched.page.wait_for_timeout(500)
        assert sum(watched.page.evaluate("window.shifts")) <= MAX_SHIFT, width
        assert watched.complaints == []


def violations(page: Page) -> list[Any]:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing")
    found = axe.Axe().run(page).response["violations"]
    return [(v["id"], [n["html"][:90] for n in v["nodes"]]) for v in found]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(stack: Stack, filled: str, open_page: Any, scheme: str) -> None:
    page: Page = open_page(f"{stack.url}/#profile={filled}", scheme=scheme).page
    expect(page.locator("#profile-links a").first).to_be_visible()
    page.get_by_text("More options").click()
    page.get_by_role("button", name="Compare", exact=True).click()
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator("#place-table tbody tr")).to_have_count(6)
    assert violations(page) == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 360), ("dark", 1180)])
def test_axe_finds_nothing_when_things_go_wrong(
    stack: Stack, open_page: Any, scheme: str, width: int
) -> None:
    job = {
        "attempt": 2, "progress": 0.4, "message": "document 2/5", "position": None,
        "eta_seconds": 70, "created_at": "2026-01-01", "started_at": "2026-01-01",
        "finished_at": None, "profile": "/v1/profiles/" + "4" * 32,
        "failure": {"code": "too_long", "detail": "longer than 512", "retryable": False},
    }  # fmt: skip
    states = ["running", "failed", "done", "cancelled"]
    kept = [{"id": str(at) * 32, "what": state, "how": "well"} for at, state in enumerate(states)]

    def answer(route: Any) -> None:
        identifier = route.request.url.rpartition("/")[2]
        route.fulfill(json={**job, "id": identifier, "state": states[int(identifier[0])]})

    page: Page = open_page(stack.url, scheme=scheme, width=width).page
    page.evaluate("kept => { sessionStorage['lacuna-jobs'] = kept }", json.dumps(kept))
    page.route("**/v1/jobs/*", answer)
    page.route("**/v1/profiles**", lambda route: route.abort())
    page.route("**/readyz", lambda route: route.abort())
    page.reload()
    for state in states:
        expect(page.locator("#jobs")).to_contain_text(f"{state}: {state}")
    for button in ("Compare", "Place"):
        page.get_by_role("button", name=button, exact=True).click()
    expect(page.locator("#status-error")).to_be_visible()
    expect(page.locator("#known-note")).to_contain_text("cannot be read")
    expect(page.locator("#compare-error")).to_contain_text("measure a model first")
    expect(page.locator("#place-error")).to_contain_text("measure a model first")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_no_wider_than_a_small_phone(stack: Stack, filled: str, open_page: Any) -> None:
    page: Page = open_page(f"{stack.url}/#profile={filled}", width=360).page
    expect(page.locator("#profile-links a").first).to_be_visible()
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator("#place-table tbody tr")).to_have_count(6)
    wide = page.evaluate(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, datalist') "
        "&& e.getBoundingClientRect().right > 360 && !e.classList.contains('scroll'))"
        ".map(e => e.outerHTML.slice(0, 80))"
    )
    assert wide == []
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_the_keyboard_reads_the_chart_and_reaches_every_control(
    stack: Stack, filled: str, open_page: Any
) -> None:
    page: Page = open_page(f"{stack.url}/#profile={filled}").page
    expect(page.locator("#profile-links a").first).to_be_visible()
    stored = httpx.get(f"{stack.url}/v1/profiles/{filled}").json()["measured"]["influence"]
    chart = page.locator("#chart-profile .plot")
    chart.focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    assert chart.get_attribute("aria-valuenow") == "62"
    reading = chart.get_attribute("aria-valuetext") or ""
    assert float(reading.split()[3].rstrip(",")) == pytest.approx(64 * stored[62], rel=6e-3)
    page.evaluate("scrollTo(0, 0); document.activeElement.blur()")
    reached = set()
    for _ in range(120):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    named = page.locator("main :is(input, select, textarea):visible")
    wanted = {named.nth(i).get_attribute("id") for i in range(named.count())}
    assert wanted - reached == set()


def test_a_long_profile_is_asked_for_in_bins(stack: Stack, filled: str, open_page: Any) -> None:
    page: Page = open_page(stack.url).page
    expect(page.locator("#known tr")).not_to_have_count(0)
    asked: list[str] = []

    def longer(route: Any) -> None:
        asked.append(route.request.url)
        body = httpx.get(route.request.url.split("?")[0]).json()
        if "items" in body:
            body["items"] = [{**item, "sequence_length": 4096} for item in body["items"]]
        else:
            body["request"]["sequence_length"] = 4096
        route.fulfill(json=body)

    page.route("**/v1/profiles**", longer)
    page.goto(f"{stack.url}/?again#profile={filled}")
    expect(page.locator("#profile-title")).to_have_text("local:tiny, 4096 tokens")
    assert f"{stack.url}/v1/profiles/{filled}?bins=1024" in asked
    reading = page.locator("#chart-profile .plot").get_attribute("aria-valuetext") or ""
    assert reading.startswith("token 32: measured ")  # the middle of the first of 64 bins


def test_what_is_empty_takes_no_room(stack: Stack, filled: str, open_page: Any) -> None:
    page: Page = open_page(stack.url).page
    expect(page.locator("#known tr")).not_to_have_count(0)
    for section in ("profile", "compare", "place"):
        charts = page.locator(f"#{section} .chart")
        assert not any(charts.nth(i).is_visible() for i in range(charts.count())), section
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.locator("#chart-compare")).to_be_visible()
    page.locator("#known button").first.click()
    expect(page.locator("#chart-profile")).to_be_visible()
    absent = open_page(f"{stack.url}/#profile={'0' * 32}").page
    expect(absent.locator("#profile-lead")).to_contain_text("cannot be shown")
    expect(absent.get_by_role("alert")).to_contain_text("profile")
    expect(absent.locator("#chart-profile")).to_be_hidden()


def test_a_preset_has_no_trained_weights(stack: Stack, open_page: Any) -> None:
    page: Page = open_page(stack.url).page
    page.get_by_label("Model", exact=True).fill("preset:gpt2")
    expect(page.get_by_label("Weights", exact=True)).to_have_value("random")


def test_with_a_key(guarded: Stack, open_page: Any, measure: Any) -> None:
    page: Page = open_page(guarded.url).page
    expect(page.locator("#key-note")).to_have_text("This service asks for a key.")
    expect(page.get_by_label("API key", exact=True)).to_be_focused()
    expect(page.locator("#known-note")).to_have_text("The list is shown once a key is given.")
    page.get_by_label("API key", exact=True).fill("not-the-key")
    page.get_by_role("button", name="Use").click()
    expect(page.locator("#key-note")).to_have_text("This key is not accepted.")
    page.get_by_label("API key", exact=True).fill(KEY)
    page.get_by_role("button", name="Use").click()
    expect(page.locator("#key-note")).to_have_text("Kept in this tab only.")
    measure(page)
    page.get_by_text("Show the profile").click(timeout=WAIT_MS)
    expect(page.locator("#profile-title")).to_have_text("local:tiny, 64 tokens")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    assert download.value.suggested_filename.endswith(".csv")
    assert page.evaluate("localStorage.length") == 0
    assert page.evaluate("document.cookie") == ""
