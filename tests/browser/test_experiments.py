"""Experiments and served models on the page: what is asked, and what was found, as pictures."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from service.local.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from playwright.sync_api import Page, expect

ID = "e" * 32
QUESTIONS = [
    {
        "question": f"What is number {n}?",
        "answers": [f"answer {n}"],
        "chunks": [
            {"id": "a", "text": f"It is answer {n}.", "score": 0.9},
            {"id": "b", "text": "Something else.", "score": 0.4},
        ],
    }
    for n in range(12)
]


def arm(name: str, mean: float, value: float, width: float, flips: float) -> dict[str, Any]:
    return {
        "name": name, "mean": mean, "low": mean - 0.1, "high": mean + 0.1,
        "log_probability": None,
        "joint_low": value - 1.5 * width, "joint_high": value + 1.5 * width,
        "difference": {"value": value, "low": value - width, "high": value + width},
        "p": 0.01, "flips": flips, "changed": 12,
    }  # fmt: skip


RESULT = {
    "id": ID, "model": "local:tiny", "revision": None, "method": "1", "questions": 48, "lost": 1,
    "questions_digest": "d" * 32, "template_digest": "d" * 32, "seed": 0,
    "relevance_scale": "score", "scoring": "contains", "rung": "text", "form": "plain",
    "reference": "given", "smallest_effect": 0.05, "minimum_detectable_effect": 0.062,
    "orders": [
        arm("given", 0.61, 0, 0, 0), arm("relevance_last", 0.7, 0.09, 0.04, 0.12),
        arm("random", 0.55, -0.06, 0.05, 0.2),
    ],
    "verdict": {
        "decision": "use", "order": "relevance_last", "more_questions": None,
        "words": "Put the most relevant chunk last: 9 points more right answers.",
    },
    "controls": {
        "a_a": {
            "difference": {"value": 0, "low": -0.01, "high": 0.01}, "questions": 48, "found": False,
        },
        "closed_book": 0.04, "repeat": 0,
    },
    "gold_known": 48, "calibration": None, "calibration_note": "too few chunks",
    "recall_by_place": {
        "depth": [0.1, 0.5, 0.9], "value": [0.5, 0.4, 0.7], "low": [0.4, 0.3, 0.6],
        "high": [0.6, 0.5, 0.8], "readings": [40, 40, 40], "questions": 44,
    },
    "usage": {
        "prompts": 240, "calls": 240, "replayed": 0, "prompt_tokens": 51_000,
        "generated_tokens": 900, "cost": None,
    },
    "warnings": [],
}  # fmt: skip
ESTIMATE = {
    "questions": 12, "prompts": 72, "prompt_tokens": 4321, "generated_tokens": 0, "calls": None,
    "multiply_adds": None, "cost": None, "minutes": 2.5,
    "warnings": ["12 questions are few"],
}  # fmt: skip


@pytest.mark.parametrize("width", [360, 1280])
def test_orders_are_points_around_zero(stack: Stack, open_page: Any, width: int) -> None:
    watched = open_page("about:blank", width=width)
    page: Page = watched.page
    page.route(f"**/v1/experiments/{ID}", lambda route: route.fulfill(json=RESULT))
    page.goto(f"{stack.url}/#/experiments/{ID}")
    expect(page.locator("#experiment-title")).to_have_text(
        'Use "most relevant last": it scores 9 points more than your order '
        "(95% interval, all orders together: +3 pt to +15 pt). It is surely better, but perhaps by "
        "less than the 5 points that matter to you."
    )
    expect(page.locator("#experiment-certainty")).to_have_text(
        "With these 48 questions a difference of 6.2 points is found in 4 of 5 cases."
    )
    plot = page.locator("#chart-experiment .plot")
    said = plot.get_attribute("aria-label") or ""
    assert "most relevant last: +9 pt (+5 pt to +13 pt)" in said
    assert "random: -6 pt (-11 pt to -1 pt)" in said
    zero = page.locator("#chart-experiment line.axis").get_attribute("x1")
    dots = page.locator("#chart-experiment circle").evaluate_all(
        "all => all.map(one => Number(one.getAttribute('cx')))"
    )
    assert zero is not None
    assert dots[0] > float(zero) > dots[1]
    expect(page.locator("#places-part svg")).to_be_visible()
    expect(page.locator("#experiment-notes")).to_contain_text("Without any chunk the score is 4%.")
    expect(page.locator("#experiment-notes")).to_contain_text("20%")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.reload()
    expect(page.locator("#experiment-title")).to_contain_text('Use "most relevant last"')
    assert watched.complaints == []


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (
            {"decision": "use", "order": None, "more_questions": None},
            "Keep your order: no other order scores 5 points more.",
        ),
        (
            {"decision": "no_difference", "order": None, "more_questions": None},
            "The order makes no difference: every order scores within 15 points of your order "
            "(95%), and it takes 5 points to matter to you.",
        ),
        (
            {"decision": "not_enough", "order": None, "more_questions": 90},
            "Not enough questions: about 90 more questions would tell. So far "
            '"most relevant last" scores +9 pt (95% interval, all orders together: +3 pt to '
            "+15 pt).",
        ),
        (
            {"decision": "not_enough", "order": None, "more_questions": None},
            'For the terminal, about "most relevant last"',
        ),
    ],
)
def test_the_verdict_in_words(stack: Stack, open_page: Any, verdict: Any, words: str) -> None:
    page: Page = open_page("about:blank").page
    result = {**RESULT, "verdict": {**verdict, "words": "For the terminal, about relevance_last"}}
    page.route(f"**/v1/experiments/{ID}", lambda route: route.fulfill(json=result))
    page.goto(f"{stack.url}/#/experiments/{ID}")
    expect(page.locator("#experiment-title")).to_have_text(words)
    expect(page.locator("#experiment-kicker")).to_have_text("local:tiny, 48 questions")
    doubt = "No order scores more than 0.03, so that nothing shows: look at `log_difference`"
    result["warnings"] = [doubt, "relevance_last gives the same prompts as given"]
    page.reload()
    expect(page.locator("#experiment-certainty")).to_contain_text(doubt.partition(":")[0])
    expect(page.locator("#experiment-certainty")).to_have_class("open")
    expect(page.locator("#experiment-notes")).to_contain_text(
        '"most relevant last" gives the same prompts as "your order"'
    )
    expect(page.locator("#experiment-notes")).not_to_contain_text("No order scores")


def test_an_experiment_is_asked_for_and_its_job_opens_it(
    stack: Stack, filled: str, open_page: Any
) -> None:
    page: Page = open_page("about:blank").page
    asked: list[dict[str, Any]] = []
    job = {
        "id": ID, "kind": "experiment", "state": "running", "attempt": 1, "progress": 0.5,
        "message": "question 6 of 12", "position": None, "eta_seconds": 30, "failure": None,
        "profile": None, "experiment": None, "created_at": "2026-01-01", "started_at": None,
        "finished_at": None,
    }  # fmt: skip
    done = {**job, "state": "done", "experiment": f"/v1/experiments/{ID}"}

    def answer(route: Any) -> None:
        asked.append(route.request.post_data_json)
        dry = asked[-1].get("dry_run")
        route.fulfill(status=200 if dry else 202, json=ESTIMATE if dry else job)

    page.route("**/v1/experiments", answer)
    page.route(f"**/v1/jobs/{ID}", lambda route: route.fulfill(json=done))
    page.route(f"**/v1/experiments/{ID}", lambda route: route.fulfill(json=RESULT))
    page.goto(f"{stack.url}/#/profile/{filled}")
    page.locator("#next-steps").get_by_role("link", name="Experiment").click()
    expect(page.get_by_label("Model that answers")).to_have_value("local:tiny")
    expect(page.locator("#experiment-profile")).to_have_value(filled)
    page.get_by_role("button", name="Compare orders").click()
    expect(page.locator("#experiment-error")).to_contain_text("none given")
    page.locator("#questions").fill("{")
    page.get_by_role("button", name="Compare orders").click()
    expect(page.locator("#experiment-error")).to_contain_text("expected a list in JSON")
    page.locator("#questions").fill("\n".join(map(json.dumps, QUESTIONS)))
    expect(page.locator("#experiment-estimate")).to_have_text(
        "At most 72 prompts, 4321 tokens, about 3 min, for 12 questions. 12 questions are few."
    )
    page.get_by_role("button", name="Compare orders").click()
    expect(page.locator("#experiment-title")).to_contain_text("Use ")
    body = asked[-1]
    assert "dry_run" not in body
    assert body["questions"] == QUESTIONS
    assert body["orders"] == ["relevance_first", "relevance_last", "zigzag_best_last", "advised"]
    assert body["profile_id"] == filled
    assert body["smallest_effect"] == 0.05
    # Questions are the reader's own: no address and no memory of the tab holds them.
    assert "answer 3" not in page.evaluate("JSON.stringify(sessionStorage) + location.href")


def test_a_served_model_is_asked_for_recall_alone(stack: Stack, open_page: Any) -> None:
    page: Page = open_page("about:blank").page
    asked: list[dict[str, Any]] = []
    least = {
        "calls": 900,
        "prompt_tokens": 200_000,
        "generated_tokens": 900,
        "cost": 0.1,
        "minutes": 12,
    }
    most = {**least, "calls": 1800, "cost": 0.2, "minutes": 24}

    def answer(route: Any) -> None:
        if route.request.method != "POST":
            return route.continue_()
        asked.append(route.request.post_data_json)
        estimate = {"endpoint": "prod", "least": least, "most": most, "refused": None}
        return route.fulfill(json=estimate)

    page.route("**/v1/profiles", answer)
    catalogue = httpx.get(f"{stack.url}/v1/models").json()
    catalogue["endpoints"] = [{"name": "endpoint:prod"}]
    page.route("**/v1/models", lambda route: route.fulfill(json=catalogue))
    page.goto(f"{stack.url}/#/measure")
    expect(page.locator("#models option[value='endpoint:prod']")).to_be_attached()
    form = page.locator("#measure-form")
    form.get_by_label("Model", exact=True).fill("endpoint:prod")
    for hidden in ("Weights", "Text", "Documents"):
        expect(form.get_by_label(hidden, exact=True)).to_be_hidden()
    form.get_by_label("Spend at most").fill("0.5")
    expect(page.locator("#estimate")).to_have_text(
        "Takes 900 to 1,800 calls, 200,000 tokens of prompts, about 12 min to 24 min, 0.1 to 0.2 "
        "at the endpoint's prices."
    )
    assert asked[-1] == {
        "model": "endpoint:prod", "sequence_length": 256, "recall": {"groups": "auto"},
        "budget": {"max_cost": 0.5}, "dry_run": True,
    }  # fmt: skip
    form.get_by_label("Model", exact=True).fill("local:tiny")
    expect(form.get_by_label("Weights", exact=True)).to_be_visible()


def test_a_real_experiment_from_the_form_to_its_picture(stack: Stack, open_page: Any) -> None:
    watched = open_page(f"{stack.url}/#/experiments?model=local:tiny")
    page: Page = watched.page
    page.locator("#questions").fill(json.dumps(QUESTIONS))
    expect(page.locator("#experiment-estimate")).to_contain_text("for 12 questions.")
    page.get_by_role("button", name="Compare orders").click()
    page.wait_for_url("**/#/experiments/*", timeout=120_000)
    identifier = page.url.rpartition("/")[2]
    found = httpx.get(f"{stack.url}/v1/experiments/{identifier}").json()
    expect(page.locator("#experiment-found")).to_be_visible()
    said = page.locator("#experiment-title").text_content() or ""
    decision = found["verdict"]["decision"]
    assert said.startswith(
        {
            "use": ("Use ", "Keep "),
            "not_enough": ("Not enough questions", "Nothing can be told: "),
            "no_difference": "The order makes no difference",
        }[decision]
    )  # fmt: skip
    dots = page.locator("#chart-experiment circle")
    expect(dots).to_have_count(len(found["orders"]) - 1)
    page.reload()
    expect(page.locator("#experiment-title")).to_have_text(said)
    assert watched.complaints == []
