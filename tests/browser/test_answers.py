"""What the page shows is the answer to what was asked, or says that there is none."""

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

OFF = {
    "model": "local:tiny", "sequence_length": 64, "documents": {"count": 1},
    "positional_encoding": "off", "content_scale": "raw",
    "predictions": ["residual"],
}  # fmt: skip
ALONE = {"model": "local:tiny", "sequence_length": 64, "documents": {"count": 1}}


def profile(stack: Stack, body: dict[str, Any]) -> str:
    answer = httpx.post(
        f"{stack.url}/v1/profiles", json=body, headers={"Prefer": "wait=60"}, timeout=90
    )
    assert answer.status_code == httpx.codes.OK, answer.text
    return str(answer.json()["id"])


def ready(page: Page, identifier: str) -> None:
    expect(page.locator(f"#place-profile option[value='{identifier}']")).to_be_attached()


def test_no_old_answer_stands_under_a_new_error(stack: Stack, filled: str, open_page: Any) -> None:
    watched = open_page(f"{stack.url}/#profile={filled}")
    page: Page = watched.page
    ready(page, filled)
    expect(page.locator("#profile-links a").first).to_be_visible()
    place = page.get_by_role("button", name="Place", exact=True)
    compare = page.get_by_role("button", name="Compare", exact=True)
    place.click()
    compare.click()
    expect(page.locator("#chart-place")).to_be_visible()
    expect(page.locator("#compare-body")).to_be_visible()
    page.route("**/v1/**", lambda route: route.abort())
    place.click()
    expect(page.locator("#place-error")).to_have_text("the service does not answer")
    expect(page.locator("#place-lead")).not_to_contain_text("Worth")
    expect(page.locator("#chart-place")).to_be_hidden()
    expect(page.locator("#place-table")).to_be_empty()
    compare.click()
    expect(page.locator("#compare-error")).to_have_text("the service does not answer")
    expect(page.locator("#compare-lead")).not_to_contain_text("Second against first")
    expect(page.locator("#compare-body")).to_be_hidden()
    expect(page.locator("#compare-links")).to_be_empty()
    page.evaluate(f"location.hash = 'profile={'0' * 32}'")
    expect(page.locator("#profile-error")).to_have_text("the service does not answer")
    expect(page.locator("#profile-body")).to_be_hidden()
    expect(page.locator("#profile-title")).to_have_text("Profile")
    expect(page.locator("#profile-links")).to_be_empty()
    assert [text for text in watched.complaints if "ERR_FAILED" not in text] == []


def test_a_threshold_that_fails_is_said_and_undone(
    stack: Stack, filled: str, open_page: Any
) -> None:
    watched = open_page(f"{stack.url}/#profile={filled}")
    page: Page = watched.page
    expect(page.locator("#profile-links a").first).to_be_visible()
    zone = page.locator("#profile-facts dd").first.text_content() or ""
    page.route("**/dead-zone**", lambda route: route.abort())
    page.locator("#threshold").fill("0.3")
    expect(page.locator("#profile-error")).to_have_text("the service does not answer")
    expect(page.locator("#threshold")).to_have_value("0.75")
    expect(page.locator("#threshold-value")).to_have_text("0.75")
    expect(page.locator("#profile-facts dd").first).to_have_text(zone)
    page.unroute("**/dead-zone**")
    page.locator("#threshold").fill("1.5")
    expect(page.locator("#profile-error")).to_be_hidden()
    expect(page.locator("#live")).to_contain_text("Dead zone")
    assert [text for text in watched.complaints if "ERR_FAILED" not in text] == []


def test_the_older_and_the_saved_fail_aloud(stack: Stack, filled: str, open_page: Any) -> None:
    watched = open_page(stack.url)
    page: Page = watched.page
    ready(page, filled)
    page.route("**/v1/profiles?**", lambda route: route.abort())
    page.evaluate("document.getElementById('more').hidden = false")
    page.get_by_role("button", name="Older").click()
    expect(page.locator("#measure-error")).to_have_text("the service does not answer")
    page.get_by_label("API key", exact=True).fill("any")
    page.get_by_role("button", name="Use").click()
    page.route("**/v1/models", lambda route: route.abort())
    page.get_by_role("link", name="models").click()
    expect(page.locator("#status-error")).to_have_text("the service does not answer")
    assert [text for text in watched.complaints if "ERR_FAILED" not in text] == []


def test_only_the_last_answer_counts(stack: Stack, filled: str, open_page: Any) -> None:
    page: Page = open_page(stack.url).page
    ready(page, filled)
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/v1/placements", hold)
    place = page.get_by_role("button", name="Place", exact=True)
    result = page.locator("#place-result")
    for text in ("first, 50, 0.5", "second, 50, 0.5"):
        page.locator("#chunks").fill(text)
        place.click()
    expect(result).to_have_attribute("aria-busy", "true")
    page.wait_for_timeout(300)
    held[1].continue_()
    expect(page.locator("#place-table tbody td:nth-child(2)")).to_have_text("second")
    expect(result).not_to_have_attribute("aria-busy", "true")
    held[0].continue_()
    page.wait_for_timeout(700)
    expect(page.locator("#place-table tbody td:nth-child(2)")).to_have_text("second")


