"""Makes every picture in docs/images, and the page's example (some minutes on one core).

Profiles are drawn by the service itself; the page is photographed in the system's Chromium.

    .venv/bin/python docs/pictures.py             # starts a service for it
    .venv/bin/python docs/pictures.py http://...  # uses one that runs
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from service.local import store as embedded
from service.local.stack import Stack
from service.settings import Settings

IMAGES = Path(__file__).parent / "images"
EXAMPLE = Path(__file__).parents[1] / "service" / "web" / "example.json"
DEMO = {
    "model": "demo:smollm2-135m-instruct",
    "sequence_length": 256,
    "documents": {"count": 32},
    "recall": {"groups": 24},
}
SHORT = {**DEMO, "sequence_length": 128, "documents": {"count": 16}, "recall": None}
UNTRAINED = {
    "model": "preset:smollm2-135m",
    "weights": "random",
    "sequence_length": 256,
    "documents": {"count": 12, "source": "random_tokens"},
}
KEY = "a-key-for-these-pictures"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
CHUNKS = "\n".join(
    f"passage-{i}, {tokens}, {relevance}"
    for i, (tokens, relevance) in enumerate(
        [(40, 0.91), (30, 0.85), (45, 0.66), (35, 0.52), (38, 0.31), (28, 0.12)], start=1
    )
)


def profile(client: httpx.Client, request: dict[str, Any]) -> str:
    """Id of the profile, measured now unless it is known."""
    answer = client.post("/v1/profiles", json=request).raise_for_status()
    job = answer.headers.get("Location")
    while answer.status_code == httpx.codes.ACCEPTED or "measured" not in answer.json():
        answer = client.get(job, headers={"Prefer": "wait=30"}).raise_for_status()
        if answer.json()["state"] in {"failed", "cancelled"}:
            sys.exit(f"{request['model']}: {answer.json()['failure']}")
        if answer.json()["profile"]:
            answer = client.get(answer.json()["profile"]).raise_for_status()
    print(f"measured {request['model']} at {request['sequence_length']} tokens", flush=True)
    return str(answer.json()["id"])


def window(browser: Browser, url: str, *, width: int = 1000, scheme: Any = "light") -> Page:
    """A page in a window of its own."""
    size = {"width": width, "height": 800}
    page = browser.new_context(viewport=size, color_scheme=scheme).new_page()  # type: ignore[arg-type]
    page.goto(url)
    page.wait_for_load_state("networkidle")
    return page


def shoot(what: Page | Locator, name: str) -> None:
    """Photograph a window or a part of it, in 256 colours: a third of the bytes."""
    page = what.page if isinstance(what, Locator) else what
    page.wait_for_timeout(300)
    path = IMAGES / f"{name}.png"
    what.screenshot(path=path)
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(
            256, Image.Quantize.MAXCOVERAGE
        )  # keeps rare colours: thin lines
    small.save(path, optimize=True)


def photograph(browser: Browser, url: str, demo: str, untrained: str) -> None:
    """The page at work."""
    page = window(browser, f"{url}/#/profile/{demo}")
    shoot(page.locator("#view-profile"), "page-profile")
    for summary in page.locator("#profile-details summary").all():
        summary.click()
    shoot(page.locator("#profile-details"), "page-details")
    for view in ("profiles", "measure", "status"):
        page.goto(f"{url}/#/{view}")
        page.wait_for_timeout(1500)
        shoot(page.locator(f"#view-{view}"), f"page-{view}")
    page.goto(f"{url}/#/theory?architecture=llama-2-7b&tokens=2048&lambda=0.1")
    page.wait_for_selector("#chart-theory svg")
    shoot(page.locator("#view-theory"), "page-theory")
    page.goto(f"{url}/#/compare?a={demo}&b={untrained}")
    page.wait_for_selector("#compare-table td")
    shoot(page.locator("#view-compare"), "page-compare")
    photograph_jobs(page, url)
    photograph_placement(page, url, demo)
    dark = window(browser, f"{url}/#/profile/{demo}", scheme="dark")
    shoot(dark.locator("#view-profile"), "page-dark")
    phone = window(browser, f"{url}/#/profile/{demo}", width=360)
    shoot(phone.locator("#view-profile"), "page-phone")
    photograph_placement(phone, url, demo, "-phone", refusal=False)


def photograph_placement(
    page: Page, url: str, demo: str, ending: str = "", *, refusal: bool = True
) -> None:
    """Chunks that were placed, and then one moved by hand; and lines that cannot be read."""
    page.goto(f"{url}/#/place?profile={demo}&before=20&after=20&chunks={quote(CHUNKS)}")
    page.wait_for_selector(".movable")
    page.locator(".movable").first.press("ArrowRight")
    page.wait_for_selector("#place-moved:text('As moved')")
    shoot(page.locator("#view-place"), f"page-place{ending}")
    if refusal:
        page.fill("#chunks", CHUNKS.replace("0.", "0,"))
        page.click("#place-form button.primary")
        page.wait_for_selector("#place-error p")
        shoot(page.locator("#view-place"), "page-place-error")


def ask(page: Page, url: str, model: str, seed: str) -> None:
    """Fill the form in and send it."""
    page.goto(f"{url}/#/measure")
    page.fill("#model", model)
    if not page.is_visible("#seed"):
        page.click("#options summary")
    page.fill("#seed", seed)
    page.click("#measure-form button.primary")
    page.wait_for_url("**/#/jobs/*")


def photograph_jobs(page: Page, url: str) -> None:
    """A job that runs, one that waits, one that failed, and a request that is refused."""
    ask(page, url, "local:absent", "0")
    page.wait_for_selector("#jobs .error p", timeout=300_000)
    shoot(page.locator("#view-jobs"), "page-failed")
    page.get_by_role("button", name="Dismiss").click()
    for seed in ("1", "2"):
        ask(page, url, str(DEMO["model"]), seed)
    page.goto(f"{url}/#/jobs")
    page.wait_for_function(
        "() => [...document.querySelectorAll('#jobs progress')].some(bar => bar.value > 0)",
        timeout=300_000,
    )
    shoot(page.locator("#view-jobs"), "page-job")
    for left in (1, 0):
        page.get_by_role("button", name="Cancel").first.click()
        page.wait_for_function(
            "left => document.querySelectorAll('#jobs progress:not([hidden])').length === left",
            arg=left,
            timeout=300_000,
        )
        page.get_by_role("button", name="Dismiss").click()
    page.goto(f"{url}/#/measure")
    page.fill("#sequence_length", "8192")
    page.fill("#count", "400")
    page.click("#measure-form button.primary")
    page.wait_for_selector("#measure-error p")
    page.evaluate("scrollTo(0, 0)")
    shoot(page.locator("#view-measure"), "page-refusal")


def photograph_strangers(browser: Browser) -> None:
    """A new service: it asks for a key, it knows no profile, its store goes away."""
    with (
        tempfile.TemporaryDirectory(prefix="lp", dir="/tmp") as folder,
        embedded.ensure(Path(folder)) as store,
        Stack(Settings(data_dir=Path(folder), log_format="text", api_keys=(KEY,))) as stack,
    ):
        page = window(browser, stack.url)
        page.wait_for_selector("#key-note:text('asks for a key')")
        shoot(page, "page-key")
        page.fill("#key", KEY)
        page.click("#key-form button")
        page.wait_for_selector("#profile-kicker strong")
        shoot(page, "page-empty")
        page.goto(f"{stack.url}/#/status")
        page.wait_for_selector("#tile-profiles:text('0')")
        if store.pid is not None:
            os.kill(store.pid, signal.SIGKILL)
        page.wait_for_selector("#tile-store:text('away')", timeout=30_000)
        shoot(page, "page-away")


def write_example(client: httpx.Client, identifier: str) -> None:
    """The profile that a page without profiles shows, without what the page has no use for."""
    body = client.get(f"/v1/profiles/{identifier}", params={"bins": 128}).raise_for_status().json()
    del body["measured"]["summaries"], body["mixing"]["by_token"]
    body["monotone"] = None
    for curve in body["recall"].values():
        curve["by_group"] = []
    EXAMPLE.write_text(json.dumps(body, separators=(",", ":")) + "\n")


def draw(url: str) -> None:
    """Measure, draw and photograph."""
    IMAGES.mkdir(exist_ok=True)
    with httpx.Client(base_url=url, timeout=120) as client:
        untrained = profile(client, UNTRAINED)
        profile(client, SHORT)
        demo = profile(client, DEMO)
        write_example(client, demo)
        for identifier, name in ((demo, "profile-smollm2"), (untrained, "profile-untrained")):
            drawing = client.get(f"/v1/profiles/{identifier}.svg").raise_for_status().content
            (IMAGES / f"{name}.svg").write_bytes(drawing)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        photograph_strangers(browser)
        photograph(browser, url, demo, untrained)
        browser.close()
    for path in sorted(IMAGES.glob("p*")):
        print(f"{path.name:24} {path.stat().st_size / 1000:6.0f} kB")


def main() -> None:
    """Entry point."""
    if len(sys.argv) > 1:
        draw(sys.argv[1].rstrip("/"))
        return
    with (
        tempfile.TemporaryDirectory(prefix="lp", dir="/tmp") as folder,
        Stack(Settings(data_dir=Path(folder), log_format="text")) as stack,
    ):
        draw(stack.url)


if __name__ == "__main__":
    main()
