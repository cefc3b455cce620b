"""The two clients of a service: `Client` blocks, `AsyncClient` has the same calls as coroutines.

What a call asks and how it retries is in `lacuna.client.flows`; here is the input and output.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeVar
from urllib.request import getproxies

import httpx

from lacuna.client import flows
from lacuna.client.answers import Comparison, ExperimentResult, PlacementResponse, Profile
from lacuna.client.chunks import placement_request
from lacuna.client.errors import Refused
from lacuna.client.flows import Flow, Retries, Send
from lacuna.contract.base import Wire, plain
from lacuna.contract.calibrations import Calibration
from lacuna.contract.endpoints import EndpointEstimate
from lacuna.contract.experiment_requests import ExperimentEstimate, ExperimentQuestion
from lacuna.contract.jobs import Job
from lacuna.contract.models import ModelCatalogue
from lacuna.contract.placements import Chunk
from lacuna.contract.profiles import ProfilePage
from lacuna.contract.rollouts import RolloutResponse

T = TypeVar("T")
OnProgress = Callable[[Job], None]
Question = ExperimentQuestion | Mapping[str, Any]
"""A question of an experiment."""
ExportedCurve = Literal["influence", "recall"]
DEFAULT_URL = "http://127.0.0.1:8080"
_SLACK_SECONDS = 15.0
"""How much longer than the service may hold an answer we wait for it."""


class Client:
    """A blocking client; use it as a context manager, or call `close`. Threads may share it.

    Args:
        url: address of the service.
        api_key: if the service asks for one.
        timeout: seconds for one request.
        retries: attempts after the first, on connection errors, 429, 502, 503 and 504.
        longest_wait: a `Retry-After` beyond this many seconds raises at once.
        transport: of httpx, for tests and proxies.

    Raises:
        Refused: `url`, `api_key` or a proxy or certificate that the environment names cannot be
            used. Every method raises it when the service refuses the request, `ServiceAway` when
            the service does not answer after all retries, and `UnexpectedAnswer` when the answer
            is not that of a Lacuna service.
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
        self._retries = Retries(retries, longest_wait)
        self._timeout = timeout
        with _environment_blamed():
            self._http = httpx.Client(**_connection(url, api_key), transport=transport)
        self._made_of = _Arguments(url, api_key, timeout, retries, longest_wait, transport)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Pipelines copy their parts; a copy shares the connections, which threads may do too.
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process makes connections of its own. The pickle holds the key.
        return _remade, (type(self), self._made_of)

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
        on_progress: OnProgress | None = None,
        **options: Any,
    ) -> Profile:
        """Measure a model, or read its profile if it is known.

        Args:
            model: hub id, `local:NAME`, `demo:NAME`, `preset:NAME` or `endpoint:NAME`.
            timeout: seconds to wait; the job goes on afterwards. `math.inf` waits to the end.
            on_progress: called with every state of the job that is seen, about once a second.
            options: other fields of POST /v1/profiles, such as `sequence_length`.

        Raises:
            WaitedTooLong: it carries the job.
            JobFailed: the measurement failed or was cancelled.
        """
        request = {"model": model, **options}
        return self._run(flows.profile(self._retries, request, timeout, on_progress))

    def submit(self, model: str, **options: Any) -> Job | Profile:
        """Ask for a profile without waiting: its job, or the profile if it is known already."""
        return self._run(flows.submit(self._retries, {"model": model, **options}))

    def wait(
        self, job: Job, *, timeout: float = 3600.0, on_progress: OnProgress | None = None
    ) -> Job:
        """The job once it is done. A service that is away for less than a minute is waited for.

        Raises:
            WaitedTooLong, JobFailed: as `profile` does.
        """
        return self._run(flows.wait_for(self._retries, job, timeout, on_progress))

    def job(self, job_id: str) -> Job:
        """A job as it stands."""
        return self._run(flows.read_job(self._retries, job_id))

    def cancel(self, job_id: str) -> Job:
        """Withdraw from a job; it stops when nobody else wants it."""
        return self._run(flows.cancel_job(self._retries, job_id))

    def get_profile(self, profile_id: str) -> Profile:
        """A profile by id."""
        return self._run(flows.read_profile(self._retries, profile_id))

    def export(
        self, profile_id: str, form: str = "json", *, curve: ExportedCurve | None = None
    ) -> bytes:
        """A profile as the service sends it, to be saved.

        Args:
            profile_id: of a stored profile.
            form: `json`, `csv`, `svg` or `png`.
            curve: what CSV, SVG and PNG show; None: influence where it was measured, else recall.
        """
        return self._run(flows.export(self._retries, profile_id, form, curve))

    def estimate(self, model: str, **options: Any) -> EndpointEstimate:
        """What measuring an endpoint would take, without asking anything of it.

        Args:
            model: `endpoint:NAME`.
            options: other fields of POST /v1/profiles.
        """
        return self._run(flows.estimate(self._retries, {"model": model, **options}))

    def profiles(self, model: str | None = None, *, limit: int = 20) -> ProfilePage:
        """Summaries of at most `limit` profiles, newest first. `next` is None if these are all."""
        return self._run(flows.list_profiles(self._retries, model, limit))

    def place(
        self, chunks: Iterable[Chunk | Mapping[str, Any]], **options: Any
    ) -> PlacementResponse:
        """The order of chunks in which the model listens most to what matters.

        Args:
            chunks: in the caller's order of preference, which settles ties.
            options: one of `profile_id`, `model`, `density`, `architecture`, and other fields of
                POST /v1/placements.
        """
        request = placement_request(chunks, options)
        return self._run(flows.place_chunks(self._retries, request))

    def calibrate(
        self,
        scores: Sequence[float],
        labels: Sequence[bool],
        questions: Sequence[str] | None = None,
        **options: Any,
    ) -> Calibration:
        """Fit a calibration: a map from the retriever's scores to probabilities.

        Args:
            scores: one a chunk.
            labels: whether the chunk held the answer; at least 20 of each kind.
            questions: which question each chunk was retrieved for.
            options: other fields of POST /v1/calibrations, such as `relevance_scale`.

        Returns:
            Pass it to `place` as `calibration`.
        """
        request = _calibration_request(scores, labels, questions, options)
        return self._run(flows.calibrate(self._retries, request))

    def experiment(
        self,
        model: str,
        questions: Iterable[Question],
        *,
        timeout: float = 86_400.0,
        on_progress: OnProgress | None = None,
        **options: Any,
    ) -> ExperimentResult:
        """Compare orders of chunks on questions of your own.

        Args:
            model: hub id, `local:NAME`, `demo:NAME` or `endpoint:NAME`.
            questions: each with `question`, `chunks` (`id`, `text`, `score`) and `answers`.
            timeout: seconds to wait; the job goes on afterwards. `math.inf` waits to the end.
            on_progress: called with every state of the job that is seen, about once a second.
            options: other fields of POST /v1/experiments, such as `orders` or `template`.

        Raises:
            WaitedTooLong, JobFailed: as `profile` does.
        """
        request = _experiment_request(model, questions, options)
        return self._run(flows.experiment(self._retries, request, timeout, on_progress))

    def submit_experiment(
        self, model: str, questions: Iterable[Question], **options: Any
    ) -> Job | ExperimentResult:
        """Ask for an experiment without waiting: its job, or the result if it is known already.
        `wait` waits for the job, `get_experiment` reads the result under the job's id."""
        request = _experiment_request(model, questions, options)
        return self._run(flows.submit_experiment(self._retries, request))

    def estimate_experiment(
        self, model: str, questions: Iterable[Question], **options: Any
    ) -> ExperimentEstimate:
        """What an experiment takes at most; nothing is run."""
        request = _experiment_request(model, questions, options)
        return self._run(flows.estimate_experiment(self._retries, request))

    def get_experiment(self, experiment_id: str) -> ExperimentResult:
        """What an experiment found, by the id of its job."""
        return self._run(flows.read_experiment(self._retries, experiment_id))

    def experiment_rows(self, experiment_id: str) -> bytes:
        """Every reading of an experiment, as CSV."""
        return self._run(flows.experiment_rows(self._retries, experiment_id))

    def forget_experiment(self, experiment_id: str) -> None:
        """Drop an experiment with its result; one that runs is withdrawn."""
        self._run(flows.forget_experiment(self._retries, experiment_id))

    def rollout(self, **request: Any) -> RolloutResponse:
        """Theory alone; the fields of POST /v1/rollouts."""
        return self._run(flows.rollout(self._retries, request))

    def compare(self, a: str, b: str, **options: str | int) -> Comparison:
        """How profile `b` differs from profile `a`, by id: in pairs where both read the same
        documents. `verdict` says whether it is more than chance, `summary` says it in words.

        Args:
            a: id of a profile.
            b: id of another.
            options: `source` and `bins`, as in GET /v1/comparisons.
        """
        return self._run(flows.compare(self._retries, {"a": a, "b": b, **options}))

    def models(self) -> ModelCatalogue:
        """What the workers offer."""
        return self._run(flows.models(self._retries))

    def _run(self, flow: Flow[T]) -> T:
        response: httpx.Response | None = None
        try:
            step = next(flow)
            while True:
                if isinstance(step, Send):
                    try:
                        response = self._http.request(**_request(step, self._timeout))
                    except httpx.RequestError as error:
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
        self._retries = Retries(retries, longest_wait)
        self._timeout = timeout
        with _environment_blamed():
            self._http = httpx.AsyncClient(**_connection(url, api_key), transport=transport)
        self._made_of = _Arguments(url, api_key, timeout, retries, longest_wait, transport)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self), self._made_of)

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
        on_progress: OnProgress | None = None,
        **options: Any,
    ) -> Profile:
        """See `Client.profile`."""
        request = {"model": model, **options}
        return await self._run(flows.profile(self._retries, request, timeout, on_progress))

    async def submit(self, model: str, **options: Any) -> Job | Profile:
        """See `Client.submit`."""
        return await self._run(flows.submit(self._retries, {"model": model, **options}))

    async def wait(
        self, job: Job, *, timeout: float = 3600.0, on_progress: OnProgress | None = None
    ) -> Job:
        """See `Client.wait`."""
        return await self._run(flows.wait_for(self._retries, job, timeout, on_progress))

    async def job(self, job_id: str) -> Job:
        """See `Client.job`."""
        return await self._run(flows.read_job(self._retries, job_id))

    async def cancel(self, job_id: str) -> Job:
        """See `Client.cancel`."""
        return await self._run(flows.cancel_job(self._retries, job_id))

    async def get_profile(self, profile_id: str) -> Profile:
        """See `Client.get_profile`."""
        return await self._run(flows.read_profile(self._retries, profile_id))

    async def export(
        self, profile_id: str, form: str = "json", *, curve: ExportedCurve | None = None
    ) -> bytes:
        """See `Client.export`."""
        return await self._run(flows.export(self._retries, profile_id, form, curve))

    async def estimate(self, model: str, **options: Any) -> EndpointEstimate:
        """See `Client.estimate`."""
        return await self._run(flows.estimate(self._retries, {"model": model, **options}))

    async def profiles(self, model: str | None = None, *, limit: int = 20) -> ProfilePage:
        """See `Client.profiles`."""
        return await self._run(flows.list_profiles(self._retries, model, limit))

    async def place(
        self, chunks: Iterable[Chunk | Mapping[str, Any]], **options: Any
    ) -> PlacementResponse:
        """See `Client.place`."""
        request = placement_request(chunks, options)
        return await self._run(flows.place_chunks(self._retries, request))

    async def calibrate(
        self,
        scores: Sequence[float],
        labels: Sequence[bool],
        questions: Sequence[str] | None = None,
        **options: Any,
    ) -> Calibration:
        """See `Client.calibrate`."""
        request = _calibration_request(scores, labels, questions, options)
        return await self._run(flows.calibrate(self._retries, request))

    async def experiment(
        self,
        model: str,
        questions: Iterable[Question],
        *,
        timeout: float = 86_400.0,
        on_progress: OnProgress | None = None,
        **options: Any,
    ) -> ExperimentResult:
        """See `Client.experiment`."""
        request = _experiment_request(model, questions, options)
        return await self._run(flows.experiment(self._retries, request, timeout, on_progress))

    async def submit_experiment(
        self, model: str, questions: Iterable[Question], **options: Any
    ) -> Job | ExperimentResult:
        """See `Client.submit_experiment`."""
        request = _experiment_request(model, questions, options)
        return await self._run(flows.submit_experiment(self._retries, request))

    async def estimate_experiment(
        self, model: str, questions: Iterable[Question], **options: Any
    ) -> ExperimentEstimate:
        """See `Client.estimate_experiment`."""
        request = _experiment_request(model, questions, options)
        return await self._run(flows.estimate_experiment(self._retries, request))

    async def get_experiment(self, experiment_id: str) -> ExperimentResult:
        """See `Client.get_experiment`."""
        return await self._run(flows.read_experiment(self._retries, experiment_id))

    async def experiment_rows(self, experiment_id: str) -> bytes:
        """See `Client.experiment_rows`."""
        return await self._run(flows.experiment_rows(self._retries, experiment_id))

    async def forget_experiment(self, experiment_id: str) -> None:
        """See `Client.forget_experiment`."""
        await self._run(flows.forget_experiment(self._retries, experiment_id))

    async def rollout(self, **request: Any) -> RolloutResponse:
        """See `Client.rollout`."""
        return await self._run(flows.rollout(self._retries, request))

    async def compare(self, a: str, b: str, **options: str | int) -> Comparison:
        """See `Client.compare`."""
        return await self._run(flows.compare(self._retries, {"a": a, "b": b, **options}))

    async def models(self) -> ModelCatalogue:
        """See `Client.models`."""
        return await self._run(flows.models(self._retries))

    async def _run(self, flow: Flow[T]) -> T:
        response: httpx.Response | None = None
        try:
            step = next(flow)
            while True:
                if isinstance(step, Send):
                    try:
                        response = await self._http.request(**_request(step, self._timeout))
                    except httpx.RequestError as error:
                        step = flow.throw(error)
                        continue
                else:
                    await asyncio.sleep(step.seconds)
                    response = None
                step = flow.send(response)
        except StopIteration as stop:
            result: T = stop.value
            return result


