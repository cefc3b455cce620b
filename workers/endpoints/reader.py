"""Reads recall questions from a served model: the endpoint's side of `workers.recall.reader`.

Calls run concurrently in an event loop of the reader's own. A measurement that is killed and
started again over the same ledger asks only what has no answer yet.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

from pydantic import SecretStr

from lacuna.contract.endpoints import Form, Rung
from lacuna.contract.errors import (
    BudgetSpent,
    EndpointChanged,
    EndpointError,
    EndpointIncapable,
    EndpointTruncates,
    EndpointUnreachable,
)
from service.endpoints.table import Endpoint
from workers.endpoints.budget import Budget
from workers.endpoints.canary import Canary, take
from workers.endpoints.client import EndpointClient
from workers.endpoints.counting import BASE, WORDS, usage_of_prompt
from workers.endpoints.dialects import Session, Way
from workers.endpoints.ladder import find, forget
from workers.endpoints.ledger import Ledger
from workers.recall.reader import Check, OnProgress, Question, Reading, Usage

T = TypeVar("T")
CHECK_SECONDS = 0.2
IN_A_ROW = 5
"""So many questions without an answer, one after the other: the endpoint is gone."""


class EndpointReader:
    """Answers questions about one served model; close it, or use it as a context manager.

    Args:
        endpoint: from the settings.
        key: as `Endpoint.key` gave it.
        budget: what all of it may cost, finding the ladder included.
        ledger: where answers are kept.
        measurement: digest of what is measured; answers are found again under it.
        rung: asked for; None: chosen by `Ladder.choose`.
        one_token: whether every answer will be one token.
        longest: tokens of the longest prompt to come.
        strict: whether `read` raises BudgetSpent once the budget is spent, instead of leaving out
            what was not read.
        check: called several times a second whenever the reader waits for the server.
        client: made by the caller, with a pace or a transport of its own.

    Raises:
        As `ladder.find` and `Ladder.choose` do.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        key: SecretStr | None,
        *,
        budget: Budget,
        ledger: Ledger,
        measurement: str,
        rung: Rung | None = None,
        one_token: bool = True,
        longest: int = 0,
        strict: bool = False,
        check: Check | None = None,
        client: EndpointClient | None = None,
    ) -> None:
        self._strict, self._check = strict, check
        self.endpoint, self.budget = endpoint, budget
        self.exhausted: BudgetSpent | None = None
        """Set once the budget is spent: the next `read` raises it."""
        self._usage = Usage()
        self._client = client or EndpointClient(endpoint, key, budget=budget, ledger=ledger)
        self._client.scope = self._measurement = measurement
        self._runner = asyncio.Runner()
        try:
            self.ladder, self._session, self.canary = self._run(find(self._client, longest=longest))
            self.way: Way = self.ladder.choose(rung=rung, one_token=one_token)
            self._preamble = self._run(_preamble(self._session))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(_watched(call, self._check))

    def close(self) -> None:
        """Close connections and the event loop."""
        self._runner.run(self._client.aclose())
        self._runner.close()

    @property
    def form(self) -> Form:
        """In which form prompts must come."""
        return self.ladder.form

    @property
    def rung(self) -> Rung:
        """How answers are read."""
        return self.way.rung

    @property
    def preamble(self) -> int:
        """Tokens before the first word of a plain prompt; 0 in a chat template: unknown."""
        return self._preamble

    @property
    def usage(self) -> Usage:
        """What was spent so far, answers from the ledger included in the tokens."""
        spent, usage = self.budget.spent, self._usage
        usage.calls, usage.retries = spent.calls + spent.replayed, spent.retries
        usage.prompt_tokens, usage.cached_tokens = spent.prompt_tokens, spent.cached_tokens
        usage.counting_calls, usage.seconds = self._session.counter.calls, spent.seconds
        return usage

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text alone, without special tokens.

        Raises:
            EndpointTruncates: the server does not say.
            BudgetSpent: counting by `usage` costs calls.
        """

        once = list(dict.fromkeys(texts))  # two calls at once for one text would both be paid

        async def counted() -> list[int]:
            return list(await asyncio.gather(*map(self._session.counter.count, once)))

        found = dict(zip(once, self._run(counted()), strict=True))
        return [found[text] for text in texts]

    def read(
        self,
        questions: Sequence[Question],
        *,
        on_progress: OnProgress | None = None,
        check: Check | None = None,
    ) -> list[Reading | None]:
        """Answer all questions, in their order; None where one could not be answered.

        A question that stands there twice is asked twice: its second answer comes from the server,
        or from the ledger if an earlier start asked it twice. When the budget is spent, the rest
        stays None and `exhausted` is set.

        Args:
            questions: in the reader's `form`.
            on_progress: told how many are done.
            check: called several times a second.

        Raises:
            BudgetSpent: it was spent before this call; with `strict` during it as well.
            EndpointTruncates: the server cut a prompt.
            EndpointIncapable: no question could be answered.
            EndpointUnreachable: several questions in a row got no answer.
            EndpointRefused, EndpointChanged, TooLong: as calls do.
        """
        if self.exhausted is not None:
            raise self.exhausted
        run = _Run(self._session, self.way, questions, on_progress)
        watch = check or self._check
        try:
            found = self._runner.run(run.all(self.endpoint.concurrency, watch))
        except (EndpointIncapable, EndpointTruncates):
            forget(self._client, self._measurement, answers=True)
            raise
        self.exhausted = run.spent
        if run.spent is not None and self._strict:
            raise run.spent
        return found

    def verify(self) -> Canary:
        """Take the canary again, at the end of a measurement: the next one finds the ladder anew.

        Raises:
            EndpointChanged: another model answers than at the beginning.
        """
        found = self._run(take(self._session))
        forget(self._client, self._measurement)
        if not self.canary.agrees(found):
            raise EndpointChanged(
                f"endpoint {self.endpoint.name!r} answers with another model than at the beginning",
                field="model",
            )
        return found


async def _preamble(session: Session) -> int:
    if session.form != "plain":
        return 0
    text = BASE + WORDS
    used = await usage_of_prompt(session.client, text, chat=False)
    return max(0, used - await session.counter.count(text))


@dataclass
class _Run:
    """One call of `read`: which questions wait, which are answered, and what went wrong."""

    session: Session
    way: Way
    questions: Sequence[Question]
    on_progress: OnProgress | None
    spent: BudgetSpent | None = None
    found: list[Reading | None] = field(init=False)
    repeats: list[int] = field(init=False)
    """How often each question stands before itself."""
    done: int = 0
    in_a_row: int = 0
    last: EndpointError | None = None

    def __post_init__(self) -> None:
        self.found = [None] * len(self.questions)
        asked: Counter[Question] = Counter()
        self.repeats = []
        for question in self.questions:
            self.repeats.append(asked[question])
            asked[question] += 1

    async def all(self, lanes: int, check: Check | None) -> list[Reading | None]:
        """Read with so many calls under way at once."""
        contexts = deque(_contexts(self.questions))
        ready: deque[int] = deque()
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(_watch(check))
                readers = [
                    group.create_task(self._lane(contexts, ready)) for _ in range(max(1, lanes))
                ]
                await asyncio.wait(readers)
                watch.cancel()
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None
        nothing = all(reading is None for reading in self.found)
        if nothing and self.spent is None and self.last is not None:
            raise self.last
        return self.found

    async def _lane(self, contexts: deque[deque[int]], ready: deque[int]) -> None:
        """Take one question after the other; the first of a context alone, so that the server's
        prefix cache knows the context when the others follow."""
        while self.spent is None and (ready or contexts):
            others: deque[int] = deque()
            if ready:
                index = ready.popleft()
            else:
                others = contexts.popleft()
                index = others.popleft()
            await self._one(index)
            ready.extend(others)

    async def _one(self, index: int) -> None:
        try:
            session = replace(self.session, repeat=self.repeats[index])
            self.found[index] = await self.way.read(session, self.questions[index])
            self.in_a_row = 0
        except BudgetSpent as error:
            self.spent = error
            return
        except EndpointIncapable as error:
            self.last = error
        except EndpointUnreachable as error:
            self.last, self.in_a_row = error, self.in_a_row + 1
            if self.in_a_row >= IN_A_ROW:
                raise
        self.done += 1
        if self.on_progress is not None:
            self.on_progress(self.done, len(self.questions))


async def _watched(call: Coroutine[Any, Any, T], check: Check | None) -> T:
    """What a call gives, unless `check` raises meanwhile: then the call is cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(_watch(check))
            work = group.create_task(call)
            await asyncio.wait([work])
            watch.cancel()
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
    return work.result()


async def _watch(check: Check | None) -> None:
    while check is not None:
        check()
        await asyncio.sleep(CHECK_SECONDS)


def _contexts(questions: Sequence[Question]) -> list[deque[int]]:
    """Indices of questions in a row that share the first half of their prompts."""
    found: list[deque[int]] = []
    before = ""
    for index, question in enumerate(questions):
        text = _text(question)
        half = len(text) // 2
        if found and text[:half] == before[:half]:
            found[-1].append(index)
        else:
            found.append(deque([index]))
        before = text
    return found


def _text(question: Question) -> str:
    if isinstance(question.prompt, str):
        return question.prompt
    return "\n".join(message.content for message in question.prompt)
