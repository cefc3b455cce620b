"""What the page shows is the answer to what was asked, or says that there is none."""

from __future__ import annotations

import json
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
ZONE = {
    "start": 5, "end": 41, "fraction": 0.5, "mean_density": 0.5, "min_density": 0.4,
    "argmin": 6, "threshold": 0.75, "start_band": {"low": 3.2, "high": 9},
    "end_band": {"low": 30, "high": 44.6},
}  # fmt: skip
RECALL = {
    "depth": [0.1, 0.5, 0.9], "position": [6, 32, 58], "prompt_tokens": 64,
    "probability": [0.31, 0.2, 0.62], "low": [0.2, 0.1, 0.5], "high": [0.4, 0.3, 0.7],
    "simultaneous_low": [0.25, 0.1, 0.5], "simultaneous_high": [0.35, 0.3, 0.7],
    "log_probability": [-1.2, -1.6, -0.5], "by_group": [], "groups": 24, "facts": 3,
    "sampling": {
        "reason": "fixed", "half_width": 0.05, "target": 0.05, "at_double": 0.03, "needed": 24,
    },
    "controls": {"closed_book": 0.01, "oracle": 0.7, "repeat": 0}, "verdict": "varies", "p": 0.004,
    "alpha": 0.025, "spread": 0.42, "rung": "answer", "reader": "weights", "form": "plain",
    "question": "last", "spearman_with_influence": None, "influence_density": [1, 0.5, 1.5],
}  # fmt: skip
FOUND = {"dead_zone": ZONE, "dead_zone_verdict": "zone"}
CERTAIN = "Well supported: at most 1 in 20 such findings is false"


def profile(stack: Stack, body: dict[str, Any]) -> str:
    answer = httpx.post(
        f"{stack.url}/v1/profiles", json=body, headers={"Prefer": "wait=60"}, timeout=90
    )
    assert answer.status_code == httpx.codes.OK, answer.text
    return str(answer.json()["id"])


def shown(stack: Stack, open_page: Any, identifier: str, **changes: Any) -> Page:
    """The page of a profile, with other content."""
    page: Page = open_page("about:blank").page
    body = httpx.get(f"{stack.url}/v1/profiles/{identifier}").json()
    page.route(f"**/v1/profiles/{identifier}", lambda route: route.fulfill(json=body | changes))
    page.goto(f"{stack.url}/#/profile/{identifier}")
    expect(page.locator("#profile-body")).to_be_visible()
    return page


def shape(first: tuple[float, float], last: tuple[float, float]) -> dict[str, Any]:
    return {
        "class": "u_shaped", "decided": True, "support": {"u_shaped": 1}, "primacy_mass": first[0],
        "recency_mass": last[0], "primacy_band": {"low": first[0], "high": first[1]},
        "recency_band": {"low": last[0], "high": last[1]},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "sentence", "certainty"),
    [
        (
            FOUND | {"shape": shape((0.08, 0.1), (0.2, 0.3))},
            "tiny listens least between tokens 5 and 40; put what matters last.",
            f"{CERTAIN} (4 documents of 64 tokens read). It begins between tokens 3 and 9 and ends "
            "between tokens 29 and 44.",
        ),
        (
            FOUND | {"shape": shape((0.1, 0.2), (0.1, 0.2))},
            "tiny listens least between tokens 5 and 40; put what matters first or last.",
            CERTAIN,
        ),
        (
            {"dead_zone": ZONE | {"start": 0}, "dead_zone_verdict": "zone"},
            "tiny listens least between tokens 0 and 40; put what matters last.",
            CERTAIN,
        ),
        (
            {"dead_zone": ZONE | {"end": 64}, "dead_zone_verdict": "zone"},
            "tiny listens least between tokens 5 and 63; put what matters first.",
            CERTAIN,
        ),
        (
            {"dead_zone": None, "dead_zone_verdict": "none"},
            "tiny listens to every part of 64 tokens; the order of chunks matters little.",
            "Well supported (95%): no stretch falls below the threshold",
        ),
        (
            {"dead_zone": ZONE, "dead_zone_verdict": "undecided"},
            "Undecided: 4 documents do not show where tiny listens least, perhaps between tokens 5 "
            "and 40.",
            "A decision takes 12 documents or more.",
        ),
        (
            FOUND | {"recall": {"facts": RECALL | {"verdict": "flat"}}},
            "tiny listens least between tokens 5 and 40; yet it recalls facts equally well "
            "wherever they stand, so their order matters little.",
            "Recall of facts is the same at every depth",
        ),
        # Recall decides where it was found to vary, whatever influence says.
        (
            {"dead_zone": ZONE | {"start": 0}, "dead_zone_verdict": "zone",
             "recall": {"facts": RECALL | {"probability": [0.6, 0.2, 0.3]}}},
            "tiny listens least between tokens 0 and 40; put what matters first.",
            "How often a fact is recalled depends on where it stands: 20% of facts are recalled "
            "near token 32, 60% near token 6 (p = 0.004).",
        ),
        (
            {"measured": None, "dead_zone": None, "dead_zone_verdict": None, "shape": None,
             "mixing": None, "predictions": {}, "forces": [], "collapse": None,
             "recall": {"facts": RECALL}},
            "tiny recalls facts best near token 58 (62%) and worst near token 32 (20%); put what "
            "matters last.",
            f"{CERTAIN}. 24 groups of 3 facts were read.",
        ),
    ],
)  # fmt: skip
def test_the_answer_in_one_sentence(
    stack: Stack,
    filled: str,
    open_page: Any,
    changes: dict[str, Any],
    sentence: str,
    certainty: str,
) -> None:
    page = shown(stack, open_page, filled, **changes)
    expect(page.locator("#profile-title")).to_have_text(sentence)
    expect(page.locator("#profile-certainty")).to_contain_text(certainty)
    expect(page.locator("#influence-part")).to_be_visible(visible="measured" not in changes)
    expect(page.locator("#recall-part")).to_be_visible(visible="recall" in changes)
    sure = "open" if "Undecided" in sentence else "sure"
    expect(page.locator("#profile-certainty")).to_have_class(sure)