class _Arguments(NamedTuple):
    """What a client was made of, to make one like it in another process."""

    url: str
    api_key: str | None
    timeout: float
    retries: int
    longest_wait: float
    transport: Any


def _remade(kind: Callable[..., T], made_of: _Arguments) -> T:
    fields = made_of._asdict()
    return kind(fields.pop("url"), **fields)


def _experiment_request(
    model: str, questions: Iterable[Question], options: Mapping[str, Any]
) -> dict[str, Any]:
    return {"model": model, "questions": _plain(list(questions)), **_plain(dict(options))}


def _plain(value: Any) -> Any:
    """Models of the contract as JSON, wherever they stand."""
    if isinstance(value, Wire):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _calibration_request(
    scores: Sequence[float],
    labels: Sequence[bool],
    questions: Sequence[str] | None,
    options: dict[str, Any],
) -> dict[str, Any]:
    asked = {} if questions is None else {"questions": list(questions)}
    return {
        "scores": [float(score) for score in scores],
        "labels": [bool(label) for label in labels],
        **asked,
        **options,
    }


@contextmanager
def _environment_blamed() -> Iterator[None]:
    """What httpx makes of the environment's proxies and certificates, as a refusal.

    Raises:
        Refused: names the variables, without their values, which may hold a password.
    """
    try:
        yield
    except (ImportError, ValueError, httpx.InvalidURL, OSError) as error:
        if isinstance(error, OSError):
            what, reason = "SSL_CERT_FILE or SSL_CERT_DIR", error.strerror or "no certificates"
        elif isinstance(error, httpx.InvalidURL) and "[" in getproxies().get("no", ""):
            what, reason = "NO_PROXY", "write an IPv6 address in it without brackets, as ::1"
        else:
            names = [f"{name.upper()}_PROXY" for name in getproxies()]
            what = " or ".join(names) or "a proxy setting of this machine"
            reason = (
                "a SOCKS proxy needs `pip install httpx[socks]`"
                if isinstance(error, ImportError)
                else "it is not an address of a proxy, or of a host to reach without one"
            )
        raise Refused(f"{what} cannot be used: {reason}") from error


