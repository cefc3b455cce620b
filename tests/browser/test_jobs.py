"""Jobs on the page: they take nobody's keyboard, and none is lost."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from service.local.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from playwright.sync_api import Page, expect

WAIT_MS = 60_000
ENDLESS = 4000
"""Documents of a job that does not end by itself."""


def cancel_all(page: Page) -> None:
    buttons = page.get_by_role("button", name="Cancel")
    for left in reversed(range(buttons.count())):
        buttons.first.click()
        expect(buttons).to_have_count(left, timeout=WAIT_MS)


def test_a_finished_job_takes_no_keyboard(
    stack: Stack, filled: str, open_page: Any, measure: Any
) -> None:
    watched = open_page(stack.url)
    page: Page = watched.page
    measure(page, documents=400, seed=21)
    expect(page.locator("#jobs article")).to_have_count(1)
    page.locator("nav").get_by_role("link", name="Place").click()
    bar = page.locator("#jobs-bar")
    expect(bar).to_contain_text("local:tiny, 64 tokens: ")
    page.locator("#place-profile").select_option(filled)
    page.locator("#chunks").fill("mine, 50, 0.5")
    expect(bar).to_contain_text("done", timeout=WAIT_MS)
    expect(page.locator("#live")).to_have_text("local:tiny, 64 tokens: done")
    expect(page.locator("#chunks")).to_be_focused()
    expect(page.locator("#chunks")).to_have_value("mine, 50, 0.5")
    expect(page.locator("#place-profile")).to_have_value(filled)
    assert "#/place" in page.url
    bar.get_by_role("link", name="open the result").click()
    expect(page.locator("#profile-kicker")).to_contain_text("seed 21")
    bar.get_by_role("button", name="Hide").click()
    expect(bar).to_be_hidden()
    assert watched.complaints == []


def test_the_list_grows_under_the_keyboard(
    stack: Stack, filled: str, open_page: Any, measure: Any
) -> None:
    page: Page = open_page(stack.url).page
    measure(page, documents=400, seed=22)
    expect(page.locator("#jobs article")).to_have_count(1)
    page.locator("nav").get_by_role("link", name="Profiles").click()
    row = page.locator(f"#known tr[data-id='{filled}'] a")
    row.focus()
    expect(page.locator("#known tr").first).to_contain_text("seed 22", timeout=WAIT_MS)
    expect(row).to_be_focused()


def test_a_running_job_shows_progress_and_can_be_cancelled(
    stack: Stack, open_page: Any, measure: Any
) -> None:
    watched = open_page(stack.url)
    page: Page = watched.page
    measure(page, documents=ENDLESS)
    job = page.locator("#jobs article").first
    page.wait_for_function(
        "() => document.querySelector('#jobs progress')?.value > 0", timeout=WAIT_MS, polling=50
    )
    expect(job.locator("strong")).to_have_text("local:tiny, 64 tokens: running")
    button = page.get_by_role("button", name="Cancel")
    button.focus()
    page.keyboard.press("Enter")
    expect(job.locator("strong")).to_have_text("local:tiny, 64 tokens: cancelled", timeout=WAIT_MS)
    expect(button).to_have_count(0)
    expect(page.get_by_role("button", name="Dismiss")).to_be_focused()
    assert watched.complaints == []


def test_jobs_outlive_a_reload_and_each_other(stack: Stack, open_page: Any, measure: Any) -> None:
    watched = open_page(stack.url)
    page: Page = watched.page
    cards = page.locator("#jobs article")
    for count in (1, 2):
        measure(page, documents=ENDLESS, seed=count)
        expect(cards).to_have_count(count)
        page.wait_for_function(
            "count => JSON.parse(sessionStorage['lacuna-jobs']).length === count", arg=count
        )
    gone = {"id": "0" * 32, "what": "local:gone, 8 tokens", "how": "random weights"}
    stored = page.evaluate("sessionStorage['lacuna-jobs']")
    assert len(json.loads(stored)) == 2
    page.evaluate(
        "kept => { sessionStorage['lacuna-jobs'] = kept }", json.dumps([gone, *json.loads(stored)])
    )
    page.reload()
    expect(cards).to_have_count(3)
    expect(page.locator("#jobs")).to_contain_text("local:gone, 8 tokens: no longer known")
    expect(cards.locator("strong", has_text="running")).to_have_count(1, timeout=WAIT_MS)
    expect(cards.locator("strong", has_text="queued")).to_have_count(1)
    assert json.loads(page.evaluate("sessionStorage['lacuna-jobs']")) == json.loads(stored)
    cancel_all(page)
    assert page.evaluate("sessionStorage['lacuna-jobs']") == "[]"
    page.goto(f"{stack.url}/#/jobs")
    page.reload()
    expect(page.locator("#jobs-note")).to_contain_text("None.")
    expect(cards).to_have_count(0)
    assert [text for text in watched.complaints if "404" not in text] == []


def test_no_more_than_twenty_jobs_are_remembered(stack: Stack, open_page: Any) -> None:
    page: Page = open_page(f"{stack.url}/#/jobs").page
    many = [
        {"id": f"{number:032x}", "what": f"job {number}", "how": "well"} for number in range(30)
    ]
    asked: list[str] = []
    waiting = {
        "id": "", "state": "queued", "attempt": 0, "progress": 0, "message": "", "position": 3,
        "eta_seconds": None, "failure": None, "profile": None, "created_at": "2026-01-01",
        "started_at": None, "finished_at": None,
    }  # fmt: skip

    def answer(route: Any) -> None:
        asked.append(route.request.url)
        route.fulfill(json={**waiting, "id": route.request.url.rpartition("/")[2]})

    page.route("**/v1/jobs/*", answer)
    page.evaluate("kept => { sessionStorage['lacuna-jobs'] = kept }", json.dumps(many))
    page.reload()
    expect(page.locator("#jobs article")).to_have_count(20)
    expect(page.locator("#jobs")).to_contain_text("3 ahead")
    page.wait_for_timeout(3000)
    assert len(asked) <= 5  # one question a second, whatever their number
    # Before the page reads it: the page writes its own list with every answer, also while it goes.
    page.add_init_script("sessionStorage['lacuna-jobs'] = 'no list'")
    page.reload()
    expect(page.locator("#jobs-note")).to_contain_text("None.")
    expect(page.locator("#jobs article")).to_have_count(0)


def test_a_job_is_followed_through_an_outage(stack: Stack, open_page: Any, measure: Any) -> None:
    page: Page = open_page(stack.url).page
    measure(page, documents=ENDLESS, seed=3)
    card = page.locator("#jobs article")
    page.route("**/v1/jobs/*", lambda route: route.abort())
    expect(card).to_contain_text("the service does not answer", timeout=WAIT_MS)
    page.get_by_role("button", name="Cancel").click()
    expect(card.get_by_role("alert")).to_have_text("the service does not answer")
    page.unroute("**/v1/jobs/*")
    cancel_all(page)
    expect(card).to_contain_text("cancelled")
    expect(card.get_by_role("alert")).to_be_hidden()


def test_a_failed_job_says_why(stack: Stack, open_page: Any, measure: Any) -> None:
    page: Page = open_page(stack.url).page
    measure(page, model="local:absent")
    card = page.locator("#jobs article")
    expect(card.get_by_role("alert")).to_contain_text("model_not_found", timeout=WAIT_MS)
    expect(card).to_contain_text("local:absent, 64 tokens: failed")
    identifier = card.locator("a[data-json]").get_attribute("href") or ""
    failure = httpx.get(f"{stack.url}/{identifier}").json()["failure"]
    expect(card.get_by_role("alert")).to_have_text(f"{failure['detail']} ({failure['code']})")
