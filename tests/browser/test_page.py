"""The page in a real browser: one journey from a model's name to a placement, and its manners."""

from __future__ import annotations

import json
import re
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


def opened(page: Page, name: str) -> None:
    expect(page.locator(f"#view-{name}")).to_be_visible()


def test_from_a_model_to_a_placement(stack: Stack, open_page: Any, measure: Any) -> None:
    watched = open_page(stack.url)
    page: Page = watched.page
    measure(page, seed=90)
    opened(page, "jobs")
    # A finished measurement opens its profile, and is the newest from then on.
    opened(page, "profile")
    expect(page.locator("#profile-title")).to_contain_text(
        "Undecided: 4 documents", timeout=WAIT_MS
    )
    identifier = page.url.partition("#/profile/")[2]
    stored = httpx.get(f"{stack.url}/v1/profiles/{identifier}").json()
    reading = page.locator("#chart-profile .plot").get_attribute("aria-valuetext") or ""
    assert reading.startswith("token 0: mean of 4 documents ")
    density = 64 * stored["measured"]["smoothed"][0]
    assert float(reading.split()[6].split("×")[0]) == pytest.approx(density, rel=6e-3)
    page.goto(stack.url)
    expect(page.locator("#profile-title")).to_contain_text("Undecided: 4 documents")
    expect(page.locator("#profile-kicker")).to_contain_text("seed 90")

    page.get_by_role("link", name="Place chunks").click()
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator("#place-table tbody tr")).to_have_count(6)
    expect(page.locator("#place-lead")).to_contain_text(
        re.compile("keep your order", re.IGNORECASE)
    )
    answer = json.loads(page.locator("#place-notes pre").text_content() or "")
    assert page.locator("#place-table tbody td:nth-child(2)").all_text_contents() == answer["order"]

    measure(page, seed=91)
    expect(page.locator("#profile-kicker")).to_contain_text("seed 91", timeout=WAIT_MS)
    page.locator("nav").get_by_role("link", name="Profiles").click()
    for at in (0, 1):
        page.locator("#known input").nth(at).check()
    page.get_by_role("button", name="Compare the two chosen").click()
    opened(page, "compare")
    assert f"a={identifier}" in page.url
    expect(page.locator("#compare-lead")).to_contain_text("undecided")
    expect(page.locator("#compare-table td").first).to_be_visible()
    assert watched.complaints == []
    assert watched.hosts == {stack.url.removeprefix("http://")}


def test_what_a_visit_loads_is_small(stack: Stack, filled: str, open_page: Any) -> None:
    watched = open_page(stack.url)
    expect(watched.page.locator("#profile-title")).not_to_have_text("…")
    watched.page.wait_for_timeout(500)
    assert 50_000 < watched.bytes < MAX_WEIGHT


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_moves_while_a_view_loads(
    stack: Stack, filled: str, open_page: Any, width: int
) -> None:
    second = f"&b={other(stack, filled)}"
    chunks = "a%2C+20%2C+0.9%0Ab%2C+20%2C+0.4"
    for address in (
        "", f"#/profile/{filled}", "#/profiles", "#/measure", "#/status",
        f"#/compare?a={filled}{second}", f"#/place?profile={filled}&chunks={chunks}",
        "#/theory?architecture=gpt2&tokens=256&lambda=0.1",
    ):  # fmt: skip
        watched = open_page(f"{stack.url}/{address}", width=width)
        watched.page.wait_for_load_state("networkidle")
        watched.page.wait_for_timeout(300)
        assert sum(watched.page.evaluate("window.shifts")) <= MAX_SHIFT, (address, width)
        assert watched.complaints == [], address
        assert watched.page.evaluate("document.documentElement.scrollWidth") == width, address


def other(stack: Stack, identifier: str) -> str:
    items = httpx.get(f"{stack.url}/v1/profiles?limit=100").json()["items"]
    return next(item["id"] for item in items if item["id"] != identifier)


def violations(page: Page) -> list[Any]:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing")
    found = axe.Axe().run(page).response["violations"]
    return [(v["id"], [n["html"][:90] for n in v["nodes"]]) for v in found]


