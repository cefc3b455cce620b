"""The page in a real browser: one journey from a model's name to a placement, and its manners."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from service.local import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from playwright.sync_api import Page, expect  # noqa: E402

KEY = "browser-test-key-0123456789"
MAX_WEIGHT = 1_500_000
MAX_SHIFT = 0.02
WAIT_MS = 60_000


def measure(page: Page, model: str = "local:tiny", tokens: int = 64, seed: int = 0) -> None:
    page.get_by_label("Model", exact=True).fill(model)
    page.get_by_label("Tokens", exact=True).fill(str(tokens))
    page.get_by_label("Documents", exact=True).fill("4")
    if not page.get_by_label("Seed", exact=True).is_visible():
        page.get_by_text("More options").click()
    page.get_by_label("Seed", exact=True).fill(str(seed))
    page.get_by_role("button", name="Measure", exact=True).click()


@pytest.fixture(scope="module")
def filled(stack: Stack) -> str:
    """Address of a service that knows a profile, and that profile's id."""
    body = {"model": "local:tiny", "sequence_length": 64, "documents": {"count": 4}, "seed": 11}
    headers = {"Prefer": "wait=60"}
    answer = httpx.post(f"{stack.url}/v1/profiles", json=body, headers=headers, timeout=90)
    assert answer.status_code == httpx.codes.OK, answer.text
    return str(answer.json()["id"])


def test_from_a_model_to_a_placement(stack: Stack, open_page: Any) -> None:
    watched = open_page(stack.url)
    page: Page = watched.page
    expect(page.locator("#tile-workers")).to_have_text("1 live")
    measure(page)
    expect(page.locator("#profile-title")).to_have_text("local:tiny, 64 tokens", timeout=WAIT_MS)
    expect(page.locator("#job-title")).to_have_text("local:tiny: done")
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
    expect(page.locator("#job-title")).to_have_text("local:tiny: done", timeout=WAIT_MS)
    page.wait_for_function("id => !location.hash.endsWith(id)", arg=identifier)
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.locator("#compare-lead")).to_contain_text("Wasserstein distance")
    expect(page.locator("#compare-table td").first).to_be_visible()

    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator("#place-table tbody tr")).to_have_count(6)
    expect(page.locator("#place-lead")).to_contain_text("over zigzag")
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(stack: Stack, filled: str, open_page: Any, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing")
    page: Page = open_page(f"{stack.url}/#profile={filled}", scheme=scheme).page
    expect(page.locator("#profile-links a").first).to_be_visible()
    page.get_by_text("More options").click()
    page.get_by_role("button", name="Compare", exact=True).click()
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator("#place-table tbody tr")).to_have_count(6)
    found = axe.Axe().run(page).response["violations"]
    assert [(v["id"], [n["html"][:90] for n in v["nodes"]]) for v in found] == []


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


def test_switching_curves_and_the_threshold(stack: Stack, filled: str, open_page: Any) -> None:
    watched = open_page(f"{stack.url}/#profile={filled}")
    page: Page = watched.page
    expect(page.locator("#profile-links a").first).to_be_visible()
    chart = page.locator("#chart-profile .plot")
    box = page.locator("#curve-attention_only")
    box.check()
    expect(chart).to_have_attribute("aria-valuetext", re.compile("attention only"))
    page.locator("#threshold").fill("0.3")
    view = httpx.get(f"{stack.url}/v1/profiles/{filled}/dead-zone?threshold=0.3").json()
    zone = view["dead_zone"]
    expected = "none" if zone is None else f"{zone['start']}–{zone['end']}"
    expect(page.locator("#profile-facts dd").first).to_contain_text(expected)
    assert watched.complaints == []


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
    expect(absent.locator("#chart-profile")).to_be_hidden()


