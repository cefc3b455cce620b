"""What the command line needs of HTTP: ask, wait for the job, read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from lacuna.contract.jobs import Job

_POLL_SECONDS = 0.3
_LONGEST_PAUSE = 30.0
_PATIENCE_SECONDS = 60.0
"""For how long a wait bears a service that is away: it may be starting again."""
_PASSING = {429, 502, 503, 504}
Answer = TypeVar("Answer", bound=BaseModel)


class _Identified(BaseModel):
    id: str


class _Fault(BaseModel):
    field: str
    message: str


class _Problem(BaseModel):
    """What is read of a problem document."""

    code: str = ""
    detail: str = ""
    errors: list[_Fault] = []


class Refused(RuntimeError):
    """The service refused a request or a job failed; the message is one line.

    Args:
        code: of the problem, or the HTTP status of what was none.
        detail: one sentence.
        faults: (field, message) pairs, where fields are at fault.
    """

    def __init__(self, code: str, detail: str, faults: Sequence[tuple[str, str]] = ()) -> None:
        fields = "; ".join(f"{field}: {message}" for field, message in faults)
        super().__init__(f"{code}: {fields or detail}")
        self.code, self.detail, self.faults = code, detail, tuple(faults)


class Unfamiliar(RuntimeError):
    """What answers is no Lacuna service, or one of another version; the message is one line."""


class Client:
    """A blocking client of one service.

    Args:
        url: address of the gateway.
        key: API key, if the service asks for one.
        transport: another way to the service than the network.
        proxies: whether the environment's proxies are used.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        transport: httpx.BaseTransport | None = None,
        *,
        proxies: bool = True,
    ) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(
            base_url=url, headers=headers, timeout=90.0, transport=transport, trust_env=proxies
        )

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
        """Ask for a profile and wait for it; see `submit` and `wait`."""
        asked = self.submit(request)
        return asked if isinstance(asked, str) else self.wait(asked.id, on_job=on_job, check=check)

    def submit(self, request: dict[str, Any]) -> Job | str:
        """Ask for a profile.

        Args:
            request: body of POST /v1/profiles.

        Returns:
            The job, or the profile's id when it is known already.

        Raises:
            Refused: the request was refused.
        """
        answer = self._checked(self._http.post("/v1/profiles", json=request))
        if answer.status_code == httpx.codes.OK:
            return _parsed(_Identified, answer).id
        return _parsed(Job, answer)

    def wait(self, job_id: str, *, on_job: Callable[[Job], None], check: Callable[[], None]) -> str:
        """Follow a job to its end. A service that is away for a moment is waited for.

        Args:
            job_id: of `submit`.
            on_job: called with every state of the job that is seen.
            check: called between polls; raises to give up.

        Returns:
            The profile's id.

        Raises:
            Refused: the job failed or was cancelled.
        """
        while True:
            job = self._poll(job_id, check)
            on_job(job)
            if job.profile is not None:
                return job.profile.rpartition("/")[2]
            if job.failure is not None:
                raise Refused(job.failure.code, job.failure.detail)
            if job.state == "cancelled":
                raise Refused("cancelled", "the job was cancelled")
            check()
            time.sleep(_POLL_SECONDS)

    def cancel(self, job_id: str) -> Job:
        """Withdraw from a job; its state after that."""
        return _parsed(Job, self._checked(self._http.delete(f"/v1/jobs/{job_id}")))

    def read(
        self, model: type[Answer], path: str, query: Mapping[str, str | int] | None = None
    ) -> Answer:
        """A GET's answer as what it should be."""
        return _parsed(model, self._checked(self._http.get(path, params=query)))

    def text(self, path: str) -> str:
        """Body of a GET."""
        return self._checked(self._http.get(path)).text

    def post(self, model: type[Answer], path: str, body: dict[str, Any]) -> Answer:
        """A POST's answer as what it should be."""
        return _parsed(model, self._checked(self._http.post(path, json=body)))

    def _poll(self, job_id: str, check: Callable[[], None]) -> Job:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            pause = _POLL_SECONDS
            try:
                answer = self._http.get(f"/v1/jobs/{job_id}")
            except httpx.TransportError:
                if time.monotonic() >= deadline:
                    raise
            else:
                if answer.status_code not in _PASSING or time.monotonic() >= deadline:
                    return _parsed(Job, self._checked(answer))
                pause = _retry_after(answer)
            check()
            time.sleep(pause)

    @staticmethod
    def _checked(answer: httpx.Response) -> httpx.Response:
        if answer.is_success:
            return answer
        try:
            problem = _Problem.model_validate_json(answer.content)
        except ValidationError:  # of a proxy, say
            problem = _Problem()
        raise Refused(
            problem.code or str(answer.status_code),
            problem.detail or answer.reason_phrase,
            [(fault.field, fault.message) for fault in problem.errors],
        )


def _parsed(model: type[Answer], answer: httpx.Response) -> Answer:
    try:
        return model.model_validate_json(answer.content)
    except ValidationError as error:
        raise Unfamiliar(f"{answer.url} answers nothing that this version understands") from error


def _retry_after(answer: httpx.Response) -> float:
    value = answer.headers.get("Retry-After", "")
    seconds = float(value) if value.isdecimal() else _POLL_SECONDS
    return min(max(seconds, _POLL_SECONDS), _LONGEST_PAUSE)
