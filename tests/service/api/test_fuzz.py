"""schemathesis against a running gateway: no 5xx, no undocumented status, no undocumented shape."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parents[3]
# A request that fits its schema may still break a rule between fields (`texts` without `inline`),
# which JSON Schema cannot say readably: such requests are rightly refused.
CHECKS = ["--checks", "all", "--exclude-checks", "positive_data_acceptance"]


@pytest.fixture
def address(redis_url: str, worker: Any, profile: Any, tmp_path: Path) -> Iterator[str]:
    """A gateway process with a live worker and one profile in its store."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        "LACUNA_REDIS_URL": redis_url,
        "LACUNA_PORT": str(port),
        "LACUNA_MAX_WAIT_SECONDS": "0.2",
    }
    worker.announce()
    base = f"http://127.0.0.1:{port}"
    with (tmp_path / "gateway.log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "service.cli", "gateway"],
            env={**os.environ, **environment},
            cwd=ROOT,
            stdout=log,
            stderr=log,
        )
        try:
            wait(base, child)
            body = {"model": "preset:gpt2", "weights": "random"}
            httpx.post(f"{base}/v1/profiles", json=body).raise_for_status()
            worker.finish(profile)
            yield base
        finally:
            child.terminate()
            child.wait(20)


def wait(base: str, child: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        assert child.poll() is None, "the gateway ended"
        try:
            assert httpx.get(f"{base}/readyz").status_code == 200
        except httpx.HTTPError:
            time.sleep(0.1)
        else:
            return
    pytest.fail("the gateway did not start")


def fuzz(base: str, identifier: str, folder: Path, *options: str) -> None:
    reads = "".join(
        f'[[operations]]\ninclude-name = "GET {path}"\nparameters = {values}\n'
        for path, values in {
            "/v1/profiles/{profile_id}": f'{{ profile_id = "{identifier}" }}',
            "/v1/profiles/{profile_id}/dead-zone": f'{{ profile_id = "{identifier}" }}',
            "/v1/profiles/{profile_id}/series": f'{{ profile_id = "{identifier}" }}',
            "/v1/comparisons": f'{{ a = "{identifier}", b = "{identifier}" }}',
        }.items()
    )
    # DELETE withdraws a job, whose record stays readable.
    reads += '[[operations]]\ninclude-name = "DELETE /v1/jobs/{job_id}"\n'
    reads += "checks.use_after_free.enabled = false\n"
    settings = folder / "schemathesis.toml"
    settings.write_text(reads)
    command = ["schemathesis", "--config-file", str(settings), "run", f"{base}/openapi.json"]
    binary = Path(sys.executable).parent / command[0]
    answer = subprocess.run(
        [str(binary), *command[1:], *CHECKS, "--no-color", "--seed", "1", *options],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=240,
        check=False,
    )
    print(answer.stdout)
    assert answer.returncode == 0, answer.stdout[-6_000:] + answer.stderr[-2_000:]


def test_examples_and_some_fuzzing(address: str, profile: Any, tmp_path: Path) -> None:
    fuzz(address, profile.id, tmp_path, "--phases", "examples,fuzzing", "--max-examples", "5")
    log = (tmp_path / "gateway.log").read_text()
    assert "Traceback" not in log


@pytest.mark.slow
def test_everything_within_three_minutes(address: str, profile: Any, tmp_path: Path) -> None:
    fuzz(address, profile.id, tmp_path, "--max-examples", "40", "--max-time", "150")
    log = (tmp_path / "gateway.log").read_text()
    assert "Traceback" not in log