def test_influence_and_recall_share_their_axis(stack: Stack, filled: str, open_page: Any) -> None:
    page = shown(stack, open_page, filled, recall={"facts": RECALL | {"prompt_tokens": 80.0}})
    ticks = [
        page.locator(f"#chart-{name} line.axis").evaluate_all(
            "all => all.map(one => Math.round(one.getBoundingClientRect().left))"
        )
        for name in ("profile", "recall")
    ]
    assert len(ticks[0]) > 3
    assert ticks[0] == ticks[1]


def test_no_old_answer_stands_under_a_new_error(stack: Stack, filled: str, open_page: Any) -> None:
    watched = open_page(f"{stack.url}/#/place?profile={filled}")
    page: Page = watched.page
    place = page.get_by_role("button", name="Place", exact=True)
    place.click()
    expect(page.locator("#place-result")).to_be_visible()
    page.route("**/v1/**", lambda route: route.abort())
    place.click()
    expect(page.locator("#place-error")).to_have_text("the service does not answer")
    expect(page.locator("#place-lead")).to_be_empty()
    expect(page.locator("#place-result")).to_be_hidden()
    page.unroute("**/v1/**")
    page.goto(f"{stack.url}/#/compare?a={filled}&b={profile(stack, ALONE)}")
    expect(page.locator("#compare-body")).to_be_visible()
    page.route("**/v1/**", lambda route: route.abort())
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.locator("#compare-error")).to_have_text("the service does not answer")
    expect(page.locator("#compare-lead")).to_be_empty()
    expect(page.locator("#compare-body")).to_be_hidden()
    expect(page.locator("#compare-links")).to_be_empty()
    page.evaluate(f"location.hash = '/profile/{'0' * 32}'")
    expect(page.locator("#profile-error")).to_have_text("the service does not answer")
    expect(page.locator("#profile-body")).to_be_hidden()
    expect(page.locator("#profile-title")).to_have_text("This profile cannot be shown")
    assert [text for text in watched.complaints if "ERR_FAILED" not in text] == []


def test_a_threshold_that_fails_is_said_and_undone(
    stack: Stack, filled: str, open_page: Any
) -> None:
    watched = open_page(f"{stack.url}/#/profile/{filled}")
    page: Page = watched.page
    page.get_by_text("Another threshold").click()
    said = page.locator("#threshold-zone").text_content() or ""
    page.route("**/dead-zone**", lambda route: route.abort())
    page.locator("#threshold").fill("0.3")
    expect(page.locator("#threshold-error")).to_have_text("the service does not answer")
    expect(page.locator("#threshold")).to_have_value("0.75")
    expect(page.locator("#threshold-value")).to_have_text("0.75×")
    expect(page.locator("#threshold-zone")).to_have_text(said)
    page.unroute("**/dead-zone**")
    page.locator("#threshold").fill("1.5")
    expect(page.locator("#threshold-error")).to_be_hidden()
    expect(page.locator("#live")).to_contain_text("Below 1.5×")
    assert [text for text in watched.complaints if "ERR_FAILED" not in text] == []


