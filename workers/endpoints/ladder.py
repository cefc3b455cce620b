"""What a served model can tell, found by trying; the server's name is never looked at.

The ways of reading (`dialects.WAYS`) are tried one after the other; one counts only if its numbers
pass `checks`. The result says for each other way why it does not count. Finding it takes some
30 short calls, which stand in the ledger like all others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, get_args

from lacuna.contract.base import canonical
from lacuna.contract.endpoints import Form, Rung
from lacuna.contract.errors import (
    EndpointIncapable,
    EndpointTruncates,
    EndpointUnreachable,
    TooLong,
)
from workers.endpoints import canary as canaries
from workers.endpoints.answers import Served
from workers.endpoints.canary import Canary
from workers.endpoints.checks import certain, why_not
from workers.endpoints.client import EndpointClient
from workers.endpoints.counting import BASE, WORDS, Counter, usage_of_prompt
from workers.endpoints.dialects import (
    CONTINUE,
    WAYS,
    Session,
    Way,
    native_text,
    text,
    top_list,
    way_named,
    written,
)
from workers.endpoints.ledger import request_key

LIST_LENGTHS = (100, 20, 5)
"""Tried in turn: llama.cpp lists as many as asked, OpenAI and vLLM 20, TGI 5."""
BEGUN = " one two three four"
"""Words that are one token each, with a space in front or without."""
RUNGS: tuple[Rung, ...] = get_args(Rung)


@dataclass(frozen=True)
class Ladder:
    """The ways that count, best first, and why the others do not."""

    form: Form
    ways: tuple[str, ...]
    refused: dict[str, str]
    """Way to reason."""
    counts_by: str
    """`tokenizer` (a route of the server) or `usage` (paid calls)."""
    served: Served

    def choose(self, *, rung: Rung | None = None, one_token: bool = True) -> Way:
        """The way to read with.

        Args:
            rung: asked for; None: `first_token` where answers are one token, since it tells the
                same as `answer` and lets the server use its prefix cache, else the best.
            one_token: whether every answer is one token.

        Raises:
            EndpointIncapable: the rung is not offered, with the reason for each way.
        """
        order = [rung] if rung is not None else list(RUNGS)
        if rung is None and one_token:
            order = ["first_token", "answer", "text"]
        if rung is None and not one_token:  # a first token says too little of a longer answer
            order = ["answer", "text"]
        for wanted in order:
            for name in self.ways:
                if way_named(name).rung == wanted:
                    return way_named(name)
        asked = f"rung {rung!r}" if rung is not None else "any rung"
        reasons = "; ".join(f"{name}: {why}" for name, why in self.refused.items())
        raise EndpointIncapable(f"the endpoint does not offer {asked} ({reasons})", field="model")

    def why_not_higher(self, way: Way) -> dict[str, str]:
        """The ways above this one's rung, each with why it does not count."""
        above = RUNGS[: RUNGS.index(way.rung)]
        return {n: why for n, why in self.refused.items() if way_named(n).rung in above}


@dataclass(frozen=True)
class _Known:
    """What the ledger keeps of a measurement besides answers.

    Attributes:
        generation: of the served model: another one's answers are left aside.
        ladder: of the ladder's calls: their answers hold until the measurement ends or is refused,
            or another version of the server answers.
        canary: the first of this generation; None: nothing was measured yet.
    """

    generation: int
    ladder: int
    canary: Canary | None

    @classmethod
    def of(cls, client: EndpointClient, measurement: str) -> _Known:
        kept = json.loads(client.ledger.get(_note(measurement)) or b"null")
        if kept is None:
            return cls(0, 0, None)
        canary = None if kept["canary"] is None else Canary.of_dict(kept["canary"])
        return cls(kept["generation"], kept["ladder"], canary)

    def keep(self, client: EndpointClient, measurement: str) -> None:
        fields = {"generation": self.generation, "ladder": self.ladder}
        canary = None if self.canary is None else self.canary.as_dict()
        client.ledger.put(_note(measurement), canonical({**fields, "canary": canary}))


def _note(measurement: str) -> str:
    return request_key(measurement, "", "", None, reader="canary")


def forget(client: EndpointClient, measurement: str, *, answers: bool = False) -> None:
    """Let the next start find the ladder anew: what a server offers may change by then.

    Args:
        client: of the measurement.
        measurement: its name.
        answers: whether the answers are left aside too, since the server refused or cut prompts.
    """
    known = _Known.of(client, measurement)
    generation = known.generation + answers
    replace(known, ladder=known.ladder + 1, generation=generation).keep(client, measurement)


async def find(client: EndpointClient, *, longest: int = 0) -> tuple[Ladder, Session, Canary]:
    """Try everything; the session reads on from there, the canary tells whether the model changed.

    The first canary of a measurement is kept in the ledger. If another model answers when the
    measurement resumes, its earlier answers are left aside; if only another version of the server
    does, they stay, and the ladder is found anew.

    Args:
        client: its scope names the measurement.
        longest: tokens of the longest prompt that will be asked; 0: no such check.

    Raises:
        EndpointIncapable: nothing can be read.
        EndpointTruncates: the server cuts prompts, or does not say how many tokens it reads.
        EndpointUnreachable, EndpointRefused, BudgetSpent: as calls do.
        TooLong: `longest` is over what the settings or the server allow.
    """
    if longest > client.endpoint.context_length:
        raise TooLong(
            f"endpoint {client.endpoint.name!r} takes {client.endpoint.context_length:,} tokens, "
            f"{longest:,} are asked",
            field="sequence_length",
        )
    measurement = client.scope
    try:
        return await _found(client, measurement, longest)
    except (EndpointIncapable, EndpointTruncates, TooLong):
        forget(client, measurement)  # the operator may change the server before the next start
        raise