def test_a_comparison_says_what_it_can_tell(stack: Stack, filled: str, open_page: Any) -> None:
    alone, off = profile(stack, ALONE), profile(stack, OFF)
    page: Page = open_page(stack.url).page
    ready(page, off)
    lead = page.locator("#compare-lead")

    def compare(first: str, second: str) -> None:
        page.locator("#compare-a").select_option(first)
        page.locator("#compare-b").select_option(second)
        page.get_by_role("button", name="Compare", exact=True).click()

    compare(filled, filled)
    expect(page.locator("#compare-error")).to_contain_text("the same profile")
    compare(filled, alone)
    expect(lead).to_have_text(
        "Second against first: undecided: it takes 12 documents on each side; a has 4, b has 1."
    )
    compare(alone, off)
    expect(lead).to_contain_text("undecided: it takes 12 documents on each side")
    expect(page.locator("#compare-table")).to_contain_text("Note: different positional encodings")
    expect(page.locator("#live")).to_have_text(lead.text_content() or "")


def test_an_ablation_is_told_apart(stack: Stack, filled: str, open_page: Any) -> None:
    off = profile(stack, OFF)
    page: Page = open_page(f"{stack.url}/#profile={off}").page
    expect(page.locator("#profile-facts")).to_contain_text("Positionsoff (ablation)")
    how = "pretrained weights, 1 document, positions off, raw content"
    expect(page.locator("#profile-lead")).to_contain_text(how)
    expect(page.locator(f"#place-profile option[value='{off}']")).to_contain_text(how)
    expect(page.locator(f"#known tr[data-id='{off}']")).to_contain_text(how)


def test_the_second_moment_is_asked_for(
    stack: Stack, filled: str, open_page: Any, measure: Any
) -> None:
    page: Page = open_page(stack.url).page
    ready(page, filled)
    refusal = {"code": "too_large", "detail": "within it are all of it without second_moment"}
    page.route("**/v1/profiles", lambda route: route.fulfill(status=422, json=refusal))
    page.get_by_role("button", name="Measure", exact=True).click()
    expect(page.locator("#second_moment")).to_be_visible()
    page.unroute("**/v1/profiles")
    with page.expect_request("**/v1/profiles") as asked:
        measure(page, seed=31)
    assert "predictions" not in (asked.value.post_data_json or {"predictions": 0})
    page.get_by_text("Show the profile").click(timeout=60_000)
    expect(page.locator("#curve-residual")).to_be_visible()
    expect(page.locator("#curve-second_moment")).to_have_count(0)
    page.get_by_label("second moment").check()
    with page.expect_request("**/v1/profiles") as asked:
        measure(page, seed=11)
    names = (asked.value.post_data_json or {})["predictions"]
    assert len(names) == 7
    assert "second_moment" in names


def test_no_heading_over_nothing(stack: Stack, filled: str, open_page: Any) -> None:
    page: Page = open_page(stack.url).page
    ready(page, filled)
    body = httpx.get(f"{stack.url}/v1/profiles/{filled}").json()
    body.update(mixing=None, forces=[], predictions={}, collapse=None)
    page.route(f"**/v1/profiles/{filled}", lambda route: route.fulfill(json=body))
    page.locator(f"#known tr[data-id='{filled}'] button").click()
    expect(page.locator("#chart-profile")).to_be_visible()
    for name in ("Mixing coefficient by layer", "Forces, switched on one after another"):
        expect(page.get_by_role("heading", name=name)).to_be_hidden()
    page.unroute(f"**/v1/profiles/{filled}")
    page.reload()
    expect(page.get_by_role("heading", name="Mixing coefficient by layer")).to_be_visible()


def test_a_refusal_is_said_beside_the_form_and_at_the_field(
    stack: Stack, open_page: Any, measure: Any
) -> None:
    page: Page = open_page(stack.url).page
    measure(page, model="../../etc/passwd")
    expect(page.locator("#measure-error")).to_contain_text("model")
    expect(page.get_by_label("Model", exact=True)).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Model", exact=True)).to_be_focused()


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
    assert view["verdict"] == "undecided"  # four documents decide nothing
    expect(page.locator("#profile-facts dd").first).to_contain_text("undecided")
    assert watched.complaints == []


def test_profiles_are_told_apart_and_the_example_fits(
    stack: Stack, filled: str, open_page: Any
) -> None:
    page: Page = open_page(stack.url).page
    option = page.locator(f"#place-profile option[value='{filled}']")
    summary = httpx.get(f"{stack.url}/v1/profiles?limit=100").json()["items"]
    made = next(item["created_at"] for item in summary if item["id"] == filled)
    how = "pretrained weights, 4 documents, seed 11"
    text = f"local:tiny, 64 tokens, {how}, {made[:10]} {made[11:16]}"
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
