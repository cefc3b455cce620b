"""Calls one endpoint: bounded in number, rate, size and time, retried where that helps.

No redirect is followed, no proxy or certificate is taken from the environment, and nothing that the
server writes about a fault reaches a message. The key is put into a header when a call is made and
stands nowhere else.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic import SecretStr

from lacuna.contract.base import canonical
from lacuna.contract.errors import (
    EndpointChanged,
    EndpointIncapable,
    EndpointRefused,
    EndpointUnreachable,
    LacunaError,
    TooLong,
)
from service.endpoints.table import Endpoint
from workers.endpoints.answers import (
    NEW_LIMIT,
    Served,
    Usage,
    basename,
    fault_of,
    served_of,
    usage_of,
)
from workers.endpoints.budget import Budget
from workers.endpoints.ledger import Ledger, request_key
from workers.endpoints.pace import Pace, SharedPace, retry_after

MOST_BYTES = 4 * 2**20
"""An answer longer than this is cut off and refused."""
TRIES = 5
LONGEST_WAIT = 300.0
"""Seconds. A server that asks for a longer wait is reported as unreachable for now."""
BYTES_PER_TOKEN = 3
"""For reservations only, where nobody counted the prompt: English has about four."""

Pick = Callable[[Any], Any]
"""Takes from a parsed answer what its reader needs, as JSON values. Raises EndpointIncapable."""


@dataclass(frozen=True)
class Answer:
    """One answered call."""

    picked: Any
    """What `Pick` took from it."""
    usage: Usage
    served: Served
    replayed: bool = False
    """Whether it came from the ledger, and no call was made."""


@dataclass(frozen=True)
class _Fault:
    """Why a try gave no answer; `lost`: the server may have worked, and charge, all the same."""

    reason: str
    retry_after: float | None = None
    lost: bool = False


class _LimitRefused(EndpointIncapable):
    """The server refuses `max_tokens` and names `max_completion_tokens`."""


class EndpointClient:
    """HTTP client of one endpoint, for one event loop. Close it with `aclose` or `async with`.

    Args:
        endpoint: where to call.
        key: as `Endpoint.key` gave it.
        budget: is asked before every try and told of every answer.
        ledger: answers found there are not asked again.
        scope: whose answers those are; a caller may change it between calls, as it may `replays`.
        pace: says when a call may start; this client alone keeps the endpoint's if None.
        transport: for tests; the network if None.
        clock: seconds, monotonic.
        sleep: waits for seconds.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        key: SecretStr | None,
        *,
        budget: Budget,
        ledger: Ledger,
        scope: str = "",
        pace: Pace | SharedPace | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.endpoint, self.budget, self.ledger, self.scope = endpoint, budget, ledger, scope
        self.replays = True
        """Whether answers are taken from the ledger; they are kept there in any case."""
        self.served_model: str | None = None
        """Once set, answers in another model's name are refused."""
        self._new_limit = False
        """Whether this server's chat wants `max_completion_tokens`."""
        self._counted: set[str] = set()
        """Keys of answers that the budget knows: a second use of one costs nothing."""
        self._key = key
        self._clock, self._sleep = clock, sleep
        self._gate = asyncio.Semaphore(endpoint.concurrency)
        self._pace = pace or Pace(endpoint.requests_per_minute, clock, sleep)
        self._http = httpx.AsyncClient(
            follow_redirects=False,
            trust_env=False,
            verify=_trust(endpoint),
            proxy=None if endpoint.proxy is None else endpoint.proxy.get_secret_value(),
            timeout=endpoint.timeout,
            transport=transport,
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
        )

    def __repr__(self) -> str:
        return f"EndpointClient({self.endpoint.name!r})"

    async def __aenter__(self) -> EndpointClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def post(
        self,
        path: str,
        body: dict[str, Any],
        pick: Pick,
        *,
        reader: str,
        root: bool = False,
        expected_tokens: int = 0,
        generates: int = 1,
        repeat: int = 0,
        free: bool = False,
    ) -> Answer:
        """Ask, or take the answer from the ledger.

        Args:
            path: below `/v1`, or below the root if `root`.
            body: JSON values; `model` is added to calls below `/v1`.
            pick: takes from the answer what is needed.
            reader: name of what `pick` takes: part of the answer's key in the ledger.
            root: whether the route is the server's own, outside `/v1`.
            expected_tokens: of the prompt; 0: guessed from its size.
            generates: tokens generated at most.
            repeat: 0, 1, ... to ask the same again on purpose.
            free: the route runs no model: a call, but no tokens.

        Raises:
            BudgetSpent: the call would exceed a limit; it was not made.
            EndpointUnreachable: no answer after all tries.
            EndpointRefused: key or quota refused, or a redirect.
            EndpointIncapable: the server declines the request, or the answer lacks what is needed.
            EndpointChanged: another model answers than `served_model`.
            TooLong: the prompt is longer than the server takes.
        """
        endpoint = self.endpoint
        address = (endpoint.root_url if root else endpoint.base_url) + path
        sent = body if root else {"model": endpoint.model, **body}
        name = request_key(self.scope, "POST", address, sent, reader=reader, repeat=repeat)
        if self.replays and (kept := self.ledger.get(name)) is not None:
            return self._replay(name, kept)
        content = canonical(sent)
        guess = expected_tokens or len(content) // BYTES_PER_TOKEN
        reserve = (0, 0) if free else (guess, generates)
        picked, declined, usage, served = None, None, Usage(), Served()
        try:
            whole, usage = await self._answered(address, sent, reserve)
            served = self._same_model(served_of(whole))
            picked = pick(whole)
        except EndpointIncapable as error:
            declined = error.detail
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            declined = "the answer lacks a field or has another shape"
        record = {
            "picked": picked,
            "declined": declined,
            "usage": usage.as_dict(),
            "served": [served.model, served.fingerprint],
        }
        self.ledger.put(name, canonical(record))
        self._counted.add(name)
        if declined is not None:
            raise EndpointIncapable(declined)
        return Answer(picked, usage, served)

    async def _answered(
        self, address: str, body: dict[str, Any], reserve: tuple[int, int]
    ) -> tuple[Any, Usage]:
        """The answer to a body; one that the server wants with another name of its limit is sent
        again with that, now and from now on."""
        chat = address.endswith("/chat/completions") and "max_tokens" in body
        if not (chat and self._new_limit):
            try:
                return await self._until_answered(address, canonical(body), reserve)
            except _LimitRefused:
                if not chat:
                    raise
        self._new_limit = True
        renamed = {NEW_LIMIT if n == "max_tokens" else n: value for n, value in body.items()}
        return await self._until_answered(address, canonical(renamed), reserve)

    def _same_model(self, served: Served) -> Served:
        name, before = basename(served.model, self.endpoint.model), self.served_model
        if before is not None and name is not None and name != before:
            raise EndpointChanged(
                f"endpoint {self.endpoint.name!r} answers with another model than at the beginning",
                field="model",
            )
        return Served(name, served.fingerprint)

    def _replay(self, name: str, kept: bytes) -> Answer:
        record = json.loads(kept)
        if name not in self._counted:
            self._counted.add(name)
            self.budget.replay(record["usage"])
        if record["declined"] is not None:
            raise EndpointIncapable(record["declined"])
        return Answer(record["picked"], Usage(**record["usage"]), Served(*record["served"]), True)

    async def _until_answered(
        self, address: str, content: bytes, reserve: tuple[int, int]
    ) -> tuple[Any, Usage]:
        fault = _Fault("it was never called")
        for attempt in range(TRIES):
            async with self._gate:
                token = await self._pace.turn()
                try:
                    outcome = await self._paid(address, content, reserve)
                finally:
                    self._pace.done(token)
            if not isinstance(outcome, _Fault):
                return outcome
            fault = outcome
            wait = min(30.0, 0.5 * 2**attempt) * (0.5 + random.random())
            if fault.retry_after is not None:
                if fault.retry_after > LONGEST_WAIT:
                    break
                wait = fault.retry_after
                self._pace.hold(wait)
            if attempt + 1 < TRIES:
                self.budget.spent.retries += 1
                await self._sleep(wait)
        raise EndpointUnreachable(
            f"endpoint {self.endpoint.name!r} gives no usable answer: {fault.reason}",
            field="model",
            retry_after=fault.retry_after,
        )

    async def _paid(
        self, address: str, content: bytes, reserve: tuple[int, int]
    ) -> tuple[Any, Usage] | _Fault:
        """One try, with its tokens reserved before and settled after, whatever happens."""
        made = self.budget.reserve(*reserve)
        began = self._clock()
        settled = False
        try:
            outcome = await self._once(address, content)
            if isinstance(outcome, _Fault):
                if not outcome.lost:
                    settled = True
                    self.budget.release(made)
                return outcome
            usage = usage_of(outcome)
            settled = True
            self.budget.settle(made, usage.as_dict())
            return outcome, usage
        except (EndpointRefused, EndpointIncapable, TooLong):
            settled = True
            self.budget.release(made)
            raise
        finally:
            self.budget.spent.seconds += self._clock() - began
            if not settled:  # lost on the way or cancelled: the server may charge for it
                self.budget.settle(made, {})

    async def _once(self, address: str, content: bytes) -> Any:
        """One HTTP request: the parsed answer, or a fault after which to try again."""
        try:
            async with (
                asyncio.timeout(self.endpoint.timeout),
                self._http.stream(
                    "POST", address, content=content, headers=self._headers(address)
                ) as response,
            ):
                status, headers = response.status_code, response.headers
                raw = await self._read(response)
        except (TimeoutError, httpx.TransportError) as error:
            return self._lost(error)
        parsed = _parsed(raw)
        if status == 200 and parsed is None:
            return _Fault("the answer is not JSON, or only half of it", lost=True)
        if status == 200 and not (isinstance(parsed, dict) and parsed.get("error")):
            return parsed
        return self._fault(status, parsed, headers)

    def _lost(self, error: Exception) -> _Fault:
        """A fault of the connection, in our words: httpx's may hold the proxy's password."""
        if isinstance(error, httpx.ConnectTimeout | httpx.ConnectError | httpx.ProxyError):
            return _Fault("no connection")
        if isinstance(error, TimeoutError | httpx.TimeoutException):
            return _Fault(f"no whole answer within {self.endpoint.timeout:g} s", lost=True)
        return _Fault("the answer broke off", lost=True)

    async def _read(self, response: httpx.Response) -> bytes:
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise EndpointIncapable("the answer is compressed, although that was not asked for")
        found = bytearray()
        async for chunk in response.aiter_bytes():
            found += chunk
            if len(found) > MOST_BYTES:
                raise EndpointIncapable(f"the answer has more than {MOST_BYTES >> 20} MB")
        return bytes(found)

    def _fault(self, status: int, parsed: Any, headers: httpx.Headers) -> _Fault:
        """What to do after an answer that is no success: come back as a fault, or raise."""
        kind = fault_of(status, parsed)
        if kind == "again":
            return _Fault(f"HTTP status {status}", retry_after(headers.get("retry-after")))
        raise self._refusal(kind, status)

    def _refusal(self, kind: str, status: int) -> LacunaError:
        who = f"endpoint {self.endpoint.name!r}"
        if kind == "key":
            reason = f"{who} refuses the key (HTTP status {status})"
        elif kind == "quota":
            reason = f"{who} asks for payment or more quota"
        elif kind == "elsewhere":
            reason = f"{who} redirects to another address, which is not followed"
        elif kind == "too_long":
            return TooLong(f"{who} takes shorter prompts than this one", field="sequence_length")
        else:
            refused = _LimitRefused if kind == "limit_name" else EndpointIncapable
            return refused(f"the server declines the request (HTTP status {status})")
        return EndpointRefused(reason, field="model")

    def _headers(self, address: str) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        native = address.startswith(f"{self.endpoint.base_url}/messages")
        if native:
            headers["anthropic-version"] = "2023-06-01"
        if self._key is not None:
            secret = self._key.get_secret_value()
            headers |= {"x-api-key": secret} if native else {"Authorization": f"Bearer {secret}"}
        return headers


def _trust(endpoint: Endpoint) -> ssl.SSLContext | bool:
    if endpoint.ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=str(endpoint.ca_file))
    except (OSError, ssl.SSLError):
        raise EndpointRefused(
            f"`model`: the certificates of endpoint {endpoint.name!r} cannot be read "
            "where the worker runs",
            field="model",
        ) from None


def _parsed(raw: bytes) -> Any:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict | list) else None
