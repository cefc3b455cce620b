"""What the command line needs of HTTP: post, wait for the job, read."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import httpx

from service.contract.jobs import Job

_POLL_SECONDS = 0.3


class Refused(RuntimeError):
    """The service refused a request or a job failed; the message is one line."""


class Client:
    """A blocking client of one service.

    Args:
        url: address of the gateway.
        key: API key, if the service asks for one.
        transport: another way to the service than the network.
    """

    def __init__(
        self, url: str, key: str | None = None, transport: httpx.BaseTransport | None = None
    ) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=90.0, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def profile(
        self,
        request: dict[str, Any],
        *,
        on_job: Callable[[Job], None],
        check: Callable[[], None],
    ) -> str:
        """Ask for a profile and wait for it.

        Args:
            request: body of POST /v1/profiles.
            on_job: called with every state of the job that is seen.
            check: called between polls; raises to give up.

        Returns:
            The profile's id.

        Raises:
            Refused: the request was refused, or the job failed or was cancelled.
        """
        answer = self._checked(self._http.post("/v1/profiles", json=request))
        if answer.status_code == httpx.codes.OK:
            return str(answer.json()["id"])
        address = answer.headers["Location"]
        while True:
            job = Job.model_validate_json(self._checked(self._http.get(address)).content)
            on_job(job)
            if job.profile is not None:
                return job.profile.rpartition("/")[2]
            if job.failure is not None:
                raise Refused(f"{job.failure.code}: {job.failure.detail}")
            if job.state == "cancelled":
                raise Refused("the job was cancelled")
            check()
            time.sleep(_POLL_SECONDS)

    def text(self, path: str) -> str:
        """Body of a GET."""
        return self._checked(self._http.get(path)).text

    def post(self, path: str, body: dict[str, Any]) -> str:
        """Body of the answer to a POST."""
        return self._checked(self._http.post(path, json=body)).text

    @staticmethod
    def _checked(answer: httpx.Response) -> httpx.Response:
        if answer.is_success:
            return answer
        problem = answer.json() if "json" in answer.headers.get("content-type", "") else {}
        fields = "; ".join(f"{e['field']}: {e['message']}" for e in problem.get("errors", []))
        raise Refused(
            f"{problem.get('code', answer.status_code)}: "
            f"{fields or problem.get('detail', answer.reason_phrase)}"
        )
