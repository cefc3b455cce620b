"""The async client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from lacuna import flows
from lacuna.client import DEFAULT_URL, Progress, arguments, headers
from lacuna.retry import Flow, Patience, Send
from lacuna.types import (
    Chunk,
    Comparison,
    Job,
    Json,
    Placement,
    Profile,
    ProfileSummary,
    Rollout,
)

T = TypeVar("T")


class AsyncClient:
    """`Client` with coroutines; use it as an async context manager, or await `aclose`."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout: float = 30.0,
        retries: int = 4,
        longest_wait: float = 60.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._patience = Patience(retries, longest_wait)
        self._timeout = timeout
        self._http = httpx.AsyncClient(base_url=url, headers=headers(api_key), transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def profile(
        self,
        model: str,
        *,
        timeout: float = 3600.0,
        on_progress: Progress | None = None,
        **options: Any,
    ) -> Profile:
        """See `Client.profile`."""
        request = {"model": model, **options}
        return await self._run(flows.profile(self._patience, request, timeout, on_progress))

    async def submit(self, model: str, **options: Any) -> Job:
        """See `Client.submit`."""
        return await self._run(flows.submit(self._patience, {"model": model, **options}))

    async def wait(
        self, job: Job, *, timeout: float = 3600.0, on_progress: Progress | None = None
    ) -> Job:
        """See `Client.wait`."""
        return await self._run(flows.wait_for(self._patience, job, timeout, on_progress))

    async def job(self, job_id: str) -> Job:
        """See `Client.job`."""
        return await self._run(flows.job(self._patience, job_id))

    async def cancel(self, job_id: str) -> Job:
        """See `Client.cancel`."""
        return await self._run(flows.job(self._patience, job_id, cancel=True))

    async def get_profile(self, profile_id: str) -> Profile:
        """See `Client.get_profile`."""
        return await self._run(flows.read(self._patience, profile_id))

    async def profiles(self, model: str | None = None, *, limit: int = 20) -> list[ProfileSummary]:
        """See `Client.profiles`."""
        return await self._run(flows.listing(self._patience, model, limit))

    async def place(self, chunks: Iterable[Chunk | Mapping[str, Any]], **options: Any) -> Placement:
        """See `Client.place`."""
        request = flows.placement_request(chunks, options)
        return await self._run(flows.place(self._patience, request))

    async def rollout(self, **request: Any) -> Rollout:
        """See `Client.rollout`."""
        return await self._run(flows.rollout(self._patience, request))

    async def compare(self, a: str, b: str, *, source: str = "measured") -> Comparison:
        """See `Client.compare`."""
        return await self._run(flows.compare(self._patience, a, b, source))

    async def models(self) -> Json:
        """See `Client.models`."""
        return await self._run(flows.models(self._patience))

    async def _run(self, flow: Flow[T]) -> T:
        response: httpx.Response | None = None
        try:
            step = next(flow)
            while True:
                if isinstance(step, Send):
                    try:
                        response = await self._http.request(**arguments(step, self._timeout))
                    except httpx.TransportError as error:
                        step = flow.throw(error)
                        continue
                else:
                    await asyncio.sleep(step.seconds)
                    response = None
                step = flow.send(response)
        except StopIteration as stop:
            result: T = stop.value
            return result
