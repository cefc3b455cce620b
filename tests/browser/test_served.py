"""A model behind an API in the browser: measured through the form, and two of them compared."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from service.local.stack import Stack
from service.settings import Settings
from tests.workers.endpoints.fake_dialects import DIALECTS
from tests.workers.endpoints.fake_model import FakeModel, flat, recency
from tests.workers.endpoints.fake_server import KEY, FakeServer

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from typing import Any

from playwright.sync_api import Page, expect

WAIT_MS = 240_000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A service with two endpoints: one model recalls the end best, the other every place alike."""
    with DIALECTS["vllm"](FakeModel(recency)) as one, DIALECTS["vllm"](FakeModel(flat)) as other:
        table = {"recent": _table(one), "even": _table(other)}
        settings = Settings(
            data_dir=tmp_path_factory.mktemp("s"), log_format="text", endpoints=json.dumps(table)
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FAKE_KEY", KEY)
            with Stack(settings, workers=0, endpoints=True) as running:
                yield running


def _table(server: FakeServer) -> dict[str, Any]:
    return {
        "base_url": f"{server.url}/v1", "model": "fake", "form": "plain", "context_length": 4096,
        "key_variable": "FAKE_KEY", "concurrency": 3, "input_price": 1.0, "output_price": 2.0,
    }  # fmt: skip


def measured(page: Page, name: str) -> str:
    """Measures the recall of an endpoint through the form, and answers the profile's id."""
    page.locator("nav").get_by_role("link", name="Measure").click()
    form = page.locator("#measure-form")
    form.get_by_label("Model", exact=True).fill(f"endpoint:{name}")
    form.get_by_label("Tokens", exact=True).fill("256")
    form.get_by_label("Groups of facts").fill("16")
    expect(page.locator("#estimate")).to_contain_text("at the endpoint's prices")
    form.get_by_role("button", name="Measure", exact=True).click()
    expect(page.locator("#view-profile")).to_be_visible(timeout=WAIT_MS)
    expect(page.locator("#profile-kicker")).to_contain_text(f"endpoint:{name}", timeout=WAIT_MS)
    return page.url.partition("#/profile/")[2]


@pytest.mark.parametrize("width", [360])
def test_two_served_models_are_measured_and_compared(
    served: Stack, open_page: Any, width: int
) -> None:
    watched = open_page(served.url, width=width)
    page: Page = watched.page
    recent = measured(page, "recent")
    expect(page.locator("#profile-title")).to_contain_text("recent recalls facts best near token")
    expect(page.locator("#influence-part")).to_be_hidden()
    expect(page.locator("#chart-recall svg")).to_be_visible()
    even = measured(page, "even")
    page.get_by_role("link", name="Place chunks").click()
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator(".movable")).to_have_count(6)
    page.goto(f"{served.url}/#/compare?a={recent}&b={even}")
    address = f"{served.url}/v1/comparisons?a={recent}&b={even}"
    found = httpx.get(address).json()
    assert found["source"] == "recall"
    assert found["recall"][0]["paired"]
    lead = page.locator("#compare-lead")
    expect(lead).to_contain_text("even, 256 tokens, against recent, 256 tokens: ")
    expect(page.locator("#compare-recall path.band").first).to_be_visible()
    said = {
        "difference": "A difference", "no_difference": "No difference", "undecided": "Undecided",
    }[found["recall"][0]["verdict"]]  # fmt: skip
    expect(page.locator("#compare-recall [data-verdict=facts]")).to_contain_text(said)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    text = lead.text_content() or ""
    page.reload()
    expect(lead).to_have_text(text)
    assert watched.complaints == []