@pytest.mark.parametrize(("scheme", "width"), [("light", 360), ("dark", 1280)])
def test_axe_finds_nothing(
    stack: Stack, filled: str, open_page: Any, scheme: str, width: int
) -> None:
    page: Page = open_page(f"{stack.url}/#/profile/{filled}", scheme=scheme, width=width).page
    expect(page.locator("#profile-details summary").first).to_be_visible()
    for summary in page.locator("#profile-details summary").all():
        summary.click()
    page.locator("#influence-part").get_by_role("button", name="Table").click()
    assert violations(page) == []
    page.goto(f"{stack.url}/#/place?profile={filled}")
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator("#place-table tbody tr")).to_have_count(6)
    page.locator("#place-notes summary").click()
    assert violations(page) == []
    page.goto(f"{stack.url}/#/compare?a={filled}&b={other(stack, filled)}")
    expect(page.locator("#compare-table td").first).to_be_visible()
    assert violations(page) == []
    page.goto(f"{stack.url}/#/theory?architecture=gpt2&tokens=256&lambda=0.1")
    expect(page.locator("#theory-lead")).to_contain_text("By theory")
    assert violations(page) == []
    for view in ("profiles", "measure", "experiments", "status", "jobs", "no-such-view"):
        page.goto(f"{stack.url}/#/{view}")
        page.wait_for_timeout(300)
        assert violations(page) == [], view


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

    page: Page = open_page(f"{stack.url}/#/jobs", scheme=scheme, width=width).page
    page.evaluate("kept => { sessionStorage['lacuna-jobs'] = kept }", json.dumps(kept))
    page.route("**/v1/jobs/*", answer)
    page.route("**/v1/profiles**", lambda route: route.abort())
    page.route("**/readyz", lambda route: route.abort())
    page.reload()
    for state in states:
        expect(page.locator("#jobs")).to_contain_text(f"{state}: {state}")
    assert violations(page) == []
    for view, said in (
        ("status", "No figures: the service does not answer."),
        ("profiles", "The list cannot be read"),
        ("compare", "measure a model first"),
        ("place", "measure a model first"),
        ("", "the service does not answer"),
    ):
        page.evaluate(f"location.hash = '#/{view}'")
        if view in {"compare", "place"}:
            page.get_by_role("button", name=view.capitalize(), exact=True).click()
        expect(page.locator("main > section:visible")).to_contain_text(said)
        assert violations(page) == [], view
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_every_figure_is_on_a_small_phone(stack: Stack, filled: str, open_page: Any) -> None:
    page: Page = open_page(f"{stack.url}/#/profile/{filled}", width=360).page
    expect(page.locator("#profile-details summary").first).to_be_visible()
    for summary in page.locator("#profile-details summary").all():
        summary.click()
    outside = (
        "view => [...document.querySelectorAll(`#view-${view} *`)]"
        ".filter(e => !e.closest('.scroll, datalist') && e.getBoundingClientRect().right > 360.5)"
        ".map(e => e.outerHTML.slice(0, 80))"
    )
    assert page.evaluate(outside, "profile") == []
    page.goto(f"{stack.url}/#/place?profile={filled}")
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator("#place-table tbody tr")).to_have_count(6)
    assert page.evaluate(outside, "place") == []
    # The columns that matter are there without scrolling the table.
    for column in (1, 2, 3):
        box = page.locator(f"#place-table tbody td:nth-child({column})").first.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 360
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_the_keyboard_reads_the_chart_and_reaches_every_control(
    stack: Stack, filled: str, open_page: Any
) -> None:
    page: Page = open_page(f"{stack.url}/#/profile/{filled}").page
    expect(page.locator("#profile-details summary").first).to_be_visible()
    stored = httpx.get(f"{stack.url}/v1/profiles/{filled}").json()["measured"]["smoothed"]
    chart = page.locator("#chart-profile .plot")
    chart.focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    assert chart.get_attribute("aria-valuenow") == "62"
    reading = chart.get_attribute("aria-valuetext") or ""
    assert float(reading.split()[6].split("×")[0]) == pytest.approx(64 * stored[62], rel=6e-3)
    expect(page.locator("#chart-profile .read")).to_have_text(reading)
    for view in ("measure", "place"):
        page.goto(f"{stack.url}/#/{view}")
        expect(page.locator(f"#view-{view}")).to_be_visible()
        page.evaluate("scrollTo(0, 0); document.activeElement.blur()")
        reached = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.id"))
        named = page.locator("main :is(input, select, textarea):visible")
        wanted = {named.nth(i).get_attribute("id") for i in range(named.count())}
        assert wanted - reached == set()


def test_a_long_profile_is_asked_for_in_bins(stack: Stack, filled: str, open_page: Any) -> None:
    page: Page = open_page("about:blank").page
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
    page.goto(f"{stack.url}/#/profile/{filled}")
    expect(page.locator("#profile-kicker")).to_contain_text("4096 tokens")
    assert f"{stack.url}/v1/profiles/{filled}?bins=1024" in asked
    reading = page.locator("#chart-profile .plot").get_attribute("aria-valuetext") or ""
    assert reading.startswith("token 32: mean of 4 documents ")  # middle of the first of 64 bins


def test_a_preset_has_no_trained_weights(stack: Stack, open_page: Any) -> None:
    page: Page = open_page(f"{stack.url}/#/measure").page
    page.get_by_label("Model", exact=True).fill("preset:gpt2")
    expect(page.get_by_label("Weights", exact=True)).to_have_value("random")


def test_with_a_key(guarded: Stack, open_page: Any, measure: Any) -> None:
    page: Page = open_page(guarded.url).page
    expect(page.locator("#key-note")).to_have_text("This service asks for a key.")
    expect(page.get_by_label("API key", exact=True)).to_be_focused()
    page.get_by_label("API key", exact=True).fill("not-the-key")
    page.get_by_role("button", name="Use").click()
    expect(page.locator("#key-note")).to_have_text("This key is not accepted.")
    page.get_by_label("API key", exact=True).fill(KEY)
    page.get_by_role("button", name="Use").click()
    expect(page.locator("#key-note")).to_have_text("Kept in this tab only.")
    # What the key was asked for is now there: the example, since nothing was measured yet.
    expect(page.locator("#profile-kicker")).to_contain_text("Example, measured elsewhere.")
    measure(page)
    expect(page.locator("#profile-kicker")).to_contain_text("local:tiny", timeout=WAIT_MS)
    page.get_by_text("Files", exact=True).click()
    with page.expect_download() as download:
        page.locator("#profile-links").get_by_role("link", name="CSV").click()
    assert download.value.suggested_filename.endswith(".csv")
    assert page.evaluate("localStorage.length") == 0
    assert page.evaluate("document.cookie") == ""
