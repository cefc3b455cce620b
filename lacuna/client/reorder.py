"""What the reorderers of all libraries share: texts and scores in, an order out.

A reorderer stands in the path of every question, so by default it never raises and takes at most a
second: it gives the order of a fallback, else the order that it was given, and counts why.
"""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import time
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, Self, get_args

from pydantic import ValidationError
from pydantic_core import to_json

from lacuna.client.clients import AsyncClient
from lacuna.client.errors import Refused, ServiceAway
from lacuna.client.flows import within
from lacuna.client.offline import OfflinePlacer, curve_of, parse_request, place_along
from lacuna.client.spans import OrderSpan, order_span
from lacuna.contract.base import plain
from lacuna.contract.placements import Chunk, PlacementRequest, PlacementResponse

__all__ = ["Placer", "Reorderer", "check_options", "estimate_tokens", "relevances"]

_BYTES_PER_TOKEN = 4
_BUDGET = ("max_tokens", "max_chunks", "prefix_tokens", "suffix_tokens", "separator_tokens")
_MEANING = ("relevance_scale", "calibration")
"""Fields that say how much fits, and what scores mean."""
_BEST_FIRST = "the given order counts as best first"
OnError = Literal["keep", "raise"]


class Placer(Protocol):
    """What places chunks: a `Client`, an `AsyncClient`, a `CachedPlacer` or an `OfflinePlacer`."""

    def place(
        self, chunks: Iterable[Chunk | Mapping[str, Any]], **options: Any
    ) -> PlacementResponse | Awaitable[PlacementResponse]:
        """The best order of the chunks."""


