"""The queue on an embedded store: submit, claim, look, wait. `python bench/jobs.py`

Prints microseconds at the median and the 99th percentile, and what a thousand open waits cost.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from service.local import store
from service.store.claims import ClaimStore, ProfileOutcome
from service.store.connection import connect, connect_async
from service.store.queue import JobStore

WAITING = 10_000
REPEATS = 1_000
REQUEST = b'{"model": "preset:gpt2", "weights": "random"}'


def name(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()[:32]


def report(what: str, seconds: list[float]) -> None:
    seconds.sort()
    half, most = seconds[len(seconds) // 2], seconds[int(len(seconds) * 0.99)]
    print(f"{what:46} {half * 1e6:9.0f} {most * 1e6:9.0f}")


async def timed(call: Callable[[int], Awaitable[object]], numbers: range) -> list[float]:
    taken = []
    for number in numbers:
        start = time.perf_counter()
        await call(number)
        taken.append(time.perf_counter() - start)
    return taken


async def gateway(jobs: JobStore) -> None:
    await timed(lambda n: jobs.submit(name(n), REQUEST, queue="cpu"), range(WAITING - REPEATS))
    last = range(WAITING - REPEATS, WAITING)
    report(
        f"submit, {WAITING} waiting",
        await timed(lambda n: jobs.submit(name(n), REQUEST, queue="cpu"), last),
    )
    report("submit again", await timed(lambda n: jobs.submit(name(n), REQUEST, queue="cpu"), last))
    report("look, with position", await timed(lambda n: jobs.get(name(n)), last))


def worker(claims: ClaimStore) -> None:
    whole: dict[str, list[float]] = {"claim": [], "beat": [], "finish": []}
    outcome = ProfileOutcome(name(0), b"x" * 8_000, b"{}", b'{"model": "m"}')
    for _ in range(REPEATS):
        start = time.perf_counter()
        claim = claims.claim()
        assert claim is not None
        claimed = time.perf_counter()
        claims.beat(claim, 0.5, "")
        beaten = time.perf_counter()
        claims.finish(claim, outcome)
        whole["claim"].append(claimed - start)
        whole["beat"].append(beaten - claimed)
        whole["finish"].append(time.perf_counter() - beaten)
    for what, taken in whole.items():
        report(what, taken)


async def pickup(jobs: JobStore, claims: ClaimStore) -> None:
    """From the call of submit to the claim in the hands of an idle worker."""
    claims.client.flushall()
    taken = []
    for number in range(200):
        blocked = asyncio.create_task(asyncio.to_thread(claims.wait, 5.0))
        await asyncio.sleep(0.005)
        start = time.perf_counter()
        await jobs.submit(name(number), REQUEST, queue="cpu")
        await blocked
        claims.claim()
        taken.append(time.perf_counter() - start)
    report("pickup by an idle worker", taken)


async def open_waits(jobs: JobStore, claims: ClaimStore) -> None:
    claims.client.flushall()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(1_000):
        await jobs.submit(name(number), REQUEST, queue="cpu")
    waits = [asyncio.create_task(jobs.wait(name(number), 60)) for number in range(1_000)]
    await asyncio.sleep(2)
    unit = 1 if sys.platform == "darwin" else 1_024
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    await asyncio.to_thread(end_all, claims)
    ended = time.perf_counter()
    await asyncio.gather(*waits)
    print(
        f"1000 open waits on 1000 jobs: +{(after - before) * unit / 1e6:.0f} MB; ending them took "
        f"{ended - start:.2f} s, the last wait answered {time.perf_counter() - ended:.2f} s later"
    )


def end_all(claims: ClaimStore) -> None:
    outcome = ProfileOutcome(name(0), b"x", b"{}", b'{"model": "m"}')
    while (claim := claims.claim()) is not None:
        claims.finish(claim, outcome)


async def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="lacuna-") as folder,
        store.ensure(Path(folder)) as s,
    ):
        client = connect_async(s.url)
        jobs = JobStore(client, max_queued=WAITING)
        claims = ClaimStore(connect(s.url), name="bench", queues=["cpu"])
        print(f"{'':46} {'p50 µs':>9} {'p99 µs':>9}")
        await gateway(jobs)
        worker(claims)
        await pickup(jobs, claims)
        await open_waits(jobs, claims)
        await jobs.close()
        await client.aclose()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asyncio.run(main())
