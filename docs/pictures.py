"""Makes every picture in docs/images (a few minutes on one core).

Profiles are drawn by the service itself; the page is photographed in the system's Chromium.

    .venv/bin/python docs/pictures.py             # starts a service for it
    .venv/bin/python docs/pictures.py http://...  # uses one that runs
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, Page, sync_playwright

from service.local import Stack
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
    """A page that shows a profile."""
    size = {"width": width, "height": 800}
    page = browser.new_context(viewport=size, color_scheme=scheme).new_page()  # type: ignore[arg-type]
    page.goto(url)
    page.wait_for_selector("#profile-links a")
    page.wait_for_timeout(500)
    return page


def shoot(page: Page, section: str, name: str) -> None:
    """Photograph one section."""
    page.locator(f"#{section}").screenshot(path=IMAGES / f"{name}.png")


def photograph(url: str, demo: str, untrained: str) -> None:
    """Every state of the page."""
    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        page = window(browser, f"{url}/#profile={demo}")
        shoot(page, "status", "page-status")
        shoot(page, "measure", "page-measure")
        page.click("#measure-form summary")
        shoot(page, "profile", "page-profile")
        page.fill("#seed", "1")
        page.click("#measure-form button.primary")
        page.wait_for_function(
            "() => document.getElementById('job-progress').value > 0", timeout=300_000
        )
        shoot(page, "job", "page-job")
        page.click("#job-cancel")
        page.fill("#model", "local:absent")
        page.click("#measure-form button.primary")
        page.wait_for_selector("#measure-error p", timeout=300_000)
        shoot(page, "measure-error", "page-refusal")
        page.select_option("#compare-a", demo)
        page.select_option("#compare-b", untrained)
        page.click("#compare-form button")
        page.wait_for_selector("#compare-table td")
        page.wait_for_timeout(300)
        shoot(page, "compare", "page-compare")
        page.select_option("#place-profile", demo)
        page.fill("#chunks", CHUNKS)
        for field in ("prefix_tokens", "suffix_tokens"):
            page.fill(f"#{field}", "20")
        page.click("#place-form button.primary")
        page.wait_for_selector("#place-table td")
        page.wait_for_timeout(300)
        shoot(page, "place", "page-place")
        shoot(window(browser, f"{url}/#profile={demo}", scheme="dark"), "profile", "page-dark")
        shoot(window(browser, f"{url}/#profile={demo}", width=360), "profile", "page-phone")
        browser.close()


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
    photograph(url, demo, untrained)
    for path in sorted(IMAGES.iterdir()):
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