def test_profiles_are_told_apart_and_the_example_fits(
    stack: Stack, filled: str, open_page: Any
) -> None:
    page: Page = open_page(stack.url).page
    option = page.locator(f"#place-profile option[value='{filled}']")
    summary = httpx.get(f"{stack.url}/v1/profiles?limit=100").json()["items"]
    made = next(item["created_at"] for item in summary if item["id"] == filled)
    text = f"local:tiny, 64 tokens, pretrained weights, 4 documents, {made[:10]} {made[11:16]}"
    expect(option).to_have_text(f"{text} ({filled[:6]})")
    for select in ("compare-a", "compare-b"):
        names = page.locator(f"#{select} option").all_text_contents()
        assert len(set(names)) == len(names)
    page.locator("#place-profile").select_option(filled)
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator("#place-table tbody tr")).to_have_count(6)
    answer = json.loads(page.locator("#place-table pre").text_content() or "")
    assert answer["prompt_tokens"] == 64
    assert not answer["extrapolated"]
    page.locator("#chunks").fill("mine, 50, 0.5")
    page.locator("#place-profile").dispatch_event("change")
    expect(page.locator("#chunks")).to_have_value("mine, 50, 0.5")


def test_a_refusal_is_said_beside_the_form_and_at_the_field(stack: Stack, open_page: Any) -> None:
    page: Page = open_page(stack.url).page
    measure(page, model="../../etc/passwd")
    expect(page.locator("#measure-error")).to_contain_text("model")
    expect(page.get_by_label("Model", exact=True)).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Model", exact=True)).to_be_focused()
    measure(page, model="local:absent")
    expect(page.locator("#measure-error")).to_contain_text("absent", timeout=WAIT_MS)


def test_a_running_job_shows_progress_and_can_be_cancelled(stack: Stack, open_page: Any) -> None:
    watched = open_page(stack.url)
    page: Page = watched.page
    page.get_by_text("More options").click()
    page.get_by_label("Text").select_option("random_tokens")
    page.get_by_label("Model", exact=True).fill("local:tiny")
    page.get_by_label("Documents", exact=True).fill("4000")
    page.get_by_role("button", name="Measure", exact=True).click()
    page.wait_for_function(
        "() => document.getElementById('job-progress').value > 0", timeout=WAIT_MS, polling=50
    )
    expect(page.locator("#job-title")).to_have_text("local:tiny: running")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#job-title")).to_have_text("local:tiny: cancelled", timeout=WAIT_MS)
    expect(page.get_by_role("button", name="Cancel")).to_be_disabled()
    assert watched.complaints == []


def test_a_preset_has_no_trained_weights(stack: Stack, open_page: Any) -> None:
    page: Page = open_page(stack.url).page
    page.get_by_label("Model", exact=True).fill("preset:gpt2")
    expect(page.get_by_label("Weights", exact=True)).to_have_value("random")


def test_text_from_outside_is_never_markup(stack: Stack, filled: str, open_page: Any) -> None:
    watched = open_page(f"{stack.url}/#profile={filled}")
    page: Page = watched.page
    expect(page.locator("#place-profile option")).not_to_have_count(0)
    page.locator("#chunks").fill("<img/src=x/onerror=alert(1)>, 50, 0.5")
    page.get_by_role("button", name="Place", exact=True).click()
    cell = page.locator("#place-table tbody td:nth-child(2)")
    expect(cell).to_have_text("<img/src=x/onerror=alert(1)>")
    assert page.locator("#place-table img").count() == 0
    assert watched.complaints == []


def test_pasted_lines_that_are_no_chunks(stack: Stack, filled: str, open_page: Any) -> None:
    page: Page = open_page(stack.url).page
    expect(page.locator("#place-profile option")).not_to_have_count(0)
    page.locator("#chunks").fill("120 0.5\nhalf a line")
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator("#place-error")).to_contain_text("line 2")
    page.locator("#chunks").fill("120\t0.5\n80;0.9\n")
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator("#place-table tbody tr")).to_have_count(2)
    expect(page.locator("#place-error")).to_be_hidden()


def test_with_a_key(guarded: Stack, open_page: Any) -> None:
    page: Page = open_page(guarded.url).page
    expect(page.locator("#key-note")).to_have_text("This service asks for a key.")
    expect(page.get_by_label("API key", exact=True)).to_be_focused()
    page.get_by_label("API key", exact=True).fill(KEY)
    page.get_by_role("button", name="Use").click()
    expect(page.locator("#key-note")).to_have_text("Kept in this tab only.")
    measure(page)
    expect(page.locator("#profile-title")).to_have_text("local:tiny, 64 tokens", timeout=WAIT_MS)
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    assert download.value.suggested_filename.endswith(".csv")
    assert page.evaluate("localStorage.length") == 0
    assert page.evaluate("document.cookie") == ""