async def _found(
    client: EndpointClient, measurement: str, longest: int
) -> tuple[Ladder, Session, Canary]:
    known = _Known.of(client, measurement)
    session, found = await _begun(client, measurement, known)
    before = known.canary
    if before is not None and not before.knows(found):
        known = replace(known, ladder=known.ladder + 1)
        session, found = await _begun(client, measurement, known)
    if before is not None and before.agrees(found):
        found = before if before.knows(found) else before.joined(found)
    elif before is not None:
        known = replace(known, generation=known.generation + 1)
    known = replace(known, canary=found)
    known.keep(client, measurement)
    client.served_model = found.served.model
    await _usage_grows(session, longest)
    ladder = await _climb(session, found.served)
    client.scope = f"{measurement}#{known.generation}"
    return ladder, session, found


async def _begun(client: EndpointClient, measurement: str, known: _Known) -> tuple[Session, Canary]:
    """A session whose calls belong to the ladder, and what the model answers now."""
    client.scope = f"{measurement}/ladder#{known.ladder}"
    session = await _open(client)
    return session, await canaries.take(session)


async def _open(client: EndpointClient) -> Session:
    """Form of prompts, counter and length of lists."""
    chat = client.endpoint.form == "chat"
    counter = Counter(client, chat)
    session = Session(client, counter, "chat" if chat else "plain")
    await _answers_at_all(session)
    await counter.find_route()
    if chat and await _continues(session):
        session.form = "continued"
    for length in LIST_LENGTHS:
        try:
            await top_list(replace(session, top=length), certain(session.form))
        except EndpointIncapable:
            continue
        session.top = length
        return session
    session.top = 0
    return session


async def _answers_at_all(session: Session) -> None:
    if session.form == "continued":
        session = replace(session, form="chat")
    question = certain(session.form)
    reasons = []
    for read in (text, native_text) if session.form == "chat" else (text,):
        try:
            await read(session, question)
            return
        except EndpointIncapable as error:
            reasons.append(error.detail)
    raise EndpointIncapable(
        f"endpoint {session.client.endpoint.name!r} writes no text: {reasons[0]}", field="model"
    )


async def _continues(session: Session) -> bool:
    """Whether a last message of the assistant is continued: it adds no more tokens than its own
    (a turn that is closed adds one at least), and the text goes on."""
    client, counter = session.client, session.counter
    user = {"role": "user", "content": "Name four things."}
    begun = {"role": "assistant", "content": BEGUN.strip()}

    async def used(turns: list[dict[str, str]], more: dict[str, Any]) -> int | None:
        body = {"messages": turns, "max_tokens": 1, **more}
        answer = await client.post("/chat/completions", body, lambda _: None, reader="usage")
        return answer.usage.prompt_tokens

    try:
        without, within = await used([user], {}), await used([user, begun], dict(CONTINUE))
        if without is None or within is None:
            return False
        if within - without > await counter.count(BEGUN):
            return False
        question = certain("continued")
        said, _ = await written(replace(session, form="continued"), question)
        return question.right(said)
    except EndpointIncapable:
        return False


async def _usage_grows(session: Session, longest: int) -> None:
    """Compare `usage` with what was counted, on short prompts and on one of the longest length."""
    client, counter = session.client, session.counter
    chat = session.form != "plain"
    few = await usage_of_prompt(client, BASE + WORDS * 2, chat=chat)
    many = await usage_of_prompt(client, BASE + WORDS * 10, chat=chat)
    grown, counted = many - few, await counter.count(WORDS * 8)
    if abs(grown - counted) > 2 or grown < 32:
        raise EndpointTruncates(
            f"`usage` grows by {grown} tokens where {counted} were added: "
            "a prompt that was cut could not be told from a whole one",
            field="model",
        )
    repeats = (longest - many) * 8 // grown
    if repeats > 0:
        words = BASE + WORDS * (10 + repeats)
        read = await usage_of_prompt(client, words, chat=chat)
        expected = many + repeats * grown // 8
        if read < expected - max(4, expected // 100):
            raise EndpointTruncates(
                f"the server read {read:,} tokens of a prompt of {expected:,}: it cuts prompts",
                field="sequence_length",
            )


async def _climb(session: Session, served: Served) -> Ladder:
    ways, refused = [], {}
    for way in WAYS:
        if session.form not in way.forms:
            continue
        reason = await _tried(session, way)
        if reason is None:
            ways.append(way.name)
        else:
            refused[way.name] = reason
    if session.form == "chat":
        refused["chat.prompt_logprobs"] = "an assistant's last message is not continued"
    return Ladder(
        form=session.form,
        ways=tuple(ways),
        refused=refused,
        counts_by="usage" if session.counter.route is None else "tokenizer",
        served=served,
    )


async def _tried(session: Session, way: Way) -> str | None:
    if way.rung == "first_token" and session.top == 0:
        return "no log-probabilities of generated tokens"
    try:
        return await why_not(session, way)
    except TooLong:
        return "the server takes the probe's short prompt for too long"
    except EndpointUnreachable:
        before, session.client.replays = session.client.replays, False
        try:
            await _answers_at_all(session)
        finally:
            session.client.replays = before
        return "the server fails on this request, and on no other"
