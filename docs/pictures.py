"""Makes every picture in docs/images (a few minutes on one core).

Profiles are drawn by the service itself; the page is photographed in the system's Chromium.

    .venv/bin/python docs/pictures.py             # starts a service for it
    .venv/bin/python docs/pictures.py http://...  # uses one that runs
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from service.local import store as embedded
from service.local.stack import Stack
from service.settings import Settings

IMAGES = Path(__file__).parent / "images"
DEMO = {"model": "demo:smollm2-135m-instruct", "sequence_length": 256, "documents": {"count": 16}}
SHORT = {**DEMO, "sequence_length": 128}
UNTRAINED = {
    "model": "preset:smollm2-135m",
    "weights": "random",
    "sequence_length": 256,
    "documents": {"count": 8, "source": "random_tokens"},
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
    if "#profile=" in url:
        page.wait_for_selector("#profile-links a")
        page.wait_for_timeout(500)
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
    page = window(browser, f"{url}/#profile={demo}")
    for section in ("status", "measure", "profile"):
        shoot(page.locator(f"#{section}"), f"page-{section}")
    photograph_jobs(page)
    page.select_option("#compare-a", demo)
    page.select_option("#compare-b", untrained)
    page.click("#compare-form button")
    page.wait_for_selector("#compare-table td")
    shoot(page.locator("#compare"), "page-compare")
    page.select_option("#place-profile", demo)
    page.fill("#chunks", CHUNKS)
    for field in ("prefix_tokens", "suffix_tokens"):
        page.fill(f"#{field}", "20")
    page.click("#place-form button.primary")
    page.wait_for_selector("#place-table td")
    shoot(page.locator("#place"), "page-place")
    page.fill("#chunks", CHUNKS.replace("0.", "0,"))
    page.click("#place-form button.primary")
    page.wait_for_selector("#place-error p")
    shoot(page.locator("#place"), "page-place-error")
    dark = window(browser, f"{url}/#profile={demo}", scheme="dark")
    shoot(dark.locator("#profile"), "page-dark")
    phone = window(browser, f"{url}/#profile={demo}", width=360)
    shoot(phone.locator("#profile"), "page-phone")


def photograph_jobs(page: Page) -> None:
    """A job that runs, one that waits, one that failed, and a request that is refused."""
    page.click("#options summary")
    page.fill("#model", "local:absent")
    page.click("#measure-form button.primary")
    page.wait_for_selector("#jobs .error p", timeout=300_000)
    shoot(page.locator("#jobs"), "page-failed")
    page.get_by_role("button", name="Dismiss").click()
    page.fill("#model", str(DEMO["model"]))
    for seed in ("1", "2"):
        page.fill("#seed", seed)
        page.click("#measure-form button.primary")
        page.wait_for_selector(f"#jobs article:nth-last-child({seed})")
    page.wait_for_function(
        "() => [...document.querySelectorAll('#jobs progress')].some(bar => bar.value > 0)",
        timeout=300_000,
    )
    shoot(page.locator("#jobs"), "page-job")
    for left in (1, 0):
        page.get_by_role("button", name="Cancel").first.click()
        page.wait_for_function(
            "left => document.querySelectorAll('#jobs progress:not([hidden])').length === left",
            arg=left,
            timeout=300_000,
        )
        page.get_by_role("button", name="Dismiss").click()
    page.fill("#sequence_length", "8192")
    page.fill("#count", "28")
    page.click("#measure-form button.primary")
    page.wait_for_selector("#measure-error p")
    page.evaluate("scrollTo(0, 0)")
    shoot(page.locator("#measure"), "page-refusal")


def photograph_strangers(browser: Browser) -> None:
    """A new service: it asks for a key, it knows no profile, its store goes away."""
    with (
        tempfile.TemporaryDirectory(prefix="lp", dir="/tmp") as folder,
        embedded.ensure(Path(folder)) as store,
        Stack(Settings(data_dir=Path(folder), log_format="text", api_keys=(KEY,))) as stack,
    ):
        page = window(browser, stack.url)
        page.set_viewport_size({"width": 1000, "height": 900})
        page.wait_for_selector("#key-note:text('asks for a key')")
        shoot(page, "page-key")
        page.fill("#key", KEY)
        page.click("#key-form button")
        page.wait_for_selector("#known-note:text('No profile')")
        page.wait_for_selector("#tile-profiles:text('0')")
        shoot(page, "page-empty")
        if store.pid is not None:
            os.kill(store.pid, signal.SIGKILL)
        page.wait_for_selector("#tile-store:text('away')", timeout=30_000)
        page.reload()
        page.wait_for_selector("#tile-store:text('away')", timeout=30_000)
        shoot(page, "page-away")


def draw(url: str) -> None:
    """Measure, draw and photograph."""
    IMAGES.mkdir(exist_ok=True)
    with httpx.Client(base_url=url, timeout=120) as client:
        untrained = profile(client, UNTRAINED)
        profile(client, SHORT)
        demo = profile(client, DEMO)
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
