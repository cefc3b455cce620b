from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest


def test_below_the_root_path_of_the_server_everything_works(start_process: Any) -> None:
    command = "uvicorn --factory service.gateway.app:factory --port {port} --root-path /lacuna"
    with start_process(command, LACUNA_API_KEYS="k" * 20) as process:
        assert httpx.get(f"{process.base}/").status_code == 200
        assert httpx.get(f"{process.base}/v1/models").status_code == 401
        asked = httpx.post(
            f"{process.base}/v1/profiles",
            json={"model": "preset:gpt2", "weights": "random"},
            headers={"X-API-Key": "k" * 20},
        )
        assert asked.headers["location"] == f"/lacuna/v1/jobs/{asked.json()['id']}"


def test_a_gateway_stops_within_seconds_whatever_is_open(process: Any) -> None:
    body = {"model": "preset:gpt2", "weights": "random", "seed": 9}
    job = httpx.post(f"{process.base}/v1/profiles", json=body).headers["location"]
    with httpx.stream("GET", f"{process.base}{job}/events", timeout=30) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: queued"
        started = time.monotonic()
        process.child.terminate()
        process.child.wait(15)
        assert time.monotonic() - started < 12


def test_who_waits_for_a_job_is_told_that_the_gateway_stops(start_process: Any) -> None:
    body = {"model": "preset:gpt2", "weights": "random"}
    with start_process(LACUNA_MAX_WAIT_SECONDS="60") as process, ThreadPoolExecutor() as pool:
        url, prefer = f"{process.base}/v1/profiles", {"Prefer": "wait=60"}
        job = httpx.post(url, json=body).headers["location"]
        posted = pool.submit(httpx.post, url, json=body, headers=prefer, timeout=60)
        read = pool.submit(httpx.get, f"{process.base}{job}", headers=prefer, timeout=60)
        time.sleep(1)
        process.child.terminate()
        for answer in (posted.result(), read.result()):
            assert answer.status_code == 503
            assert answer.headers["content-type"] == "application/problem+json"
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["code"] == "not_ready"
    accesses = [json.loads(line) for line in process.log.read_text().splitlines()]
    assert [line["status"] for line in accesses if line.get("status", 0) >= 500] == [503, 503]


SLOW_GATEWAY = """
import threading
import time
from service.gateway.pools import Pool
from service.terminal import main
run = Pool.run
Pool.run = lambda pool, call, *arguments: run(pool, lambda: time.sleep(60))
main()
"""


def test_a_long_computation_does_not_hold_a_gateway_that_stops(
    start_process: Any, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(SLOW_GATEWAY)
    body = {"layers": 2, "sequence_length": 64, "heads": 2, "kernel": {"type": "alibi"}}
    with (
        start_process("slow gateway", PYTHONPATH=str(tmp_path)) as process,
        ThreadPoolExecutor() as pool,
    ):
        rollout = pool.submit(httpx.post, f"{process.base}/v1/rollouts", json=body, timeout=90)
        time.sleep(1)
        assert not rollout.done()
        process.child.terminate()
        assert process.child.wait(20) == 0
        assert rollout.result().status_code == 503


def test_names_and_versions_of_software_stay_private(process: Any) -> None:
    assert "server" not in httpx.get(f"{process.base}/healthz").headers


def test_profiles_leave_a_real_server_as_they_leave_the_app(process: Any, profile: Any) -> None:
    address = f"{process.base}/v1/profiles/{profile.id}"
    first, again = httpx.get(address), httpx.get(address)
    assert first.content == again.content
    assert first.headers["etag"] == again.headers["etag"]
    head = httpx.head(address)
    assert head.headers["content-length"] == first.headers["content-length"]
    condition = {"If-None-Match": first.headers["etag"]}
    assert httpx.get(address, headers=condition).status_code == 304


def test_what_is_no_http_does_not_reach_the_log(process: Any) -> None:
    host, port = process.base.removeprefix("http://").split(":")
    for garbage in (b"\x16\x03\x01\x00\xa5\x01", b"GET / HTTP/9.9\r\n\r\n", b"\x00" * 100):
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(garbage)
            raw.shutdown(socket.SHUT_WR)
            raw.settimeout(5)
            raw.recv(1000)
    assert httpx.get(f"{process.base}/healthz").status_code == 200
    assert "Traceback" not in process.log.read_text()


def test_a_megabyte_of_headers_needs_no_key_and_costs_nothing(start_process: Any) -> None:
    with start_process(LACUNA_API_KEYS="k" * 20) as process:
        host, port = process.base.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nAccept-Encoding: " + b"," * 1_000_000)
            raw.sendall(b"\r\n\r\n")
            answer = b""
            while part := raw.recv(10_000):
                answer += part
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert b'"code":"headers_too_large"' in answer


@pytest.mark.slow
def test_a_body_that_does_not_arrive_ends_the_connection(process: Any) -> None:
    host, port = process.base.removeprefix("http://").split(":")
    head = b"POST /v1/rollouts HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, int(port)), timeout=20) as raw:
        raw.sendall(head + b"Content-Length: 12\r\n\r\n{")
        answer = b""
        while part := raw.recv(10_000):
            answer += part
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"application/problem+json" in answer
    assert b'"code":"request_timeout"' in answer
    assert "Traceback" not in process.log.read_text()


def test_the_gateway_starts_without_the_heavy_parts_of_scipy() -> None:
    code = "import service.gateway.app, sys; print(' '.join(sys.modules))"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    heavy = {"scipy.stats", "scipy.optimize", "scipy.signal", "PIL", "torch", "transformers"}
    assert heavy.isdisjoint(answer.stdout.split())


def test_a_planned_stop_leaves_no_traceback(start_process: Any) -> None:
    """Every open wait and every event stream had one."""
    with start_process() as process, ThreadPoolExecutor(6) as pool:
        body = {"model": "preset:gpt2", "weights": "random"}
        job = httpx.post(f"{process.base}/v1/profiles", json=body).json()["id"]
        address = f"{process.base}/v1/jobs/{job}"
        waits = [
            pool.submit(httpx.get, address, headers={"Prefer": "wait=60"}, timeout=30)
            for _ in range(3)
        ]
        begun = threading.Barrier(4)

        def follow() -> tuple[int, str]:
            with httpx.stream("GET", f"{address}/events", timeout=30) as stream:
                lines = stream.iter_lines()
                first = next(lines)
                begun.wait(30)
                return stream.status_code, "\n".join([first, *lines])

        streams = [pool.submit(follow) for _ in range(3)]
        begun.wait(30)
        time.sleep(0.5)  # the waits were asked for before the streams
        process.child.send_signal(signal.SIGTERM)
        for wait in waits:
            assert wait.result().status_code == 503
            assert wait.result().json()["code"] == "not_ready"
        for stream in streams:
            status, text = stream.result()
            assert status == 200
            assert "event: queued" in text
        process.child.wait(20)
        log = process.log.read_text()
        assert "Traceback" not in log
        assert "Exception in ASGI" not in log
        assert "without completing" not in log
