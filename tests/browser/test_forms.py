"""What the forms send when somebody leaves them as they are, and how they say what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from service.local.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from playwright.sync_api import Page, expect

WAIT_MS = 60_000
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
PROSE = "A short text of one's own, long enough to fill the tokens that are asked for here. " * 3


def test_an_empty_field_is_asked_for(stack: Stack, open_page: Any) -> None:
    watched = open_page(f"{stack.url}/#/measure")
    page: Page = watched.page
    form = page.locator("#measure-form")
    form.get_by_label("Model", exact=True).fill("local:tiny")
    error = page.locator("#measure-error")
    for label in ("Tokens", "Documents"):
        form.get_by_label(label, exact=True).fill("")
        form.get_by_role("button", name="Measure", exact=True).click()
        expect(error).to_have_text(f"{label}: expected a whole number")
        expect(form.get_by_label(label, exact=True)).to_be_focused()
        form.get_by_label(label, exact=True).fill("8")
    form.get_by_label("Model", exact=True).fill(" ")
    form.get_by_role("button", name="Measure", exact=True).click()
    expect(error).to_have_text("Model: nothing given")
    expect(page.locator("#jobs article")).to_have_count(0)
    assert watched.complaints == []


def test_a_refusal_is_said_beside_the_form_and_at_the_field(
    stack: Stack, open_page: Any, measure: Any
) -> None:
    page: Page = open_page(stack.url).page
    measure(page, model="../../etc/passwd")
    expect(page.locator("#measure-error")).to_contain_text("model")
    expect(page.get_by_label("Model", exact=True)).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Model", exact=True)).to_be_focused()


def test_what_it_takes_is_said_before(stack: Stack, filled: str, open_page: Any) -> None:
    page: Page = open_page(f"{stack.url}/#/measure?model=local:tiny&tokens=64").page
    said = page.locator("#estimate")
    expect(said).to_contain_text("Reads 32 to 64 documents of 64 tokens, 2,048 to 4,096 in all")
    expect(said).to_contain_text("at the pace of this model's measurements here")
    items = httpx.get(f"{stack.url}/v1/profiles?limit=100").json()["items"]
    tiny = [one for one in items if (one["model"], one["weights"]) == ("local:tiny", "pretrained")]
    longest = max(tiny, key=lambda one: one["documents"] * one["sequence_length"])
    pace = httpx.get(f"{stack.url}/v1/profiles/{longest['id']}").json()["timings"]
    page.get_by_label("Documents", exact=True).fill("4000")
    expect(said).to_contain_text("Reads 4000 documents of 64 tokens, 256,000 in all: about ")
    amount, unit = (said.text_content() or "").partition("about ")[2].split()[:2]
    seconds = float(amount) * {"s": 1, "min": 60, "h": 3600}[unit.rstrip(",")]
    wanted = pace["load_seconds"] + 256_000 / pace["tokens_per_second"]
    assert seconds == pytest.approx(wanted, rel=0.1, abs=1)
    page.get_by_label("Model", exact=True).fill("someone/unknown")
    expect(said).to_contain_text("This service has not measured the model yet")


def test_documents_of_ones_own(stack: Stack, open_page: Any, measure: Any, tmp_path: Path) -> None:
    watched = open_page(f"{stack.url}/#/measure")
    page: Page = watched.page
    form = page.locator("#measure-form")
    form.get_by_label("Model", exact=True).fill("local:tiny")
    form.get_by_label("Tokens", exact=True).fill("64")
    expect(form.get_by_label("Documents: separate")).to_be_hidden()
    form.get_by_label("Text", exact=True).select_option("inline")
    form.get_by_role("button", name="Measure", exact=True).click()
    expect(page.locator("#measure-error")).to_contain_text("nothing given")
    form.get_by_label("Documents: separate").fill(PROSE)
    lines = tmp_path / "more.jsonl"
    lines.write_text(f'{{"text": "Two. {PROSE}"}}\n"Three. {PROSE}"\n')
    (tmp_path / "four.txt").write_text(f"Four. {PROSE}")
    page.locator("#files").set_input_files([lines, tmp_path / "four.txt"])
    expect(page.locator("#live")).to_have_text("4 documents in the field")
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    page.locator("#files").set_input_files(bad)
    expect(page.locator("#measure-error")).to_contain_text("bad.json: ")
    with page.expect_request("**/v1/profiles") as asked:
        form.get_by_role("button", name="Measure", exact=True).click()
    documents = (asked.value.post_data_json or {})["documents"]
    assert documents["source"] == "inline"
    assert documents["texts"] == [f"{n}{PROSE}".strip() for n in ("", "Two. ", "Three. ", "Four. ")]
    expect(page.locator("#profile-kicker")).to_contain_text("of own text", timeout=WAIT_MS)
    assert "short text" not in page.evaluate("JSON.stringify(sessionStorage) + location.href")
    assert watched.complaints == []


def test_a_dropped_file_is_read(stack: Stack, open_page: Any) -> None:
    page: Page = open_page(f"{stack.url}/#/measure").page
    page.get_by_label("Text", exact=True).select_option("inline")
    page.evaluate(
        "text => { const data = new DataTransfer();"
        "data.items.add(new File([text], 'dropped.txt', {type: 'text/plain'}));"
        "document.getElementById('own').dispatchEvent("
        "new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true})); }",
        "what was dropped",
    )
    expect(page.locator("#texts")).to_have_value("what was dropped")


def test_faults_name_the_labels(stack: Stack, filled: str, open_page: Any) -> None:
    page: Page = open_page(f"{stack.url}/#/place?profile={filled}").page
    page.locator("#place-options summary").click()
    page.get_by_label("Budget", exact=True).fill("0")
    page.get_by_role("button", name="Place", exact=True).click()
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


def test_the_default_is_a_usual_profile_or_the_one_that_was_shown(
    stack: Stack, filled: str, open_page: Any
) -> None:
    page: Page = open_page("about:blank").page
    whole = httpx.get(f"{stack.url}/v1/profiles?limit=100").json()["items"]
    item = next(one for one in whole if one["id"] == filled)
    ids = {name: str(at) * 32 for at, name in enumerate(NAMES)}
    items = [{**item, "id": ids[name], **changes} for name, changes in NAMES.items()]
    body = {"items": items, "next": None}
    page.route("**/v1/profiles?**", lambda route: route.fulfill(json=body))
    page.goto(f"{stack.url}/#/place")
    expect(page.locator("#place-profile")).to_have_value(ids["usual"])
    shown = httpx.get(f"{stack.url}/v1/profiles/{filled}").json()
    page.route("**/v1/profiles/5*", lambda route: route.fulfill(json={**shown, "id": ids["one"]}))
    page.goto(f"{stack.url}/#/profile/{ids['one']}")
    page.get_by_role("link", name="Place chunks").click()
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
    page: Page = open_page(f"{stack.url}/#/place?profile={filled}").page
    page.route(
        "**/v1/placements", lambda route: route.fulfill(json={**route.fetch().json(), **answered})
    )
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator("#place-notes")).to_contain_text(words)


def test_the_second_moment_is_asked_for(
    stack: Stack, filled: str, open_page: Any, measure: Any
) -> None:
    page: Page = open_page(f"{stack.url}/#/measure").page
    refusal = {"code": "too_large", "detail": "within it are all of it without second_moment"}
    page.route("**/v1/profiles", lambda route: route.fulfill(status=422, json=refusal))
    page.get_by_label("Model", exact=True).fill("local:tiny")
    page.get_by_role("button", name="Measure", exact=True).click()
    expect(page.locator("#second_moment")).to_be_visible()
    page.unroute("**/v1/profiles")
    with page.expect_request("**/v1/profiles") as asked:
        measure(page, seed=31)
    assert "predictions" not in (asked.value.post_data_json or {"predictions": 0})
    expect(page.locator("#profile-kicker")).to_contain_text("seed 31", timeout=WAIT_MS)
    page.goto(f"{stack.url}/#/measure")
    page.locator("#second_moment").check()
    with page.expect_request("**/v1/profiles") as asked:
        measure(page, seed=11)
    names = (asked.value.post_data_json or {})["predictions"]
    assert len(names) == 7
    assert "second_moment" in names


def test_recall_is_offered_where_it_is_missing(stack: Stack, filled: str, open_page: Any) -> None:
    page: Page = open_page(f"{stack.url}/#/profile/{filled}").page
    page.get_by_role("link", name="Measure recall").click()
    expect(page.get_by_label("Model", exact=True)).to_have_value("local:tiny")
    expect(page.locator("#recall")).to_be_checked()