def _connection(url: str, api_key: str | None) -> dict[str, Any]:
    """What both of httpx's clients take; a wrong address or key is found before any request.

    Raises:
        Refused: `field` is `url` or `api_key`.
    """
    address = check_address(url)
    if api_key is None:
        return {"base_url": address}
    # Keys are read from files that end in a newline. A header may not, and its error shows the key.
    api_key = api_key.strip()
    if not (api_key and api_key.isascii() and api_key.isprintable()):
        raise Refused(
            "a key has printable ASCII characters only, and at least one", field="api_key"
        )
    return {"base_url": address, "headers": {"Authorization": f"Bearer {api_key}"}}


def check_address(url: str) -> httpx.URL:
    """The address of a service, without asking it.

    Raises:
        Refused: `url` is not an address.
    """
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise Refused(f"{url!r} is not an address: {error}", field="url") from error
    if address.scheme not in ("http", "https"):
        raise Refused(f"{url!r} does not begin with http:// or https://", field="url")
    if not address.host:
        raise Refused(f"{url!r} names no host", field="url")
    return address


def _request(step: Send, timeout: float) -> dict[str, Any]:
    """What httpx's `request` takes; one that may be held open gets that much longer."""
    return {
        "method": step.method,
        "url": step.path,
        "json": plain(step.body),
        "params": dict(step.query) or None,
        "headers": {"Prefer": f"wait={step.held}"} if step.held else None,
        "timeout": max(timeout, step.held + _SLACK_SECONDS) if step.held else timeout,
    }
