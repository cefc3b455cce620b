"""Which model answers: a served model has no revision, so a few fixed prompts stand for it.

The canary holds what the model answers to three prompts: the most probable first tokens with their
log-probabilities where the server tells them, else the text. Servers repeat themselves only within
some tenths of a nat (cache, batching, quantised weights), so two canaries are compared with a
tolerance and never by their digests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal

from lacuna.contract.base import digest
from lacuna.contract.errors import (
    EndpointIncapable,
)
from workers.endpoints.answers import Served
from workers.endpoints.dialects import Session, top_list, written, written_natively
from workers.recall.reader import Message, Question

PROMPTS = (
    "The dog of the mayor is called Max. The cat of the mayor is called",
    "In the year 1492, the ship left the harbour and sailed to",
    "My grandmother's recipe needs flour, butter, and",
)
NOISE = 0.5
"""Nats by which a server may differ from itself: 0.27 was seen on four-bit weights."""
SEEN = -4.0
"""Nats; less probable tokens fall out of lists by chance."""


@dataclass(frozen=True)
class Canary:
    """Answers to the three prompts, and which model the server says it is."""

    kind: Literal["tokens", "text"]
    answers: tuple[Any, ...]
    """Per prompt: {token: nats} of its most probable tokens, or a text."""
    served: Served
    versions: tuple[str, ...] = ()
    """The server's fingerprints in these answers, sorted: several machines may share the work."""

    @property
    def digest(self) -> str:
        """Names this canary (32 hex digits). Two canaries of one model may differ: use `agrees`."""
        rounded = [
            sorted([t, round(v, 1)] for t, v in a.items()) if self.kind == "tokens" else a
            for a in self.answers
        ]
        return digest([self.kind, rounded])

    def agrees(self, other: Canary) -> bool:
        """Whether both may come from one model: numbers within the noise, two of three texts."""
        if self.kind != other.kind or self.served.model != other.served.model:
            return False
        pairs = list(zip(self.answers, other.answers, strict=True))
        if self.kind == "text":
            return sum(1 for a, b in pairs if a == b) >= 2
        return all(_close(a, b) and _close(b, a) for a, b in pairs)

    def knows(self, other: Canary) -> bool:
        """Whether the same model answers from versions of the server that were seen before."""
        return self.agrees(other) and set(other.versions) <= set(self.versions)

    def joined(self, other: Canary) -> Canary:
        """These answers, if the server of another canary is a new version of this one's."""
        versions = tuple(sorted({*self.versions, *other.versions}))
        return replace(self, served=other.served, versions=versions)

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "kind": self.kind,
            "answers": list(self.answers),
            "served": [self.served.model, self.served.fingerprint],
            "versions": list(self.versions),
        }

    @classmethod
    def of_dict(cls, found: dict[str, Any]) -> Canary:
        """What `as_dict` gave."""
        served, versions = Served(*found["served"]), tuple(found["versions"])
        return cls(found["kind"], tuple(found["answers"]), served, versions)


def _close(ours: dict[str, float], theirs: dict[str, float]) -> bool:
    """Each likely token of ours stands with about the same value among theirs."""
    likely = {t: v for t, v in ours.items() if v > SEEN + NOISE}
    return all(abs(theirs.get(t, -inf) - v) <= NOISE for t, v in likely.items())


def canary_question(session: Session, prompt: str) -> Question:
    """A fixed prompt in the session's form."""
    asked: str | tuple[Message, ...] = prompt
    if session.form == "chat":
        asked = (Message("user", f"Continue this sentence: {prompt}"),)
    if session.form == "continued":
        asked = (Message("user", "Write a sentence."), Message("assistant", prompt))
    return Question(asked, " x", max_tokens=12)


async def take(session: Session) -> Canary:
    """Ask the three prompts, never the ledger.

    Raises:
        EndpointIncapable: the server neither lists tokens nor writes text.
    """
    client = session.client
    before, client.replays = client.replays, False
    try:
        return await _take(session)
    finally:
        client.replays = before


async def _take(session: Session) -> Canary:
    questions = [canary_question(session, prompt) for prompt in PROMPTS]
    lists, texts, seen = [], [], []
    try:
        for question in questions:
            found = await top_list(replace(session, top=5), question)
            seen.append(found.served)
            lists.append({token: round(value, 3) for token, value in found.picked})
        if all(len(one) > 1 for one in lists):
            return Canary("tokens", tuple(lists), seen[-1], _versions(seen))
    except EndpointIncapable:
        pass
    for question in questions:
        try:
            said, found = await written(session, question)
        except EndpointIncapable:
            said, found = await written_natively(session, question)
        seen.append(found.served)
        texts.append(said)
    return Canary("text", tuple(texts), seen[-1], _versions(seen))


def _versions(seen: list[Served]) -> tuple[str, ...]:
    return tuple(sorted({one.fingerprint for one in seen if one.fingerprint is not None}))
