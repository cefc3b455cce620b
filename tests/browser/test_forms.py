"""What the forms send when somebody leaves them as they are, and how they say what is wrong."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from service.local.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from playwright.sync_api import Page, expect

NAMES = {
    "random": {"weights": "random"},
    "off": {"positional_encoding": "off"},
    "noise": {"documents_source": "random_tokens"},
    "target": {"objective": "target_logprob"},
    "own": {"documents_source": "inline"},
    "one": {"documents": 1},
    "usual": {},
    "older": {},
}


def opened(page: Page, identifier: str) -> None:
    expect(page.locator(f"#place-profile option[value='{identifier}']")).to_be_attached()
    page.get_by_role("button", name="Place", exact=True).click()


def test_an_empty_field_is_asked_for(stack: Stack, open_page: Any, measure: Any) -> None:
    watched = open_page(stack.url)
    page: Page = watched.page
    page.get_by_label("Model", exact=True).fill("local:tiny")
    error = page.locator("#measure-error")
    for label in ("Tokens", "Documents"):
        page.get_by_label(label, exact=True).fill("")
        page.get_by_role("button", name="Measure", exact=True).click()
        expect(error).to_have_text(f"{label}: expected a whole number")
        expect(page.get_by_label(label, exact=True)).to_be_focused()
        page.get_by_label(label, exact=True).fill("8")
    page.get_by_label("Model", exact=True).fill(" ")
    page.get_by_role("button", name="Measure", exact=True).click()
    expect(error).to_have_text("Model: nothing given")
    expect(page.locator("#jobs article")).to_have_count(0)
    assert watched.complaints == []


def test_faults_name_the_labels(stack: Stack, filled: str, open_page: Any) -> None:
    page: Page = open_page(stack.url).page
    page.get_by_label("Budget", exact=True).fill("0")
    opened(page, filled)
    error = page.locator("#place-error")
    expect(error).to_have_text("Budget: Input should be greater than or equal to 1")
    refusal = {
        "code": "too_large", "detail": "too much",
        "errors": [
            {"field": "max_tokens", "message": "`max_tokens`: 3, of `prefix_tokens` and `other`"},
            {"field": "prefix_tokens", "message": "`prefix_tokens` and more"},
            {"field": "profile_id", "message": "no such profile"},
            {"field": "elsewhere", "message": "strange"},
        ],
    }  # fmt: skip
    page.route("**/v1/placements", lambda route: route.fulfill(status=422, json=refusal))
    page.get_by_role("button", name="Place", exact=True).click()
    expect(error.locator("p")).to_have_text(
        [
            'Budget: 3, of "Tokens before" and `other`',
            '"Tokens before" and more',
            "Profile: no such profile",
            "elsewhere: strange",
        ]
    )
    expect(page.locator("#place-profile")).to_have_attribute("aria-invalid", "true")


def test_the_default_is_a_usual_profile_or_the_one_on_show(
    stack: Stack, filled: str, open_page: Any
) -> None:
    page: Page = open_page("about:blank").page
    whole = httpx.get(f"{stack.url}/v1/profiles?limit=100").json()["items"]
    item = next(one for one in whole if one["id"] == filled)
    ids = {name: str(at) * 32 for at, name in enumerate(NAMES)}
    items = [{**item, "id": ids[name], **changes} for name, changes in NAMES.items()]
    body = {"items": items, "next": None}
    page.route("**/v1/profiles?**", lambda route: route.fulfill(json=body))
    page.goto(stack.url)
    expect(page.locator("#place-profile")).to_have_value(ids["usual"])
    shown = httpx.get(f"{stack.url}/v1/profiles/{filled}").json()
    page.route("**/v1/profiles/5*", lambda route: route.fulfill(json={**shown, "id": ids["one"]}))
    page.locator(f"#known tr[data-id='{ids['one']}'] button").click()
    expect(page.locator("#place-profile")).to_have_value(ids["one"])


@pytest.mark.parametrize(
    ("answered", "words"),
    [
        ({"method": "heuristic", "gap": 0.0819}, "(heuristic, at most 8.19% below the best)"),
        ({"method": "heuristic", "gap": None}, "(heuristic)"),
        ({"method": "exact", "gap": 0.0}, "(exact)"),
    ],
)
def test_what_an_order_may_lack_is_said(
    stack: Stack, filled: str, open_page: Any, answered: dict[str, Any], words: str
) -> None:
    page: Page = open_page(stack.url).page

    def answer(route: Any) -> None:
        reply = route.fetch()
        route.fulfill(json={**reply.json(), **answered})

    page.route("**/v1/placements", answer)
    opened(page, filled)
    expect(page.locator("#place-lead")).to_contain_text(words)


def test_a_zone_shows_how_sure_it_is_and_the_depth_is_plain(
    stack: Stack, filled: str, open_page: Any
) -> None:
    body = httpx.get(f"{stack.url}/v1/profiles/{filled}").json()
    zone = {
        "start": 5, "end": 41, "fraction": 0.5, "mean_density": 0.5, "min_density": 0.4,
        "argmin": 6, "threshold": 0.75, "start_band": {"low": 3.2, "high": 9},
        "end_band": {"low": 30, "high": 44.6},
    }  # fmt: skip
    page: Page = open_page(stack.url).page
    opened(page, filled)
    body.update(dead_zone=zone, dead_zone_verdict="zone")
    body["collapse"].update(last_to_first=0.25, last_to_last=0.125)
    page.route(f"**/v1/profiles/{filled}", lambda route: route.fulfill(json=body))
    page.locator(f"#known tr[data-id='{filled}'] button").click()
    facts = page.locator("#profile-facts")
    expect(facts).to_contain_text("Dead zone5–40 (50%)")
    expect(facts).to_contain_text("Its 95% bandfrom 3–9 to 29–44")
    depth = page.locator("#profile-tables").get_by_text("Depth, by the model's own rollout: ")
    expect(depth).to_contain_text(body["collapse"]["verdict"])
    expect(depth).to_contain_text("After 6 layers the first token gets 25% of the influence")
    expect(depth).not_to_contain_text("P[n-1")
    # Another threshold has no bands; none are made up.
    page.locator("#threshold").fill("1.5")
    expect(facts).to_contain_text("Its 95% band–")
