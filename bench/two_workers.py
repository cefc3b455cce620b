"""One worker against two, one torch thread each, on one batch of jobs.

    python bench/two_workers.py

Needs two free cores. Prints the seconds of each and their ratio (target: at least 1.7).
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from service.local.stack import Stack
from service.settings import Settings

JOBS = 8
TARGET = 1.7


def request(seed: int) -> dict[str, Any]:
    return {
        "model": "preset:gpt2",
        "weights": "random",
        "objective": "argmax_probability",
        "seed": seed,
        "sequence_length": 256,
        "documents": {"count": 8, "source": "random_tokens"},
        "predictions": ["residual"],
    }


def seconds(workers: int) -> float:
    """From the first POST to the last end; every worker holds the first model by then."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder), torch_threads=1, model_cache_bytes=0)
        with Stack(settings, workers=workers) as stack, httpx.Client(base_url=stack.url) as client:
            _all(client, range(100, 100 + workers))
            started = time.perf_counter()
            _all(client, range(JOBS))
            return time.perf_counter() - started


def _all(client: httpx.Client, seeds: range) -> None:
    jobs = [
        client.post("/v1/profiles", json=request(seed)).raise_for_status().headers["Location"]
        for seed in seeds
    ]
    for job in jobs:
        while (state := client.get(job).json()["state"]) in {"queued", "running"}:
            time.sleep(0.05)
        if state != "done":
            sys.exit(f"{job}: {client.get(job).json()['failure']}")


def main() -> int:
    one, two = seconds(1), seconds(2)
    print("| workers | seconds | times as fast |\n|---|---|---|")
    print(f"| 1 | {one:.1f} | 1.00 |\n| 2 | {two:.1f} | {one / two:.2f} |")
    print("the target is met" if one / two >= TARGET else f"below the target of {TARGET}")
    return 0 if one / two >= TARGET else 1


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    # What was started stops with us, also when a supervisor ends us.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
