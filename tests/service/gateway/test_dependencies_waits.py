"""Waits end with their callers, and no caller holds too many."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import httpx
import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from lacuna.contract.errors import RateLimited
from service.gateway import dependencies
from service.gateway.dependencies import OpenWaits, while_connected

BODY = {"model": "preset:gpt2", "weights": "random"}


def request(*messages: Message) -> Request:
    given = list(messages)

    async def receive() -> Message:
        if given:
            return given.pop(0)
        return await asyncio.Future()

    return Request({"type": "http", "headers": []}, receive)


async def test_what_is_waited_for_is_answered() -> None:
    async def call() -> int:
        await asyncio.sleep(0.01)
        return 7

    assert await while_connected(request({"type": "http.request"}), call()) == 7


async def test_who_leaves_ends_the_wait() -> None:
    cancelled = asyncio.Event()

    async def call() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(ClientDisconnect):
        await while_connected(
            request({"type": "http.request"}, {"type": "http.disconnect"}), call()
        )
    assert cancelled.is_set()


async def test_a_fault_of_the_call_is_raised() -> None:
    async def call() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await while_connected(request(), call())


def test_places_are_per_caller_and_given_back() -> None:
    waits = OpenWaits(1)
    for _ in range(2):
        with (
            waits.one_more("ann"),
            waits.one_more(None),
            pytest.raises(RateLimited),
            waits.one_more("ann"),
        ):
            pass
    assert not waits._open


async def test_too_many_waits_of_one_caller_are_refused(
    gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependencies.OpenWaits.__init__, "__defaults__", (2,))
    client: httpx.AsyncClient = await gateway()
    job = (await client.post("/v1/profiles", json=BODY)).headers["location"]
    prefer = {"Prefer": "wait=2"}
    calls = [
        client.get(job, headers=prefer),
        client.post("/v1/profiles", json=BODY, headers=prefer),
    ]
    open_waits = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0.5)
    for refused in (await client.get(job, headers=prefer), await client.get(f"{job}/events")):
        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
        assert int(refused.headers["retry-after"]) >= 1
    assert (await client.get(job)).status_code == 200
    assert [(await answer).status_code for answer in open_waits] == [200, 202]


def test_callers_that_are_gone_hold_no_place(start_process: Any) -> None:
    with start_process(LACUNA_MAX_WAIT_SECONDS="60") as process:
        job = httpx.post(f"{process.base}/v1/profiles", json=BODY).headers["location"]
        host, port = process.base.removeprefix("http://").split(":")
        head = f"GET {job} HTTP/1.1\r\nHost: x\r\nPrefer: wait=60\r\n\r\n".encode()
        for _ in range(dependencies.MAX_OPEN_WAITS + 50):
            with socket.create_connection((host, int(port)), timeout=20) as raw:
                raw.sendall(head)
        end = time.monotonic() + 30
        prefer = {"Prefer": "wait=1"}
        while httpx.get(f"{process.base}{job}", headers=prefer, timeout=30).status_code != 200:
            assert time.monotonic() < end
        process.child.terminate()
        process.child.wait(20)
        assert "Traceback" not in process.log.read_text()
