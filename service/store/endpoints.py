"""Endpoints in the store: answers that were paid for, calls under way, and what was found out.

Workers on any machine share all of it, so a job that moves pays for nothing twice, and an endpoint
never sees more calls than its settings allow.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast

import redis
import redis.asyncio

from lacuna.contract.endpoints import EndpointAbilities
from service.store import keys
from service.store.connection import (
    ROUTE,
    is_outage,
    lua_arguments,
    lua_source,
    outages_translated,
)
from service.store.queue import readable

log = logging.getLogger(__name__)

ASK_AGAIN = 0.02
"""Seconds until a call that finds all places taken asks again."""


class StoredAnswers:
    """Answers by the digest of the request that they answered. A ledger (`workers.endpoints`).

    While the store is away answers wait in memory and go there later: a job goes on through an
    outage. Then a kill may cost what was answered since the outage began.

    Args:
        client: a worker's client.
        ttl: seconds for which an answer is kept.
    """

    def __init__(self, client: redis.Redis, ttl: float) -> None:
        self._client, self._ttl_ms = client, int(ttl * 1e3)
        self._unsent: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        """The answer kept under this digest, or None; None as well while the store is away."""
        if (waiting := self._unsent.get(key)) is not None:
            return waiting
        try:
            return cast("bytes | None", self._client.get(keys.answer(key)))
        except (redis.RedisError, OSError) as error:
            if not is_outage(error):
                raise
            return None

    def put(self, key: str, answer: bytes) -> None:
        """Keep an answer."""
        self._unsent[key] = answer
        try:
            for name in list(self._unsent):
                self._client.set(keys.answer(name), self._unsent[name], px=self._ttl_ms)
                del self._unsent[name]
        except (redis.RedisError, OSError) as error:
            if not is_outage(error):
                raise
            if len(self._unsent) == 1:
                log.warning("the store is away; answers wait in memory")

    def forget(self, names: Sequence[str]) -> None:
        """Drop answers: they may hold a caller's own texts."""
        for name in names:
            self._unsent.pop(name, None)
        if names:
            self._client.delete(*map(keys.answer, names))


class Turns:
    """Places for calls of one endpoint, shared by all workers.

    Args:
        client: a worker's client.
        name: of the endpoint.
        most: calls under way at once.
        gap: seconds between two starts.
        lease: seconds after which a call counts as lost, with the process that made it.
        owner: the job that calls; only one worker at a time runs it.
    """

    def __init__(
        self, client: redis.Redis, name: str, *, most: int, gap: float, lease: float, owner: str
    ) -> None:
        self._script = client.register_script(lua_source("endpoints"))
        self._name, self._most, self._owner = name, most, owner
        self._gap_us, self._lease_us = int(gap * 1e6), int(lease * 1e6)

    def _run(self, operation: str, **named: Any) -> Any:
        return self._script(
            keys=ROUTE, args=lua_arguments(operation, {"name": self._name, **named})
        )

    def turn(self, token: str) -> float:
        """0 if the call of this token may start now, else seconds after which to ask again.

        Raises:
            redis.RedisError: the store is away.
        """
        wait = self._run(
            "turn",
            token=f"{self._owner}/{token}",
            most=self._most,
            gap=self._gap_us,
            lease=self._lease_us,
            again=int(ASK_AGAIN * 1e6),
        )
        return int(wait) / 1e6

    def done(self, token: str) -> None:
        """The call has ended."""
        self._run("done", token=f"{self._owner}/{token}")

    def free(self) -> None:
        """Give back the places of this job's earlier starts, which ended with their processes."""
        self._run("free", owner=self._owner)

    def hold(self, seconds: float) -> None:
        """Let no worker start a call for this many seconds."""
        self._run("hold", wait=int(seconds * 1e6))


def publish_abilities(client: redis.Redis, name: str, found: EndpointAbilities) -> None:
    """Tell the gateways what an endpoint offers."""
    client.set(keys.endpoint(name), found.model_dump_json())


async def abilities(
    client: redis.asyncio.Redis, names: Sequence[str]
) -> dict[str, EndpointAbilities]:
    """What is known of endpoints, by name; those never measured are left out.

    Raises:
        StoreUnavailable: Redis is away.
    """
    if not names:
        return {}
    with outages_translated():
        documents = cast(
            "list[bytes | None]", await client.mget([keys.endpoint(name) for name in names])
        )
    return {
        name: known
        for name, document in zip(names, documents, strict=True)
        for known in readable(EndpointAbilities, [document])
    }
