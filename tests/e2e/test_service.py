"""The whole service on real processes: what a user sees, and what a crash leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from lacuna import Client
from service.local.stack import Stack
from service.settings import Settings

REQUEST: dict[str, Any] = {
    "model": "local:tiny",
    "sequence_length": 48,
    "documents": {"count": 6},
}
VOLATILE = {"timings", "environment", "created_at"}


def run(client: Client, request: dict[str, Any]) -> dict[str, Any]:
    profile: dict[str, Any] = json.loads(client.export(client.profile(**request).id))
    return profile


def body(profile: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in profile.items() if name not in VOLATILE}


def test_a_posted_model_becomes_a_profile_that_is_served_from_the_cache(stack: Stack) -> None:
    with Client(stack.url) as client:
        profile = run(client, REQUEST)
    influence = np.array(profile["measured"]["influence"])
    assert influence.shape == (48,)
    assert influence.sum() == pytest.approx(1, abs=1e-5)
    assert len(profile["mixing"]["lambda"]) == 2
    assert {"attention_only", "residual", "cesaro"} <= set(profile["predictions"])
    again = httpx.post(f"{stack.url}/v1/profiles", json=REQUEST)
    assert again.status_code == httpx.codes.OK
    assert again.json() == profile
    address = f"{stack.url}/v1/profiles/{profile['id']}"
    first = httpx.get(address)
    assert (
        httpx.get(address, headers={"If-None-Match": first.headers["etag"]}).status_code
        == httpx.codes.NOT_MODIFIED
    )
    assert httpx.get(f"{address}.svg").text.startswith("<svg")
    assert httpx.get(f"{address}.csv").text.count("\n") >= 48


def test_two_hundred_simultaneous_identical_posts_are_one_job(stack: Stack) -> None:
    request = {**REQUEST, "seed": 7}

    def post(_: int) -> tuple[int, str]:
        answer = httpx.post(f"{stack.url}/v1/profiles", json=request, timeout=60)
        return answer.status_code, answer.headers.get("Location", answer.json()["id"])

    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(post, range(200)))
    assert {status for status, _ in answers} <= {httpx.codes.OK, httpx.codes.ACCEPTED}
    assert len({where for status, where in answers if status == httpx.codes.ACCEPTED}) == 1
    with Client(stack.url) as client:
        run(client, request)


def test_a_worker_killed_in_the_middle_loses_nothing(stack: Stack, settings: Settings) -> None:
    request = {
        "model": "local:deep",
        "sequence_length": 128,
        "documents": {"count": 200, "source": "random_tokens"},
        "predictions": ["residual"],
    }
    answer = httpx.post(f"{stack.url}/v1/profiles", json=request).raise_for_status()
    job = stack.url + answer.headers["Location"]
    wait_for(lambda: 0.1 < httpx.get(job).json()["progress"] < 0.8)
    os.kill(stack.pids["worker-1"], signal.SIGKILL)
    second = subprocess.Popen([sys.executable, "-m", "workers"], env=stack.environment)
    try:
        with Client(stack.url) as client:
            profile = run(client, request)
            assert httpx.get(job).json()["attempt"] == 2
            httpx.delete(f"{stack.url}/v1/profiles/{profile['id']}").raise_for_status()
            undisturbed = run(client, request)
    finally:
        second.terminate()
        second.wait(30)
    assert body(profile) == body(undisturbed)
    assert profile["created_at"] != undisturbed["created_at"], "it was not measured again"


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)