class Reorderer:
    """Orders texts by relevance along a model's curve. It may be deep-copied and shared by threads.

    Args:
        placer: a `Client`, an `AsyncClient` (then only `aorder` works), a `CachedPlacer` or an
            `OfflinePlacer`.
        count_tokens: of one text. Without it lengths are estimated from bytes, which is enough to
            order chunks but not to keep a budget: `max_tokens` needs the function.
        on_error: `keep` gives the order of `fallback`, else the given one, with a `RuntimeWarning`,
            whatever goes wrong: no service, no profile, a key that changed, the page of a proxy, a
            missing score. `max_chunks` and `max_tokens` hold all the same: the least relevant
            texts are left out. `raise` raises.
        timeout: seconds for one order in all, retries included.
        fallback: places when `placer` fails, as an `OfflinePlacer` can.
        options: `profile_id`, `model` or `density`, and other fields of POST /v1/placements.

    After three failures in a row the placer is left alone for 30 seconds.

    Attributes:
        counts: how often an order was `placed`, came from the `fallback`, or was `kept` after an
            error; of these, by the reason: the error's code, `timeout` or `breaker_open`; and how
            often no text had a score (`unscored`), so that the given order counted as best first.

    Raises:
        Refused: when it is made: `placer` or `fallback` cannot place, an option that the API does
            not know, or `max_tokens` without `count_tokens`. `order` with `on_error="raise"`: as
            the placer raises it.
        ServiceAway: `order` with `on_error="raise"`: no answer in time, or it is left alone.
    """

    def __init__(
        self,
        placer: Placer,
        *,
        count_tokens: Callable[[str], int] | None = None,
        on_error: OnError = "keep",
        timeout: float = 1.0,
        fallback: Placer | None = None,
        **options: Any,
    ) -> None:
        _check_placer("placer", placer)
        if fallback is not None:
            _check_placer("fallback", fallback)
        check_options(options, on_error, counted=count_tokens is not None)
        self._placer = placer
        self._count = count_tokens or estimate_tokens
        self.on_error: OnError = on_error
        self._timeout, self._fallback = timeout, fallback
        self._options = options
        self._breaker = Breaker()
        self._warned = False
        self.counts: Counter[str] = Counter()

    def warn_unscored(self, message: str) -> None:
        """Say once that the given order counts as best first, and why."""
        if not self._warned:
            self._warned = True
            warnings.warn(f"{message}: {_BEST_FIRST}", RuntimeWarning, stacklevel=4)

    def count(self, text: str) -> int:
        """Tokens of a text, counted or estimated."""
        return int(self._count(text))

    def order(
        self, texts: Sequence[str], scores: Sequence[float | None], **options: Any
    ) -> list[int]:
        """Indices of the texts in their new order; dropped ones are missing.

        Args:
            scores: one for each text, or None for all of them: see `relevances`.
            options: fields of POST /v1/placements, over those of the constructor.
        """
        self._see(scores)
        with order_span(len(texts)) as span:
            try:
                if isinstance(self._placer, AsyncClient):
                    raise Refused("an AsyncClient serves async calls only: give a Client")
                chunks, options = self._request(texts, scores, options)
                if len(chunks) < 2 and not _has_budget(options):
                    return list(range(len(texts)))
                self._may_try()
                placed = self._within(chunks, options)
            except Exception as error:
                return self._failed(error, texts, scores, options, span)
            return self._placed(placed, span)

    async def aorder(
        self, texts: Sequence[str], scores: Sequence[float | None], **options: Any
    ) -> list[int]:
        """`order` without blocking: awaits an `AsyncClient`, runs others in a thread."""
        if not isinstance(self._placer, AsyncClient):
            return await asyncio.to_thread(self.order, texts, scores, **options)
        self._see(scores)
        with order_span(len(texts)) as span:
            try:
                chunks, options = self._request(texts, scores, options)
                if len(chunks) < 2 and not _has_budget(options):
                    return list(range(len(texts)))
                self._may_try()
                placed = await self._awaited(self._placer, chunks, options)
            except Exception as error:
                return await asyncio.to_thread(self._failed, error, texts, scores, options, span)
            return self._placed(placed, span)

    def _see(self, scores: Sequence[float | None]) -> None:
        """Count and tell where nothing has a score: a reader must know what the order rests on."""
        if len(scores) > 1 and all(score is None for score in scores):
            self.counts["unscored"] += 1
            self.warn_unscored("no document has a score")

    def _request(
        self, texts: Sequence[str], scores: Sequence[float | None], options: Mapping[str, Any]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Chunks, named by their index, and the other fields of POST /v1/placements."""
        found = relevances(scores, len(texts))
        chunks = [
            {"id": str(i), "tokens": self.count(text), "relevance": relevance}
            for i, (text, relevance) in enumerate(zip(texts, found, strict=True))
        ]
        fields = {**self._options, **options}
        if all(score is None for score in scores):
            check_options(fields, self.on_error, counted=True)
            # Ranks, whatever the caller's own scores mean when there are some.
            fields["relevance_scale"] = "rank"
            fields.pop("calibration", None)
        return chunks, fields

    def _may_try(self) -> None:
        if not self._breaker.may_try():
            raise _BreakerOpenError

    def _within(
        self, chunks: list[dict[str, Any]], options: Mapping[str, Any]
    ) -> PlacementResponse:
        """The placer's answer, or _TimedOutError.

        In a thread of its own unless there is nothing to wait for: looking up a name, connecting
        and reading each have a limit of their own in httpx, and none is for all of them together.
        """
        if isinstance(self._placer, OfflinePlacer):
            return self._placer.place(chunks, **options)
        answers: queue.SimpleQueue[PlacementResponse | BaseException] = queue.SimpleQueue()

        def ask() -> None:
            try:
                with within(self._timeout):
                    found = self._placer.place(chunks, **options)
                assert isinstance(found, PlacementResponse)
                answers.put(found)
            except BaseException as error:
                answers.put(error)

        threading.Thread(target=ask, daemon=True, name="lacuna-reorder").start()
        try:
            answer = answers.get(timeout=self._timeout)
        except queue.Empty:
            answer = _TimedOutError(f"no answer within {self._timeout:g} s")
        if isinstance(answer, BaseException):
            self._note(answer)
            raise answer
        return answer

    async def _awaited(
        self, placer: AsyncClient, chunks: list[dict[str, Any]], options: Mapping[str, Any]
    ) -> PlacementResponse:
        """The placer's answer, or _TimedOutError."""
        try:
            with within(self._timeout):
                return await asyncio.wait_for(placer.place(chunks, **options), self._timeout)
        except TimeoutError:
            self._breaker.failed()
            raise _TimedOutError(f"no answer within {self._timeout:g} s") from None
        except Exception as error:
            self._note(error)
            raise

    def _note(self, error: BaseException) -> None:
        """Tell the breaker, unless the request itself is at fault: the next one may be fine."""
        if not (isinstance(error, Refused) and error.code == "invalid_request"):
            self._breaker.failed()

    def _placed(self, placed: PlacementResponse, span: OrderSpan) -> list[int]:
        self._breaker.succeeded()
        span.placed(placed)
        self.counts["placed"] += 1
        return [int(name) for name in placed.order]

    def _failed(
        self,
        error: Exception,
        texts: Sequence[str],
        scores: Sequence[float | None],
        options: Mapping[str, Any],
        span: OrderSpan,
    ) -> list[int]:
        """The order after an error, which is counted."""
        span.failed(_code(error))
        if self.on_error == "raise":
            if isinstance(error, _BreakerOpenError | _TimedOutError):
                raise ServiceAway(_reason(error)) from error
            raise error
        self.counts[_code(error)] += 1
        if self._fallback is not None:
            try:
                chunks, fields = self._request(texts, scores, options)
                placed = self._fallback.place(chunks, **_without_curve(fields))
                assert isinstance(placed, PlacementResponse)
                self.counts["fallback"] += 1
                span.placed(placed, "fallback")
                return [int(name) for name in placed.order]
            except Exception as second:
                error = second
        self.counts["kept"] += 1
        span.kept()
        warnings.warn(
            f"Lacuna keeps the given order: {_reason(error)}", RuntimeWarning, stacklevel=3
        )
        return self._kept(texts, scores, options)

    def _kept(
        self, texts: Sequence[str], scores: Sequence[float | None], options: Mapping[str, Any]
    ) -> list[int]:
        """The given order, without what the budget has no room for: the least relevant."""
        everything = list(range(len(texts)))
        fields = {**self._options, **options}
        known = {name: plain(fields.get(name)) for name in _BUDGET}
        budget = {name: value for name, value in known.items() if type(value) is int}
        if not _has_budget(budget):
            return everything
        try:
            chunks, asked = self._request(texts, scores, options)
            meaning = {name: asked[name] for name in _MEANING if name in asked}
            # Along a flat curve no order is better than another: only the budget decides.
            request = parse_request(chunks, {**budget, **meaning, "density": [1.0]})
            return sorted(int(name) for name in place_along(request, curve_of(request)).order)
        except Exception:
            # Without usable scores the given order counts as best first.
            return everything[: budget.get("max_chunks")]


class _BreakerOpenError(Exception):
    """The placer failed several times in a row and is left alone for a while."""


class _TimedOutError(Exception):
    """The placer did not answer in time."""


def check_options(options: Mapping[str, Any], on_error: OnError, *, counted: bool) -> None:
    """Options that no request can have are found when a reorderer is made.

    What depends on several fields is left to the placer: a call may add fields.

    Args:
        options: fields of POST /v1/placements.
        on_error: `keep` or `raise`.
        counted: whether lengths are counted, not estimated.

    Raises:
        Refused: names the field.
    """
    if on_error not in get_args(OnError):
        raise Refused(f"on_error is 'keep' or 'raise', not {on_error!r:.80}", field="on_error")
    given = {name: plain(value) for name, value in options.items() if value is not None}
    if "max_tokens" in given and not counted:
        raise Refused(
            "max_tokens needs count_tokens: estimated lengths may exceed it", field="max_tokens"
        )
    if "chunks" in given:
        raise Refused("chunks come from the texts", field="chunks")
    chunk = {"id": "0", "tokens": 1, "relevance": 0.0}
    try:
        PlacementRequest.model_validate_json(to_json({**given, "chunks": [chunk]}))
    except ValidationError as error:
        faults = [one for one in error.errors(include_url=False) if one["loc"]]
        if faults:
            where = ".".join(map(str, faults[0]["loc"]))
            raise Refused(f"{where}: {faults[0]['msg']}", field=where) from error


def _check_placer(name: str, placer: object) -> None:
    """Raise Refused unless it can place: a path or an address is found before the first order."""
    if isinstance(placer, type) or not callable(getattr(placer, "place", None)):
        what = placer.__name__ if isinstance(placer, type) else type(placer).__name__
        given = f"the class {what}" if isinstance(placer, type) else f"of type {what}"
        raise Refused(
            f"{name} is {given}: give an object that places, as Client(url), "
            "CachedPlacer(client, model=..) or OfflinePlacer(path)",
            field=name,
        )


def _code(error: Exception) -> str:
    if isinstance(error, _BreakerOpenError):
        return "breaker_open"
    if isinstance(error, _TimedOutError | TimeoutError):
        return "timeout"
    return str(getattr(error, "code", type(error).__name__))


def _reason(error: Exception) -> str:
    if isinstance(error, _BreakerOpenError):
        return "it failed several times in a row and is left alone for a while"
    return str(error) or type(error).__name__


def _without_curve(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Options for a fallback, which has a profile of its own."""
    origin = ("profile_id", "model", "density", "architecture", "allow_theory", "source")
    return {name: value for name, value in fields.items() if name not in origin}


def relevances(scores: Sequence[float | None], count: int) -> list[float]:
    """Scores as they are. Without any, ranks: 1 for the first, as a retriever gives its results.

    Raises:
        Refused: some are missing, or one is not a finite number: guessing would make a chunk
            without a score the best or the worst.
    """
    if len(scores) != count:
        raise Refused(f"{count} documents and {len(scores)} scores: give a score or None for each")
    known = [score for score in scores if score is not None]
    if not known:
        return [float(rank + 1) for rank in range(count)]
    if len(known) < count:
        missing = [i for i, score in enumerate(scores) if score is None]
        raise Refused(f"documents {missing} have no score, others have: score all or none")
    try:
        result = [float(score) for score in known]
    except (TypeError, ValueError, OverflowError) as error:
        raise Refused(f"a score is not a number: {error}") from error
    if not all(map(math.isfinite, result)):
        raise Refused("a score is NaN or infinite")
    return result


def estimate_tokens(text: str) -> int:
    """About four bytes of UTF-8 a token: also for text without spaces or with lone surrogates."""
    size = len(text.encode(errors="surrogatepass"))
    return max(1, math.ceil(size / _BYTES_PER_TOKEN))


def _has_budget(options: Mapping[str, Any]) -> bool:
    """Whether even a single text may be dropped."""
    return options.get("max_tokens") is not None or options.get("max_chunks") is not None


class Breaker:
    """A circuit breaker: after some failures in a row, stop asking for a while.

    Threads may share it. A copy starts from zero.

    Args:
        failures: in a row after which it opens.
        seconds: for which it stays open. Then one call may try; if that fails, it opens again.
        clock: seconds that only go forward.
    """

    def __init__(
        self,
        failures: int = 3,
        seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit, self._seconds, self._clock = failures, seconds, clock
        self._lock = threading.Lock()
        self._failures = 0
        self._opened = -seconds

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)(self._limit, self._seconds, self._clock)

    def __reduce__(self) -> tuple[type[Self], tuple[int, float]]:
        return type(self), (self._limit, self._seconds)

    def may_try(self) -> bool:
        """Whether to ask now. While open, one call at a time after each `seconds`."""
        with self._lock:
            if self._failures < self._limit:
                return True
            now = self._clock()
            if now - self._opened < self._seconds:
                return False
            self._opened = now
            return True

    def succeeded(self) -> None:
        """Close it."""
        with self._lock:
            self._failures = 0

    def failed(self) -> None:
        """Count one failure."""
        with self._lock:
            self._failures += 1
            if self._failures >= self._limit:
                self._opened = self._clock()
