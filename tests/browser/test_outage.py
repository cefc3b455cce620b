"""An outage looks like an outage, and ends by itself."""

from __future__ import annotations

import os
import signal
from typing import Any

import httpx
import pytest

from service.local import store as embedded
from service.local.stack import Stack
from service.settings import Settings

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from playwright.sync_api import Page, expect

WAIT_MS = 30_000
FIGURES = ("waiting", "running", "oldest", "profiles")


def test_a_store_that_is_away_and_back(
    tmp_path_factory: pytest.TempPathFactory, open_page: Any
) -> None:
    folder = tmp_path_factory.mktemp("s")
    with (
        embedded.ensure(folder) as store,
        Stack(Settings(data_dir=folder, log_format="text"), workers=0) as stack,
    ):
        page: Page = open_page(f"{stack.url}/#/status").page
        home: Page = open_page(f"{stack.url}/#/profiles").page
        expect(page.locator("#tile-profiles")).to_have_text("0")
        expect(home.locator("#known-note")).to_contain_text("No profile yet")
        expect(page.locator("#status-error")).to_be_hidden()
        assert store.pid is not None
        os.kill(store.pid, signal.SIGKILL)
        expect(page.locator("#tile-store")).to_have_text("away", timeout=WAIT_MS)
        alert = page.locator("#status-error")
        expect(alert).to_contain_text("The store is away")
        for tile in FIGURES:
            expect(page.locator(f"#tile-{tile}")).to_have_text("–")
        expect(page.locator("#key-form")).to_be_hidden()
        home.reload()
        page.reload()
        expect(alert).to_contain_text("The store is away", timeout=WAIT_MS)
        expect(page.locator("#tile-profiles")).to_have_text("–")
        expect(home.locator("#known-note")).to_contain_text("The list cannot be read")
        home.evaluate("location.hash = '/'")
        expect(home.locator("#profile-title")).to_have_text("This profile cannot be shown")
        assert store.revive()
        expect(page.locator("#tile-profiles")).to_have_text("0", timeout=WAIT_MS)
        expect(alert).to_be_hidden()
        # The answer comes by itself, without a reload.
        expect(home.locator("#profile-kicker")).to_contain_text("Example", timeout=WAIT_MS)
        expect(home.locator("#profile-error")).to_be_hidden()


def test_a_gateway_that_does_not_answer(stack: Stack, filled: str, open_page: Any) -> None:
    page: Page = open_page(f"{stack.url}/#/status").page
    expect(page.locator("#tile-profiles")).not_to_have_text("…")
    page.route("**/*", lambda route: route.abort())
    expect(page.locator("#status-error")).to_have_text(
        "No figures: the service does not answer.", timeout=WAIT_MS
    )
    expect(page.locator("#tile-store")).to_have_text("unknown")
    for tile in ("workers", *FIGURES):
        expect(page.locator(f"#tile-{tile}")).to_have_text("–")
    # An alert is read aloud each time that its text is set: once is enough.
    page.evaluate(
        "new MutationObserver(() => { window.again = true }).observe("
        "document.getElementById('status-error'), {childList: true, characterData: true})"
    )
    page.wait_for_timeout(6000)
    assert page.evaluate("window.again") is None
    page.unroute("**/*")
    expect(page.locator("#status-error")).to_be_hidden(timeout=WAIT_MS)
    expect(page.locator("#tile-workers")).to_have_text("1 live")


def test_figures_behind_a_proxy_that_answers_in_its_own_words(stack: Stack, open_page: Any) -> None:
    page: Page = open_page(f"{stack.url}/#/status").page
    expect(page.locator("#tile-profiles")).not_to_have_text("…")
    page.route("**/metrics", lambda route: route.fulfill(status=502, body="<h1>Bad gateway</h1>"))
    expect(page.locator("#status-error")).to_have_text(
        "No figures: the service answered 502.", timeout=WAIT_MS
    )
    expect(page.locator("#tile-waiting")).to_have_text("–")
    expect(page.locator("#tile-workers")).to_have_text("1 live")
    assert httpx.get(f"{stack.url}/readyz").is_success
