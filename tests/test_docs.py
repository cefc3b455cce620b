"""Every code block of the documentation runs, against one running service.

Blocks of a page run in order, in one folder, and share shell variables. A block that cannot run
here says so in its info string: ```bash no-test: reason. A model of a few thousand parameters
stands in for the demo model, which `make profile` measures, and the service listens on another
port. What `make` would do is looked up and not done: CI does it.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.local.stack import Stack
from service.settings import Settings

ROOT = Path(__file__).parents[1]
CLIENT = ROOT / "lacuna" / "README.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), CLIENT]
ADAPTERS = Path(sys.prefix) / "adapters" / "bin" / "python"
"""Python with the libraries that the client adapts to, which `make test-all` installs."""
ADDRESS = "http://127.0.0.1:8080"
DEMO = "demo:smollm2-135m-instruct"
_FENCE = re.compile(r"^(`{3,})(.*?)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
RUN = {"bash", "sh", "python", "json"}
SHOWN = {"text", "console", "yaml", "mermaid"}
"""Not commands: what something prints, or a picture."""


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    reason: str
    code: str


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in _FENCE.finditer(text):
        info, code = found.group(2), found.group(3)
        language, _, rest = info.strip().partition(" ")
        line = text.count("\n", 0, found.start()) + 1
        yield Block(page, line, language, rest, code)


def runnable(page: Path) -> list[Block]:
    return [b for b in blocks(page) if b.language in RUN and not b.reason.startswith("no-test")]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    save_tiny_llama = runpy.run_path(str(ROOT / "tests" / "e2e" / "conftest.py"))["save_tiny_llama"]
    models = tmp_path_factory.mktemp("models")
    save_tiny_llama(models / "tiny")
    # A short path: a unix socket's address has at most 107 bytes.
    settings = Settings(data_dir=tmp_path_factory.mktemp("s"), model_dir=models, log_format="text")
    with Stack(settings) as running:
        yield running


def run(block: Block, folder: Path, stack: Stack | SimpleNamespace) -> None:
    code = block.code.replace(ADDRESS, stack.url).replace(DEMO, "local:tiny")
    code = re.sub(r"^make ", f"make --dry-run --directory {ROOT} ", code, flags=re.MULTILINE)
    if block.language == "json":
        json.loads(code)
        return
    adapts = block.reason.startswith("needs adapters")
    if adapts and not ADAPTERS.exists():
        return
    python = [str(ADAPTERS) if adapts else sys.executable, "-c", code]
    # Variables of one block are there in the next, as in a reader's shell.
    shell = f"set -a; [ ! -f .state ] || . ./.state\nset -e\n{code}\nexport -p > .state\n"
    command = python if block.language == "python" else ["bash", "-o", "pipefail", "-c", shell]
    places = [str(ROOT)]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(places),
        "LACUNA_SERVER": stack.url,
    }
    answer = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    where = f"{block.page.relative_to(ROOT)}:{block.line}"
    assert answer.returncode == 0, (
        f"{where}\n{code}\n{answer.stdout[-800:]}\n{answer.stderr[-800:]}"
    )


@pytest.mark.parametrize("page", [p for p in PAGES if runnable(p)], ids=lambda p: p.name)
def test_code_blocks_run(page: Path, stack: Stack, tmp_path: Path) -> None:
    if shutil.which("curl") is None or shutil.which("bash") is None:
        pytest.skip("curl or bash is not installed")
    for block in runnable(page):
        run(block, tmp_path, stack)


def test_the_runner_notices_a_failing_block(stack: Stack, tmp_path: Path) -> None:
    broken = Block(ROOT / "README.md", 1, "bash", "", "false\ntrue\n")
    with pytest.raises(AssertionError, match=r"README\.md:1"):
        run(broken, tmp_path, stack)


class Slow(BaseHTTPRequestHandler):
    """A service that takes three waits to measure, and then refuses everything else."""

    asked = 0

    def do_POST(self) -> None:
        """The job twice, then the profile, then a refusal."""
        self.rfile.read(int(self.headers["Content-Length"]))
        Slow.asked += 1
        status, body = {
            1: (202, {"id": "job"}), 2: (202, {"id": "job"}),
            3: (200, {"id": "profile", "measured": {}}),
        }.get(Slow.asked, (422, {"detail": "too long"}))  # fmt: skip
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_a_profile_is_waited_for_on_a_slow_machine(tmp_path: Path) -> None:
    page = ROOT / "docs" / "api.md"
    asking = next(block for block in runnable(page) if "Prefer: wait" in block.code)
    server = HTTPServer(("127.0.0.1", 0), Slow)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    slow = SimpleNamespace(url=f"http://127.0.0.1:{server.server_port}")
    try:
        run(asking, tmp_path, slow)
        assert 'ID="profile"' in (tmp_path / ".state").read_text()
        with pytest.raises(AssertionError, match="too long"):
            run(asking, tmp_path, slow)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_block_says_what_it_is(page: Path) -> None:
    for block in blocks(page):
        where = f"{page.name}:{block.line}"
        assert block.language in RUN | SHOWN, f"{where}: the language {block.language!r}"
        if block.reason.startswith("no-test"):
            assert re.fullmatch(r"no-test: .{8,}", block.reason), f"{where}: why does it not run?"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, _ in _LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_pictures_are_small() -> None:
    pictures = list((ROOT / "docs" / "images").glob("*.png"))
    assert pictures
    assert [p.name for p in pictures if p.stat().st_size > 300_000] == []


def test_functions_that_the_theory_page_names_exist() -> None:
    text = (ROOT / "docs" / "theory.md").read_text()
    named = re.findall(r"`([a-z_]+)\.([A-Za-z_]+)(?:\([^`]*\))?`", text)
    assert len(named) > 30
    folders = [ROOT / "lacuna" / name for name in ("theory", "evidence", "placement")]
    for module, name in named:
        sources = [folder / f"{module}.py" for folder in folders]
        text = "".join(source.read_text() for source in sources if source.exists())
        assert re.search(rf"^(def|class) {name}\b", text, re.MULTILINE), f"{module}.{name}"


def test_every_test_that_security_names_is_there() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    named = set(re.findall(r"\btests/[\w/]+(?:\.py)?", text))
    assert len(named) > 10
    assert sorted(name for name in named if not (ROOT / name).exists()) == []
    # A name without its folder would escape the check.
    assert re.findall(r"(?<![\w/])test_\w+\.py", text) == []
