"""A job that is in the middle of one long pass stops within seconds, on real processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from lacuna import Client
from service.local.stack import Stack
from service.settings import Settings

LONG: dict[str, Any] = {
    "model": "local:long",
    "sequence_length": 16_000,  # one batch of one document: a minute and more
    "documents": {"count": 1, "source": "random_tokens"},
}
SMALL: dict[str, Any] = {"model": "local:tiny", "sequence_length": 32, "documents": {"count": 2}}
SECONDS = 30.0  # the pass alone would take longer; on a busy machine the signals take their time


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Settings:
    return Settings(
        data_dir=tmp_path_factory.mktemp("s"),
        model_dir=model_dir,
        grace_seconds=1.0,
        log_format="text",
    )


def in_the_pass(stack: Stack, seed: int) -> str:
    """Address of a job that has been inside its first pass for a while."""
    answer = httpx.post(f"{stack.url}/v1/profiles", json={**LONG, "seed": seed}).raise_for_status()
    job = stack.url + answer.headers["Location"]
    deadline = time.monotonic() + 60
    while httpx.get(job).json()["message"] != "reading the documents":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(3)
    assert httpx.get(job).json()["message"] == "reading the documents", "the pass is over already"
    return job


def seconds_until(job: str, state: str) -> float:
    begun = time.monotonic()
    while httpx.get(job).json()["state"] != state:
        assert time.monotonic() < begun + 60, httpx.get(job).text
        time.sleep(0.05)
    return time.monotonic() - begun


def test_a_running_job_is_cancelled_within_seconds(stack: Stack) -> None:
    job = in_the_pass(stack, seed=1)
    assert httpx.delete(job).json()["message"] == "stopping"
    assert seconds_until(job, "cancelled") < SECONDS
    before = dict(stack.pids)
    with Client(stack.url) as client:  # the same worker goes on
        client.profile(**SMALL)
    assert stack.pids == before
    os.kill(before["worker-1"], 0)


def test_a_stopping_worker_gives_its_job_back_within_seconds(stack: Stack) -> None:
    job = in_the_pass(stack, seed=2)
    os.kill(stack.pids["worker-1"], signal.SIGTERM)
    assert seconds_until(job, "queued") < SECONDS
    assert httpx.get(job).json()["attempt"] == 0