def test_the_older_and_the_saved_fail_aloud(stack: Stack, filled: str, open_page: Any) -> None:
    watched = open_page(f"{stack.url}/#/profiles")
    page: Page = watched.page
    expect(page.locator("#known tr")).not_to_have_count(0)
    page.route("**/v1/profiles?**", lambda route: route.abort())
    page.evaluate("document.getElementById('more').hidden = false")
    page.get_by_role("button", name="Older").click()
    expect(page.locator("#known-error")).to_have_text("the service does not answer")
    page.evaluate("sessionStorage['lacuna-api-key'] = 'any'; location.hash = '/status'")
    page.route("**/v1/models", lambda route: route.abort())
    page.get_by_role("link", name="models").click()
    expect(page.locator("#link-error")).to_have_text("the service does not answer")
    assert [text for text in watched.complaints if "ERR_FAILED" not in text] == []


def test_only_the_last_answer_counts(stack: Stack, filled: str, open_page: Any) -> None:
    page: Page = open_page(f"{stack.url}/#/place?profile={filled}").page
    place = page.get_by_role("button", name="Place", exact=True)
    place.click()
    expect(page.locator("#place-table tbody tr")).to_have_count(6)
    held: list[Any] = []

    def hold(route: Any) -> None:
        own = (route.request.post_data_json or {})["strategy"] == "cache_prefix"
        route.continue_() if own else held.append(route)

    page.route("**/v1/placements", hold)
    result = page.locator("#place-result")
    for text in ("first, 50, 0.5", "second, 50, 0.5"):
        page.locator("#chunks").fill(text)
        place.click()
    expect(result).to_have_attribute("aria-busy", "true")
    page.wait_for_timeout(300)
    held[1].continue_()
    expect(page.locator("#place-table tbody td:nth-child(2)").first).to_have_text("second")
    expect(result).not_to_have_attribute("aria-busy", "true")
    held[0].continue_()
    page.wait_for_timeout(700)
    expect(page.locator("#place-table tbody td:nth-child(2)").first).to_have_text("second")


def test_a_comparison_says_what_it_can_tell(stack: Stack, filled: str, open_page: Any) -> None:
    alone, off = profile(stack, ALONE), profile(stack, OFF)
    page: Page = open_page(f"{stack.url}/#/compare").page
    expect(page.locator(f"#compare-a option[value='{off}']")).to_be_attached()
    lead = page.locator("#compare-lead")

    def compare(first: str, second: str) -> None:
        page.locator("#compare-a").select_option(first)
        page.locator("#compare-b").select_option(second)
        page.get_by_role("button", name="Compare", exact=True).click()

    compare(filled, filled)
    expect(page.locator("#compare-error")).to_contain_text("the same profile")
    compare(filled, alone)
    expect(lead).to_have_text(
        "Second (tiny, 64 tokens), against first (tiny, 64 tokens): undecided: it takes 12 "
        "documents on each side; the first has 4, the second has 1."
    )
    compare(alone, off)
    expect(lead).to_contain_text("undecided: it takes 12 documents on each side")
    expect(page.locator("#compare-table")).to_contain_text("Note: different positional encodings")
    expect(page.locator("#live")).to_have_text(lead.text_content() or "")


def test_a_tested_change_has_its_band(stack: Stack, filled: str, open_page: Any) -> None:
    page: Page = open_page("about:blank").page

    def tested(route: Any) -> None:
        body = route.fetch().json()
        for mass in body["masses"]:
            mass.update(value=0.05, low=0.03, high=0.07, p=0.01)
        body["b"]["objective"] = "jacobian"
        route.fulfill(json={**body, "verdict": "difference", "paired": True})

    page.route("**/v1/comparisons**", tested)
    page.goto(f"{stack.url}/#/compare?a={filled}&b={profile(stack, ALONE)}")
    expect(page.locator("#difference-title")).to_have_text("What changed, on the same documents")
    lead = page.locator("#compare-lead").text_content() or ""
    assert lead.startswith("The two curves measure different things")
    expect(page.locator("#chart-difference path.band")).to_be_visible()
    reading = page.locator("#chart-difference .plot").get_attribute("aria-valuetext") or ""
    assert reading.startswith("0% to 10% of the prompt: ")
    assert reading.endswith(" +5 pt (+3 pt to +7 pt)")


