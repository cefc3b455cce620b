"""A placement is a picture: chunks can be moved, and what the order is worth follows."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from service.local.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from playwright.sync_api import Page, expect

CHUNKS = [("a", 12, 0.9), ("b", 8, 0.6), ("c", 16, 0.4), ("d", 10, 0.1)]
PASTED = "\n".join(f"{name}, {tokens}, {relevance}" for name, tokens, relevance in CHUNKS)


def placed(stack: Stack, filled: str, open_page: Any, **options: Any) -> Any:
    watched = open_page(f"{stack.url}/#/place?profile={filled}", **options)
    page: Page = watched.page
    page.locator("#chunks").fill(PASTED)
    page.locator("#prefix_tokens").fill("6")
    page.locator("#suffix_tokens").fill("5")
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator(".movable")).to_have_count(4)
    return watched


def order(page: Page) -> list[str]:
    found = page.locator(".movable").evaluate_all(
        "all => all.map(one => [one.getBoundingClientRect().left, one.dataset.id])"
        ".sort((one, other) => one[0] - other[0])"
    )
    return [identifier for _, identifier in found]


def value(stack: Stack, filled: str, ids: list[str]) -> dict[str, Any]:
    """What an order is worth, asked in another way than the page does: every chunk is pinned."""
    chunks = [
        {"id": name, "tokens": tokens, "relevance": relevance, "pinned": ids.index(name)}
        for name, tokens, relevance in CHUNKS
    ]
    body = {"profile_id": filled, "prefix_tokens": 6, "suffix_tokens": 5, "chunks": chunks}
    answer: dict[str, Any] = httpx.post(f"{stack.url}/v1/placements", json=body).json()
    assert answer["order"] == ids
    return answer


def shown_value(page: Page, row: str) -> float:
    label = page.locator("#chart-place text.name", has_text=row).text_content() or ""
    return float(label.rpartition("value ")[2])


def test_the_keyboard_moves_chunks_and_the_value_follows(
    stack: Stack, filled: str, open_page: Any
) -> None:
    watched = placed(stack, filled, open_page)
    page: Page = watched.page
    assert order(page) == ["a", "b", "c", "d"]
    before = value(stack, filled, ["a", "b", "c", "d"])
    assert shown_value(page, "Before") == pytest.approx(before["value"], rel=6e-3)
    chunk = page.locator(".movable[data-id='a']")
    chunk.press("ArrowRight")
    expect(page.locator("#chart-place text.name", has_text="moved by you")).to_be_visible()
    assert order(page) == ["b", "a", "c", "d"]
    expect(chunk).to_be_focused()
    chunk.press("End")
    wanted = value(stack, filled, ["b", "c", "d", "a"])
    expect(page.locator("#place-moved")).to_contain_text("As moved")
    page.wait_for_function("document.querySelector('#place-moved').ariaBusy === null")
    assert order(page) == ["b", "c", "d", "a"]
    assert shown_value(page, "moved by you") == pytest.approx(wanted["value"], rel=6e-3)
    # The table has the order that the picture shows.
    expect(page.locator("#place-table tbody td:nth-child(2)")).to_have_text(["b", "c", "d", "a"])
    # Chunks have the visibility of their new place.
    heard = {item["id"]: item["visibility"] for item in wanted["placements"]}
    said = chunk.get_attribute("aria-label") or ""
    assert float(said.partition("visibility ")[2].split("×")[0]) == pytest.approx(
        heard["a"], rel=6e-2
    )
    assert "place 4 of 4" in said
    page.get_by_role("button", name="Back to my order").click()
    expect(page.locator("#place-moved")).to_have_text("This is your own order.")
    assert order(page) == ["a", "b", "c", "d"]
    assert watched.complaints == []


@pytest.mark.parametrize("width", [360, 1280])
def test_a_chunk_is_dragged(stack: Stack, filled: str, open_page: Any, width: int) -> None:
    watched = placed(stack, filled, open_page, width=width)
    page: Page = watched.page
    page.locator("#chart-place").scroll_into_view_if_needed()
    first = page.locator(".movable[data-id='a']").bounding_box()
    last = page.locator(".movable[data-id='d']").bounding_box()
    assert first is not None
    assert last is not None
    page.mouse.move(first["x"] + first["width"] / 2, first["y"] + 10)
    page.mouse.down()
    steps = 12
    for step in range(1, steps + 1):
        to = first["x"] + (last["x"] + last["width"] - first["x"]) * step / steps
        page.mouse.move(to, first["y"] + 12)
    # The others have made room while it is still held.
    assert order(page)[:3] == ["b", "c", "d"]
    page.mouse.up()
    expect(page.locator("#place-moved")).to_contain_text("As moved")
    page.wait_for_function("document.querySelector('#place-moved').ariaBusy === null")
    assert order(page) == ["b", "c", "d", "a"]
    wanted = value(stack, filled, ["b", "c", "d", "a"])
    assert shown_value(page, "moved by you") == pytest.approx(wanted["value"], rel=6e-3)
    assert "order=1.2.3.0" in page.url
    assert watched.complaints == []


def test_the_colour_says_how_well_a_chunk_is_heard(
    stack: Stack, filled: str, open_page: Any
) -> None:
    page: Page = placed(stack, filled, open_page).page
    steps = [0.5, 0.75, 0.9, 1.1, 1.35, 2, float("inf")]
    answer = value(stack, filled, ["a", "b", "c", "d"])
    for item in answer["placements"]:
        step = next(at for at, end in enumerate(steps) if item["visibility"] <= end)
        rect = page.locator(f".movable[data-id='{item['id']}'] rect")
        assert rect.get_attribute("class") == f"heard h{step}"


def test_an_order_that_pins_forbid_is_answered_as_it_can_be(
    stack: Stack, filled: str, open_page: Any
) -> None:
    page: Page = open_page(f"{stack.url}/#/place?profile={filled}").page
    page.locator("#chunks").fill("id,tokens,relevance,pinned\na,12,0.9,first\nb,8,0.6,\nc,16,0.4,")
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator(".movable")).to_have_count(3)
    page.locator(".movable[data-id='a']").press("End")
    expect(page.locator("#place-moved")).to_contain_text("do not allow")
    assert order(page)[0] == "a"


def test_an_example_is_not_written_under_somebodys_hands(
    stack: Stack, filled: str, open_page: Any
) -> None:
    page: Page = open_page("about:blank").page
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/v1/profiles?**", hold)
    page.goto(f"{stack.url}/#/place?profile={filled}")
    chunks = page.locator("#chunks")
    unsized = chunks.input_value()
    # Everything is selected to be replaced, and only then is it known how long the profile is.
    chunks.press("ControlOrMeta+a")
    for route in held:
        route.continue_()
    expect(page.locator("#place-profile option")).not_to_have_count(1)
    page.keyboard.insert_text(PASTED)
    expect(chunks).to_have_value(PASTED)
    # Who wrote nothing has the example in its size.
    page.unroute("**/v1/profiles?**")
    page.reload()
    expect(chunks).not_to_have_value(unsized)


def test_back_to_the_answer_is_called_so(stack: Stack, filled: str, open_page: Any) -> None:
    page: Page = placed(stack, filled, open_page).page
    row = page.locator("#chart-place text.name", has_text="After")
    expect(row).to_contain_text("After, the answer: value ")
    page.locator(".movable[data-id='a']").press("End")
    expect(row).to_contain_text("After, moved by you: value ")
    assert "order=" in page.url
    page.get_by_role("button", name="Back to the answer").click()
    expect(row).to_contain_text("After, the answer: value ")
    assert "order=" not in page.url


def test_a_chunk_that_was_dropped_is_named(stack: Stack, filled: str, open_page: Any) -> None:
    page: Page = open_page(f"{stack.url}/#/place?profile={filled}&budget=20").page
    page.locator("#chunks").fill(PASTED)
    for field in ("prefix_tokens", "suffix_tokens"):
        page.locator(f"#{field}").fill("0")
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator("#place-table tbody tr")).not_to_have_count(0)
    page.locator("#place-notes summary").click()
    expect(page.locator("#place-notes")).to_contain_text("Dropped: ")
    page.locator("#max_tokens").fill("3")
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator("#place-lead")).to_have_text("No chunk is left to place.")


@pytest.mark.parametrize(
    ("advice", "gain", "words"),
    [
        (
            {"decision": "reorder", "reason": "r", "name": "relevance_last", "order": None},
            {"value": 0.058, "low": 0.017, "high": 0.11},
            "Reorder (most relevant last): what matters is heard 5.8% better "
            "(95% interval +1.7% to +11%) than in your order.",
        ),
        (
            {"decision": "keep", "reason": "r", "name": "curve", "order": None},
            {"value": 0.004, "low": -0.01, "high": 0.012},
            "Keep your order: another gains next to nothing, 0.4% better "
            "(95% interval -1% to +1.2%).",
        ),
        (
            {"decision": "undecided", "reason": "few documents", "name": "curve", "order": ["b"]},
            {"value": 0.04, "low": None, "high": None},
            "Undecided, so keep your order: another would be heard 4% better, but few documents.",
        ),
    ],
)
def test_the_decision_in_words(
    stack: Stack, filled: str, open_page: Any, advice: Any, gain: Any, words: str
) -> None:
    page: Page = open_page(f"{stack.url}/#/place?profile={filled}").page

    def answer(route: Any) -> None:
        body = route.fetch().json()
        body["gain"]["given"] = gain
        route.fulfill(json={**body, "advice": advice})

    page.route("**/v1/placements", answer)
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator("#place-lead")).to_have_text(words)
