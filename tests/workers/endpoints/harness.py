"""Readers on fake servers, questions with known answers, and what is true of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr

from lacuna.contract.endpoints import Form, Rung
from service.endpoints.table import Endpoint
from tests.workers.endpoints.fake_model import split
from tests.workers.endpoints.fake_server import KEY, FakeServer
from workers.endpoints.budget import Budget, Limits
from workers.endpoints.client import EndpointClient
from workers.endpoints.ledger import Ledger, MemoryLedger
from workers.endpoints.reader import EndpointReader
from workers.recall.reader import Message, Question

_WORDS = "over hill near lake under tree with coat from shop past mill by road into town"
FILLER = tuple(_WORDS.split())
NAMES = (" John", " Mary", " David", " Sarah", " Robert", " Linda", " Thomas", " Peter")


def endpoint_of(server: FakeServer, **fields: Any) -> Endpoint:
    given: dict[str, Any] = {
        "name": "fake",
        "base_url": f"{server.url}/v1",
        "model": "fake-model",
        "context_length": 4096,
        "timeout": 5.0,
        **fields,
    }
    return Endpoint.model_validate(given)


@dataclass
class Patience:
    """A clock that jumps ahead where a client would sleep."""

    now: float = 0.0
    slept: float = 0.0

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds
        await asyncio.sleep(0)


def client_of(
    server: FakeServer,
    *,
    limits: Limits | None = None,
    ledger: Ledger | None = None,
    key: str = KEY,
    patience: Patience | None = None,
    **fields: Any,
) -> EndpointClient:
    endpoint = endpoint_of(server, **fields)
    patience = patience or Patience()
    return EndpointClient(
        endpoint,
        SecretStr(key),
        budget=Budget.of(endpoint, limits or Limits()),
        ledger=MemoryLedger() if ledger is None else ledger,
        clock=patience.clock,
        sleep=patience.sleep,
    )


def reader_of(
    server: FakeServer,
    *,
    rung: Rung | None = None,
    one_token: bool = True,
    longest: int = 0,
    measurement: str = "m",
    **more: Any,
) -> EndpointReader:
    client = client_of(server, **more)
    return EndpointReader(
        client.endpoint,
        SecretStr(KEY),
        budget=client.budget,
        ledger=client.ledger,
        measurement=measurement,
        rung=rung,
        one_token=one_token,
        longest=longest,
        client=client,
    )


def reader_at(address: str, form: str, *, key: str | None = None, **more: Any) -> EndpointReader:
    """Reads a real server of this machine, one call at a time."""
    endpoint = Endpoint.model_validate(
        {
            "name": "real",
            "base_url": f"{address}/v1",
            "model": "smollm2",
            "context_length": 2048,
            "form": form,
            "concurrency": 1,
        }
    )
    return EndpointReader(
        endpoint,
        None if key is None else SecretStr(key),
        budget=Budget.of(endpoint, Limits()),
        ledger=MemoryLedger(),
        measurement="m",
        **more,
    )


def asked(form: Form, body: str, lead: str) -> str | tuple[Message, ...]:
    if form == "plain":
        return f"{body}\n\n{lead}"
    if form == "continued":
        return (Message("user", body), Message("assistant", lead))
    return (Message("user", f"{body}\n\n{lead}"),)


def question(
    form: Form, depth: float, *, fact: int = 0, words: int = 120, name: str | None = None
) -> Question:
    """A fact at a depth of filler, and the question that it answers."""
    filler = [FILLER[(fact * 7 + i * 5) % len(FILLER)] for i in range(words)]
    at = round(depth * words)
    answer = name or NAMES[fact % len(NAMES)]
    key = f"owner of lantern {fact} was"
    body = " ".join([*filler[:at], f"The {key}{answer}.", *filler[at:]])
    prompt = asked(form, body, f"The {key}")
    least = len(split(body))
    return Question(prompt, answer, expected_tokens=least)


def tokens_of(server: FakeServer, form: Form, one: Question) -> list[str]:
    """The prompt as an honest server of this dialect reads it."""
    if isinstance(one.prompt, str):
        return [*server.bos, *split(one.prompt)]
    turns = [{"role": m.role, "content": m.content} for m in one.prompt]
    found = FakeServer.chat_tokens(server, turns, continued=form == "continued")
    return [*server.bos, *found]


def truth(server: FakeServer, form: Form, one: Question) -> float:
    """Log-probability of the answer by the model itself."""
    return server.model.score(tokens_of(server, form, one), split(one.answer))
