"""The gateway with 10,000 jobs waiting and 100 clients polling. `python bench/backlog.py`

Prints the time of one GET /v1/jobs/{id} of an idle gateway, the same under load while a worker
drains the queue, the gateway's memory, and what became of the jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from gateway import KEY, gateway, running

from service.local import store as embedded
from service.store.claims import ClaimStore, ProfileOutcome
from service.store.connection import connect, connect_async
from service.store.queue import JobStore

JOBS, CLIENTS = 10_000, 100
SECONDS = 20.0
PAUSE = 0.5
"""What a client waits between two looks."""


def name(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()[:32]


async def fill(url: str, owner: str) -> None:
    client = connect_async(url)
    jobs = JobStore(client, max_queued=JOBS)
    for number in range(JOBS):
        await jobs.submit(name(number), b"{}", queue="cpu", owner_key=owner)
    await client.aclose()


async def poll(port: int, number: int, until: float, pause: float, taken: list[float]) -> None:
    """One client: look at one job after the other over one connection."""
    # Clients that nobody started together do not ask together either.
    await asyncio.sleep(pause * (number // 89) / CLIENTS)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < until:
        await asyncio.sleep(pause)
        number = (number + 97) % JOBS
        start = time.perf_counter()
        writer.write(
            f"GET /v1/jobs/{name(number)} HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {KEY}\r\n\r\n".encode()
        )
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        await reader.readexactly(length)
        assert head.startswith("http/1.1 200"), head
        taken.append(time.perf_counter() - start)
    writer.close()


async def load(port: int, clients: int, seconds: float, pause: float) -> list[float]:
    until, taken = time.perf_counter() + seconds, list[float]()
    await asyncio.gather(*(poll(port, n * 89, until, pause, taken) for n in range(clients)))
    return sorted(taken)


def drain(url: str, stop: threading.Event, per_second: float) -> None:
    """Ends jobs at a steady rate, as a worker of a large installation would."""
    claims = ClaimStore(connect(url), name="bench", queues=["cpu"])
    while not stop.wait(1 / per_second) and (claim := claims.claim()) is not None:
        body = b"x" * 8_000
        claims.finish(claim, ProfileOutcome(claim.job_id, body, b"{}", b'{"model": "m"}'))


async def states(url: str) -> Counter[str]:
    client = connect_async(url)
    jobs = JobStore(client)
    found = Counter([(await jobs.get(name(number))).state for number in range(JOBS)])
    await client.aclose()
    return found


def main() -> int:
    owner = hashlib.sha256(KEY.encode()).hexdigest()
    with (
        tempfile.TemporaryDirectory(prefix="lacuna-") as folder,
        embedded.ensure(Path(folder)) as store,
        running(gateway(store.url), "/healthz") as server,
    ):
        asyncio.run(fill(store.url, owner))
        idle = asyncio.run(load(server.port, 1, 3, 0.01))
        memory = server.process.memory_info().rss
        stop = threading.Event()
        worker = threading.Thread(target=drain, args=(store.url, stop, 50))
        worker.start()
        busy = asyncio.run(load(server.port, CLIENTS, SECONDS, PAUSE))
        grown = server.process.memory_info().rss - memory
        stop.set()
        worker.join()
        found = asyncio.run(states(store.url))
    p50, p99 = idle[len(idle) // 2], busy[int(0.99 * (len(busy) - 1))]
    print(f"idle gateway, one client: p50 {p50 * 1e3:.2f} ms ({len(idle)} looks)")
    print(
        f"{CLIENTS} clients, {JOBS} jobs: p50 {busy[len(busy) // 2] * 1e3:.2f} ms, "
        f"p99 {p99 * 1e3:.2f} ms, {p99 / p50:.1f} times the idle p50 ({len(busy)} looks)"
    )
    print(f"the gateway grew by {grown / 1e6:.1f} MB; jobs at the end: {dict(found)}")
    return 0 if p99 < 10 * p50 and sum(found.values()) == JOBS and grown < 20e6 else 1


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    # What was started stops with us, also when a supervisor ends us.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
