"""The blocking client.

The async client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from lacuna.client import flows
from lacuna.client.flows import Flow, Patience, Send
from lacuna.client.types import (
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
Progress = Callable[[Job], None]
DEFAULT_URL = "http://127.0.0.1:8080"
_SLACK = 15.0


def headers(api_key: str | None) -> dict[str, str]:
    """Of every request."""
    return {} if api_key is None else {"Authorization": f"Bearer {api_key}"}


def arguments(step: Send, timeout: float) -> dict[str, Any]:
    """What httpx takes; a request that may be held open gets that much longer."""
    held = float(step.headers.get("Prefer", "wait=0").rpartition("=")[2])
    return {
        "method": step.method,
        "url": step.path,
        "json": step.body,
        "params": dict(step.query) or None,
        "headers": dict(step.headers),
        "timeout": max(timeout, held + _SLACK) if held else timeout,
    }


class Client:
    """A blocking client; use it as a context manager, or call `close`. Threads may share it.

    Args:
        url: address of the service.
        api_key: if the service asks for one.
        timeout: seconds for one request.
        retries: attempts after the first, on connection errors, 429, 502, 503 and 504.
        longest_wait: a `Retry-After` beyond this many seconds raises at once.
        transport: of httpx, for tests and proxies.

    Every method raises `Refused` when the service says no and `ServiceAway` when it does not
    answer after all retries.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout: float = 30.0,
        retries: int = 4,
        longest_wait: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._patience = Patience(retries, longest_wait)
        self._timeout = timeout
        self._http = httpx.Client(base_url=url, headers=headers(api_key), transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def profile(
        self,
        model: str,
        *,
        timeout: float = 3600.0,
        on_progress: Progress | None = None,
        **options: Any,
    ) -> Profile:
        """Measure a model, or read its profile if it is known.

        Args:
            model: hub id, `local:NAME`, `demo:NAME` or `preset:NAME`.
            timeout: seconds to wait; the job goes on afterwards.
            on_progress: called with every state of the job that is seen.
            options: other fields of POST /v1/profiles, such as `sequence_length`.

        Raises:
            WaitedTooLong: it carries the job.
            JobFailed: the measurement failed or was cancelled.
        """
        request = {"model": model, **options}
        return self._run(flows.profile(self._patience, request, timeout, on_progress))

    def submit(self, model: str, **options: Any) -> Job:
        """Ask for a profile without waiting; a known one is a job that is done."""
        return self._run(flows.submit(self._patience, {"model": model, **options}))

    def wait(
        self, job: Job, *, timeout: float = 3600.0, on_progress: Progress | None = None
    ) -> Job:
        """The job at its end; raises as `profile` does."""
        return self._run(flows.wait_for(self._patience, job, timeout, on_progress))

    def job(self, job_id: str) -> Job:
        """A job as it stands."""
        return self._run(flows.job(self._patience, job_id))

    def cancel(self, job_id: str) -> Job:
        """Withdraw a job."""
        return self._run(flows.job(self._patience, job_id, cancel=True))

    def get_profile(self, profile_id: str) -> Profile:
        """A profile by id."""
        return self._run(flows.read(self._patience, profile_id))

    def profiles(self, model: str | None = None, *, limit: int = 20) -> list[ProfileSummary]:
        """Summaries, newest first."""
        return self._run(flows.listing(self._patience, model, limit))

    def place(self, chunks: Iterable[Chunk | Mapping[str, Any]], **options: Any) -> Placement:
        """Order chunks.

        Args:
            chunks: in the caller's order of preference.
            options: one of `profile_id`, `model`, `density`, and other fields of
                POST /v1/placements.
        """
        request = flows.placement_request(chunks, options)
        return self._run(flows.place(self._patience, request))

    def rollout(self, **request: Any) -> Rollout:
        """Theory alone; the fields of POST /v1/rollouts."""
        return self._run(flows.rollout(self._patience, request))

    def compare(self, a: str, b: str, *, source: str = "measured") -> Comparison:
        """Two profiles by id."""
        return self._run(flows.compare(self._patience, a, b, source))

    def models(self) -> Json:
        """What the workers offer."""
        return self._run(flows.models(self._patience))

    def _run(self, flow: Flow[T]) -> T:
        response: httpx.Response | None = None
        try:
            step = next(flow)
            while True:
                if isinstance(step, Send):
                    try:
                        response = self._http.request(**arguments(step, self._timeout))
                    except httpx.TransportError as error:
                        step = flow.throw(error)
                        continue
                else:
                    time.sleep(step.seconds)
                    response = None
                step = flow.send(response)
        except StopIteration as stop:
            result: T = stop.value
            return result


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
