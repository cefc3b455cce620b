"""A client that somebody else's generator made from openapi/openapi.json completes the journey."""

from __future__ import annotations

import importlib
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from service.local.stack import Stack
from service.settings import Settings

pytest.importorskip("openapi_python_client", reason="openapi-python-client is not installed")

ROOT = Path(__file__).parents[1]
NAME = "generated_lacuna_client"


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Name of the generated package, importable."""
    folder = tmp_path_factory.mktemp("generated")
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none"]
    command += [
        "--path",
        str(ROOT / "openapi" / "openapi.json"),
        "--output-path",
        str(folder / NAME),
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert (folder / NAME / "client.py").exists(), answer.stdout + answer.stderr
    said = [line for line in answer.stdout.splitlines() if line.startswith(("WARNING", "ERROR"))]
    assert said == [], "the generator left something out"
    sys.path.insert(0, str(folder))
    yield NAME
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    save_tiny_llama = runpy.run_path(str(ROOT / "tests" / "e2e" / "conftest.py"))["save_tiny_llama"]
    models = tmp_path_factory.mktemp("models")
    save_tiny_llama(models / "tiny")
    settings = Settings(data_dir=tmp_path_factory.mktemp("s"), model_dir=models, log_format="text")
    with Stack(settings) as running:
        yield running


def test_post_wait_read_place(generated: str, stack: Stack) -> None:
    def call(module: str) -> Any:
        return importlib.import_module(f"{generated}.api.{module}").sync_detailed

    models = importlib.import_module(f"{generated}.models")
    Client = importlib.import_module(f"{generated}.client").Client
    with Client(base_url=stack.url, timeout=60) as client:
        documents = models.Documents(count=3)
        body = models.ProfileRequest(model="local:tiny", sequence_length=48, documents=documents)
        answer = call("profiles.post_v1_profiles")(client=client, body=body)
        assert answer.status_code == HTTPStatus.ACCEPTED
        job = answer.parsed
        deadline = time.monotonic() + 90
        while job.state not in {"done", "failed", "cancelled"}:
            assert time.monotonic() < deadline
            time.sleep(0.2)
            job = call("jobs.get_v1_jobs_job_id")(job.id, client=client).parsed
        assert job.state == "done", job.failure
        identifier = job.profile.rpartition("/")[2]
        profile = call("profiles.get_v1_profiles_profile_id")(identifier, client=client).parsed
        assert len(profile.measured.influence) == 48
        chunks = [
            models.Chunk(id=name, tokens=8, relevance=r) for name, r in (("a", 0.9), ("b", 0.2))
        ]
        request = models.PlacementRequest(chunks=chunks, profile_id=identifier)
        placed = call("placements.post_v1_placements")(client=client, body=request).parsed
        assert sorted(placed.order) == ["a", "b"]
        assert placed.value <= placed.upper_bound + 1e-9
        rollout = models.RolloutRequest(layers=4, sequence_length=32)
        theory = call("theory.post_v1_rollouts")(client=client, body=rollout).parsed
        assert len(theory.predictions["residual"].influence) == 32
        refused = call("profiles.post_v1_profiles")(
            client=client, body=models.ProfileRequest(model="local:tiny", sequence_length=0)
        )
        assert refused.parsed.code == "invalid_request"
        assert refused.parsed.errors[0].field == "sequence_length"