def test_an_ablation_is_told_apart(stack: Stack, filled: str, open_page: Any) -> None:
    off = profile(stack, OFF)
    page: Page = open_page(f"{stack.url}/#/profile/{off}").page
    how = "pretrained weights, 1 document, positions off, raw content"
    expect(page.locator("#profile-kicker")).to_contain_text(how)
    page.get_by_text("How it was measured").click()
    expect(page.locator("#profile-details")).to_contain_text("Positions: off (ablation)")
    page.goto(f"{stack.url}/#/place")
    expect(page.locator(f"#place-profile option[value='{off}']")).to_contain_text(how)
    page.goto(f"{stack.url}/#/profiles")
    expect(page.locator(f"#known tr[data-id='{off}']")).to_contain_text(how)


def test_no_fold_over_nothing(stack: Stack, filled: str, open_page: Any) -> None:
    page = shown(
        stack, open_page, filled, mixing=None, forces=[], predictions={}, collapse=None
    )  # fmt: skip
    for name in ("Lambda", "Forces", "What theory predicts", "Recall in numbers"):
        expect(page.locator("#profile-details summary", has_text=name)).to_have_count(0)
    page.unroute(f"**/v1/profiles/{filled}")
    page.reload()
    for name in ("Lambda", "Forces", "What theory predicts"):
        page.locator("#profile-details summary", has_text=name).click()
    panels = page.locator("#profile-details .panels .chart svg")
    stored = httpx.get(f"{stack.url}/v1/profiles/{filled}").json()
    expect(panels).to_have_count(len(stored["predictions"]) + len(stored["forces"]))
    # The closest prediction comes first, in plain words.
    best = min(stored["predictions"].values(), key=lambda one: one["wasserstein"])
    title = page.locator("#profile-details h4").first.text_content() or ""
    off = float(title.partition("off by ")[2].partition("%")[0])
    assert off == pytest.approx(100 * best["wasserstein"], rel=0.06)


def test_the_depth_is_plain(stack: Stack, filled: str, open_page: Any) -> None:
    body = httpx.get(f"{stack.url}/v1/profiles/{filled}").json()
    body["collapse"].update(last_to_first=0.25, last_to_last=0.125)
    page = shown(stack, open_page, filled, collapse=body["collapse"])
    page.get_by_text("How it was measured").click()
    depth = page.get_by_text("By the model's own rollout: ")
    expect(depth).to_contain_text(body["collapse"]["verdict"])
    expect(depth).to_contain_text("After 6 layers the first token gets 25% of the influence")


def test_profiles_are_told_apart_and_the_example_fits(
    stack: Stack, filled: str, open_page: Any
) -> None:
    page: Page = open_page(f"{stack.url}/#/place?profile={filled}").page
    option = page.locator(f"#place-profile option[value='{filled}']")
    summary = httpx.get(f"{stack.url}/v1/profiles?limit=100").json()["items"]
    made = next(item["created_at"] for item in summary if item["id"] == filled)
    how = "pretrained weights, 4 documents, seed 11"
    text = f"local:tiny, 64 tokens, {how}, {made[:10]} {made[11:16]}"
    expect(option).to_have_text(f"{text} ({filled[:6]})")
    names = page.locator("#place-profile option").all_text_contents()
    assert len(set(names)) == len(names)
    expect(page.locator("#chunks")).to_have_value(
        "passage-1, 12, 0.91\npassage-2, 5, 0.85\npassage-3, 11, 0.66\n"
        "passage-4, 7, 0.52\npassage-5, 9, 0.31\npassage-6, 4, 0.12"
    )
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator("#place-table tbody tr")).to_have_count(6)
    answer = json.loads(page.locator("#place-notes pre").text_content() or "")
    assert answer["prompt_tokens"] == 64
    assert not answer["extrapolated"]
    page.locator("#chunks").fill("mine, 50, 0.5")
    page.locator("#place-profile").dispatch_event("change")
    expect(page.locator("#chunks")).to_have_value("mine, 50, 0.5")


def test_theory_says_what_it_means(stack: Stack, open_page: Any) -> None:
    page: Page = open_page(
        f"{stack.url}/#/theory?architecture=llama-2-7b&tokens=512&lambda=0.1"
    ).page
    expect(page.locator("#theory-lead")).to_have_text(
        "By theory, before any training: The curve's best places are before token 129 and the "
        "very end."
    )
    body = {"architecture": "llama-2-7b", "sequence_length": 512, "bins": 512}
    answer = httpx.post(f"{stack.url}/v1/rollouts", json=body).json()
    for sentence in answer["summary"]:
        expect(page.locator("#theory-words")).to_contain_text(sentence)
    page.locator("#lambda").fill("2")
    page.get_by_role("button", name="Compute").click()
    expect(page.locator("#theory-error")).to_contain_text("Lambda")
    expect(page.locator("#theory-body")).to_be_hidden()
