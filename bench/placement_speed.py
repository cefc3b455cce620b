"""How fast placements are: in process, and over HTTP from a gateway on one core.

    python bench/placement_speed.py [--no-http] [--requests 600]

Prints medians of the whole use case (processor time, no HTTP), then requests per second of one
gateway process that is bound to one core, over keep-alive connections, chunks of unequal length:
by the clock, and per second of the gateway's own processor time, which other work on the machine
does not disturb; the latter decides. Along a density, which has no intervals, and along a stored
profile of 256 tokens and 64 documents, whose advice rests on intervals.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from lacuna.contract.placements import PlacementRequest
from lacuna.contract.profiles import Profile, ProfileBody, ProfileEnvelope
from lacuna.placement.answer import place
from lacuna.placement.curve import of_density
from service.local import store as embedded
from service.store.claims import Claim, ClaimStore, ProfileOutcome
from service.store.connection import connect

CONNECTIONS = 4
WARM_UP = 20
IN_PROCESS = ((12, 5.0), (20, 5.0), (1_000, 50.0))
TARGET = 300


def density(n: int = 256) -> list[float]:
    x = (np.arange(n) + 0.5) / n
    curve = 1 / (x + 0.02) + 3 / (1 - x + 0.02)
    return [float(f"{value:.6g}") for value in curve / curve.mean()]


def request(m: int, tokens: int | None = None) -> dict[str, Any]:
    """m chunks of unequal length; `tokens` is the length of the whole prompt."""
    rng = np.random.default_rng(m)
    lengths = rng.integers(50, 400, m)
    if tokens is not None:
        lengths = np.maximum(1, lengths * tokens // lengths.sum())
    chunks = [
        {"id": f"c{i}", "tokens": int(lengths[i]), "relevance": float(rng.random())}
        for i in range(m)
    ]
    return {
        "density": density(),
        "relevance_scale": "probability",
        "chunks": chunks,
        "prefix_tokens": 40,
        "suffix_tokens": 60,
    }


def in_process() -> bool:
    fine = True
    print("| chunks | prompt tokens | method | median ms | target ms | gap to the bound |")
    print("|---|---|---|---|---|---|")
    for m, target in IN_PROCESS:
        body = PlacementRequest.model_validate(request(m, 128_000 if m == 1_000 else None))
        curve = of_density(body.density or [])
        answered = place(body, curve)
        times = []
        for _ in range(9 if m == 1_000 else 100):
            start = time.process_time()
            place(body, curve)
            times.append(1e3 * (time.process_time() - start))
        took = median(times)
        fine &= took < target
        print(
            f"| {m} | {answered.prompt_tokens} | {answered.method} | {took:.2f} | < {target:.0f} "
            f"| {answered.gap:.2%} |"
        )
    return fine


def over_http(requests: int) -> bool:
    fine = True
    with tempfile.TemporaryDirectory(prefix="lacuna-") as folder:
        path = Path(folder)
        with embedded.ensure(path) as store:
            gateway, port = start_gateway(store.url)
            try:
                print("\n| chunks | requests/s by the clock | per core second | times 300 |")
                print("|---|---|---|---|")
                for m in range(2, 21):
                    fine &= rated(gateway, port, f"{m}", request(m), requests)
                for m in (4, 8, 12, 20):
                    along = {**request(m), "profile_id": store_profile(store.url)}
                    del along["density"]
                    fine &= rated(gateway, port, f"{m}, with intervals", along, requests)
            finally:
                gateway.terminate()
                gateway.wait()
    return fine


def rated(
    gateway: subprocess.Popen[bytes], port: int, name: str, body: dict[str, Any], requests: int
) -> bool:
    """Print one row; whether it meets the target."""
    used = processor_seconds(gateway.pid)
    wall = asyncio.run(load(port, body, requests))
    rate = (requests + WARM_UP) / (processor_seconds(gateway.pid) - used)
    print(f"| {name} | {wall:.0f} | {rate:.0f} | {rate / TARGET:.2f} |")
    return rate >= TARGET


@cache
def store_profile(url: str) -> str:
    """Id of a profile in the store."""
    make = runpy.run_path(str(Path(__file__).parents[1] / "tests" / "conftest.py"))["make"]
    profile: Profile = make(tokens=256, documents=64)
    parts = [
        model.model_validate(profile.model_dump(include=set(model.model_fields)))
        for model in (ProfileBody, ProfileEnvelope)
    ]
    body, envelope = (part.model_dump_json().encode() for part in parts)
    outcome = ProfileOutcome(profile.id, body, envelope, b'{"model": "preset:gpt2"}')
    claims = ClaimStore(connect(url), name="bench", queues=["cpu"])
    claims.finish(Claim("0" * 32, "", b"", 1, ""), outcome, late=True)
    return profile.id


def start_gateway(store: str) -> tuple[subprocess.Popen[bytes], int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    cores = sorted(os.sched_getaffinity(0))
    environment = os.environ | {
        "LACUNA_REDIS_URL": store,
        "LACUNA_PORT": str(port),
        "LACUNA_LOG_LEVEL": "error",
        "OMP_NUM_THREADS": "1",
    }
    gateway = subprocess.Popen(
        [sys.executable, "-c", "from service.terminal import main; main()", "gateway"],
        env=environment,
    )
    os.sched_setaffinity(gateway.pid, {cores[0]})
    if len(cores) > 1:
        os.sched_setaffinity(0, set(cores[1:]))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return gateway, port
        if gateway.poll() is not None:
            raise SystemExit("the gateway did not start")
        time.sleep(0.1)
    raise SystemExit("the gateway did not answer within 60 s")


def processor_seconds(pid: int) -> float:
    """User and system time that a process has used (fields 14 and 15 of its stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def load(port: int, body: dict[str, Any], requests: int) -> float:
    """Requests per second over CONNECTIONS keep-alive connections."""
    payload = json.dumps(body).encode()
    head = (
        "POST /v1/placements HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n"
    ).encode()
    left = iter(range(requests))

    async def connection(count: int | None) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for done, _ in enumerate(left):
            writer.write(head + payload)
            status = await reader.readline()
            if b" 200 " not in status:
                raise SystemExit(f"unexpected answer: {status.decode().strip()}")
            length = 0
            while (line := await reader.readline()) not in (b"\r\n", b""):
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            await reader.readexactly(length)
            if count is not None and done + 1 >= count:
                break
        writer.close()

    await connection(WARM_UP)
    left = iter(range(requests))
    start = time.perf_counter()
    await asyncio.gather(*(connection(None) for _ in range(CONNECTIONS)))
    return requests / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-http", action="store_true")
    parser.add_argument("--requests", type=int, default=600)
    arguments = parser.parse_args()
    fine = in_process()
    if not arguments.no_http:
        fine &= over_http(arguments.requests)
    print("\nall targets met" if fine else "\nA TARGET WAS MISSED")
    raise SystemExit(0 if fine else 1)


if __name__ == "__main__":
    main()
