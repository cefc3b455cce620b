"""One client: rate, concurrency, patience, size, redirects, secrets."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from lacuna.contract.errors import (
    EndpointIncapable,
    EndpointRefused,
    EndpointUnreachable,
    TooLong,
)
from service.endpoints.table import Endpoint
from tests.workers.endpoints.fake_dialects import DIALECTS
from tests.workers.endpoints.fake_model import FakeModel
from tests.workers.endpoints.fake_server import KEY, Faults
from tests.workers.endpoints.harness import Patience, client_of, endpoint_of
from workers.endpoints.budget import Budget, Limits
from workers.endpoints.client import MOST_BYTES, TRIES, EndpointClient
from workers.endpoints.ledger import MemoryLedger
from workers.endpoints.pace import retry_after

BODY = {"messages": [{"role": "user", "content": "one two"}], "max_tokens": 1}


async def ask(client: EndpointClient, words: str = "one two") -> Any:
    body = {**BODY, "messages": [{"role": "user", "content": words}]}
    return await client.post("/chat/completions", body, lambda found: found["id"], reader="t")


def answering(handler: Any, patience: Patience | None = None, **fields: Any) -> EndpointClient:
    """A client whose network is a function."""
    endpoint = Endpoint.model_validate(
        {
            "name": "x",
            "base_url": "http://x.test/v1",
            "model": "m",
            "context_length": 4096,
            **fields,
        }
    )
    patience = patience or Patience()
    return EndpointClient(
        endpoint,
        SecretStr(KEY),
        budget=Budget.of(endpoint, Limits()),
        ledger=MemoryLedger(),
        transport=httpx.MockTransport(handler),
        clock=patience.clock,
        sleep=patience.sleep,
    )


def good(_: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json={"id": 1, "usage": {"prompt_tokens": 5}})


async def test_calls_under_way_are_bounded() -> None:
    with DIALECTS["openai"](FakeModel(), Faults(slow=0.02)) as server:
        async with client_of(server, concurrency=3) as client:
            calls = [
                client.post(
                    "/chat/completions",
                    {**BODY, "messages": [{"role": "user", "content": f"word {i}"}]},
                    lambda _: None,
                    reader="t",
                )
                for i in range(20)
            ]
            await asyncio.gather(*calls)
    assert server.most_under_way == 3


async def test_calls_are_spaced_by_requests_per_minute() -> None:
    patience = Patience()
    async with answering(good, patience, requests_per_minute=30, concurrency=8) as client:
        await asyncio.gather(*(ask(client, f"word {i}") for i in range(10)))
    assert patience.now == pytest.approx(9 * 2.0)


@pytest.mark.parametrize("date", [False, True])
async def test_retry_after_is_kept_to_by_all_calls(date: bool) -> None:
    patience, seen = Patience(), []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(patience.now)
        if len(seen) > 1:
            return good(request)
        when = format_datetime(datetime.now(UTC) + timedelta(seconds=21))
        return httpx.Response(429, headers={"Retry-After": when if date else "20"}, text="<p>")

    async with answering(handler, patience, concurrency=1) as client:
        await asyncio.gather(*(ask(client, f"word {i}") for i in range(3)))
    assert len(seen) == 4
    assert min(seen[1:]) >= 19.0


async def test_a_server_that_asks_for_an_hour_is_not_waited_for() -> None:
    patience = Patience()

    def handler(_: httpx.Request) -> httpx.Response:
        return httpx.Response(429, headers={"Retry-After": "3600"})

    async with answering(handler, patience) as client:
        with pytest.raises(EndpointUnreachable) as refusal:
            await ask(client)
    assert refusal.value.retry_after == 3600
    assert refusal.value.retryable
    assert patience.slept == 0


@pytest.mark.parametrize(
    ("value", "seconds"), [(None, None), ("7", 7.0), ("-1", 0.0), ("soon", None), ("nan", None)]
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert retry_after(value) == seconds


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(status: int) -> None:
    with DIALECTS["openai"](FakeModel()) as elsewhere:
        target = f"{elsewhere.url}/v1/chat/completions"

        def handler(_: httpx.Request) -> httpx.Response:
            return httpx.Response(status, headers={"Location": target})

        async with answering(handler) as client:
            with pytest.raises(EndpointRefused, match="not followed") as refusal:
                await ask(client)
        assert elsewhere.requests == 0
    assert target not in str(refusal.value)


STATUSES: list[tuple[int, Any, type[Exception], int]] = [
    (400, {"error": {"message": "bad"}}, EndpointIncapable, 1),
    (404, None, EndpointIncapable, 1),
    (401, {"error": f"key {KEY}"}, EndpointRefused, 1),
    (403, None, EndpointRefused, 1),
    (402, None, EndpointRefused, 1),
    (429, {"error": {"code": "insufficient_quota"}}, EndpointRefused, 1),
    (400, {"error": {"type": "exceed_context_size_error"}}, TooLong, 1),
    (400, {"error": {"code": "context_length_exceeded"}}, TooLong, 1),
    (422, {"error": "inputs must have less than 9 tokens", "error_type": "v"}, TooLong, 1),
    (200, {"error": {"message": "This model's maximum context length is 9"}}, TooLong, 1),
    (500, None, EndpointUnreachable, TRIES),
    (503, {"error": f"{KEY}"}, EndpointUnreachable, TRIES),
    (529, None, EndpointUnreachable, TRIES),
]


@pytest.mark.parametrize(("status", "body", "kind", "tries"), STATUSES)
async def test_statuses(status: int, body: Any, kind: type[Exception], tries: int) -> None:
    seen = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(status, json=body)

    async with answering(handler) as client:
        with pytest.raises(kind) as refusal:
            await ask(client)
        assert client.budget.spent.calls == len(seen) == tries
        assert client.budget.spent.prompt_tokens == 0, "a refused call is not paid"
    assert KEY not in str(refusal.value)


async def test_answers_stop_at_four_megabytes() -> None:
    read = 0

    async def endless() -> Any:
        nonlocal read
        while True:
            read += 65536
            yield b" " * 65536

    async with answering(lambda _: httpx.Response(200, content=endless())) as client:
        with pytest.raises(EndpointIncapable, match="4 MB"):
            await ask(client)
    assert read <= MOST_BYTES + 2 * 65536


async def test_compressed_answers_are_refused_unread() -> None:
    headers = {"Content-Encoding": "gzip"}
    async with answering(lambda _: httpx.Response(200, headers=headers, content=b"")) as client:
        with pytest.raises(EndpointIncapable, match="compressed"):
            await ask(client)


async def test_a_call_that_was_lost_is_counted_as_paid() -> None:
    def handler(_: httpx.Request) -> httpx.Response:
        raise httpx.ReadError(f"broken {KEY}")

    async with answering(handler) as client:
        with pytest.raises(EndpointUnreachable, match="broke off") as refusal:
            await ask(client)
        assert client.budget.spent.prompt_tokens > 0
    assert KEY not in str(refusal.value)


async def test_nothing_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with DIALECTS["openai"](FakeModel()) as server:
        async with client_of(server) as client:
            with pytest.raises(EndpointIncapable, match="lacks a field"):
                await ask(client)
    assert server.requests == 1


async def test_the_proxy_of_the_settings_is_used() -> None:
    with DIALECTS["openai"](FakeModel()) as server:
        endpoint = endpoint_of(server, base_url="http://models.test/v1", proxy=server.url)
        client = EndpointClient(
            endpoint, SecretStr(KEY), budget=Budget.of(endpoint, Limits()), ledger=MemoryLedger()
        )
        async with client:
            with pytest.raises(EndpointIncapable, match="404"):  # it saw the whole address
                await ask(client)
    assert server.requests == 1


async def test_certificates_that_cannot_be_read(tmp_path: Any) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(EndpointRefused, match="certificates"):
        answering(good, ca_file=tmp_path / "ca.pem")


async def test_the_key_is_seen_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with DIALECTS["anthropic"](FakeModel()) as server:
        async with client_of(server) as client:
            await client.post("/messages", BODY, lambda _: None, reader="t")
            assert server.answered
            shown = f"{client!r} {client.endpoint!r} {client.budget!r} {vars(client)!r}"
            kept = str(client.ledger._kept)  # type: ignore[attr-defined]
    for text in (shown, kept, caplog.text):
        assert KEY not in text
    with DIALECTS["openai"](FakeModel()) as server:
        async with client_of(server, key="sk-other") as client:
            with pytest.raises(EndpointRefused) as refusal:
                await ask(client)
    assert "sk-other" not in f"{refusal.value!r}{caplog.text}"


async def test_a_kept_answer_is_told_apart_by_scope_reader_and_repeat() -> None:
    seen = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return good(request)

    async with answering(handler) as client:
        for scope, reader, repeat in [("a", "r", 0), ("b", "r", 0), ("a", "s", 0), ("a", "r", 1)]:
            client.scope = scope
            for _ in range(2):
                await client.post(
                    "/completions", {"prompt": "x"}, lambda _: 1, reader=reader, repeat=repeat
                )
    assert len(seen) == 4
    assert client.budget.spent.replayed == 0, "what this client paid for counts once"
    assert client.budget.spent.prompt_tokens == 4 * 5
