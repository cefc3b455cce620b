"""A real Chromium on a real service with a tiny model."""

from __future__ import annotations

import runpy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from service.local.stack import Stack
from service.settings import Settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
KEY = "browser-test-key-0123456789"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The system's Chromium; the tests are skipped where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("Chromium is not installed")
    # Machines that do other work meanwhile are slow: an expectation is met late, not never.
    sync_api.expect.set_options(timeout=20_000)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


def _settings(tmp_path_factory: pytest.TempPathFactory, **more: Any) -> Settings:
    models_folder = tmp_path_factory.mktemp("models")
    end_to_end = runpy.run_path(str(Path(__file__).parents[1] / "e2e" / "conftest.py"))
    end_to_end["save_tiny_llama"](models_folder / "tiny", layers=6)
    # A short path: a unix socket's address has at most 107 bytes.
    folder = tmp_path_factory.mktemp("s")
    # One test asks for a job that does not end by itself.
    return Settings(
        data_dir=folder, model_dir=models_folder, log_format="text", max_cost=1e18, **more
    )


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A whole service that asks for no key."""
    with Stack(_settings(tmp_path_factory)) as running:
        yield running


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A whole service that asks for a key."""
    with Stack(_settings(tmp_path_factory, api_keys=(KEY,))) as running:
        yield running


@pytest.fixture(scope="session")
def filled(stack: Stack) -> str:
    """Id of one of two profiles that `stack` knows."""
    body = {"model": "local:tiny", "sequence_length": 64, "documents": {"count": 4}}
    headers = {"Prefer": "wait=60"}
    for seed in (12, 11):
        asked = {**body, "seed": seed}
        answer = httpx.post(f"{stack.url}/v1/profiles", json=asked, headers=headers, timeout=90)
        assert answer.status_code == httpx.codes.OK, answer.text
    return str(answer.json()["id"])


class Watched:
    """A page, with everything that its console and its network said."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.hosts: set[str] = set()
        self.bytes = 0
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))
        page.on("response", self._response)

    def _console(self, message: Any) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{message.type}: {message.text}")

    def _response(self, response: Any) -> None:
        self.bytes += int(response.headers.get("content-length", 0))


@pytest.fixture(scope="session")
def measure() -> Callable[..., None]:
    """Fills the form in, as a reader does, and sends it."""

    def ask(page: Page, model: str = "local:tiny", documents: int = 4, seed: int = 0) -> None:
        page.locator("nav").get_by_role("link", name="Measure").click()
        form = page.locator("#measure-form")
        form.get_by_label("Model", exact=True).fill(model)
        form.get_by_label("Tokens", exact=True).fill("64")
        form.get_by_label("Documents", exact=True).fill(str(documents))
        if not form.get_by_label("Seed", exact=True).is_visible():
            form.get_by_text("More options").click()
        source = "random_tokens" if documents > 4 else "builtin"  # any number of them
        form.get_by_label("Text", exact=True).select_option(source)
        form.get_by_label("Seed", exact=True).fill(str(seed))
        form.get_by_role("button", name="Measure", exact=True).click()

    return ask


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[Any]:
    """Opens an address in a window of its own."""
    contexts = []

    def start(url: str, *, width: int = 1180, height: int = 900, scheme: str = "light") -> Watched:
        context = chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,  # type: ignore[arg-type]
        )
        contexts.append(context)
        watched = Watched(context.new_page())
        # Shifts are noted from the first paint on.
        watched.page.add_init_script(
            "window.shifts = []; new PerformanceObserver(list => { for (const entry of "
            "list.getEntries()) if (!entry.hadRecentInput) window.shifts.push(entry.value); })"
            ".observe({type: 'layout-shift', buffered: true});"
        )
        watched.page.goto(url)
        return watched

    yield start
    for context in contexts:
        context.close()
