"""Where facts stand in a prompt, and the prompt that asks for one of them. Text only.

The design is a Latin square. A group is k facts in filler of its own; it gives k prompts, in each
of which all k facts stand at the k depths, moved on by one. So every fact stands at every depth
once, in front of the same competitors, and depths are compared in pairs. Each prompt is asked for
every fact, all with the same context before the question, which a reader with a cache reads once.

Depth is counted in tokens, by segments of filler whose counts add up: by characters it would be off
by up to 10% of the prompt, by segments it is by 2%. Filler is cut between pieces only (words,
records, documents), since text that is cut inside a word is other tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lacuna.contract.endpoints import Form
from lacuna.contract.errors import DocumentsUnusable
from workers.recall.reader import Message, Question, Scoring

F64 = NDArray[np.float64]
Order = Literal["last", "first", "both"]
"""Where the question stands: behind the context, before it, or both."""

Count = Callable[[Sequence[str]], list[int]]
"""Tokens of each text alone, without special tokens."""

_SEGMENTS = 16
_CHARACTERS = 4.0  # of a token, to begin with; what is counted decides


@dataclass(frozen=True)
class Item:
    """Something to recall: what stands in the prompt, how it is asked for, and the answer.

    Attributes:
        text: what stands in the prompt.
        question: what is asked.
        lead: the beginning of the reply, which the answer continues.
        answer: with the space that stands before it.
        accepted: right answers as free text may state them; empty: `answer` alone.
    """

    text: str
    question: str
    lead: str
    answer: str
    accepted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Group:
    """Facts and the filler they stand in: each is asked for at each depth.

    Attributes:
        topic, phrasing: labels, for errors that are clustered by them.
        items: k facts.
        filler: pieces between which facts can stand; more than are needed.
        choices: all answers of the kind, written like `Item.answer`.
        opening, closing: text before and after the pieces.
        glue: between two pieces of filler.
        border: between a fact and what stands next to it.
        label: put before each piece and fact, with its number in the prompt ("Document [{}]").
        least_filler: share of the prompt that must be filler.
        labels: put before question and lead in a plain text.
        brief: put after the question where the reply cannot be begun for the model.
        scoring, max_tokens: as in `Question`.
    """

    topic: str
    phrasing: str
    items: tuple[Item, ...]
    filler: tuple[str, ...]
    choices: tuple[str, ...]
    opening: str = ""
    closing: str = ""
    glue: str = ""
    border: str = "\n\n"
    label: str = ""
    least_filler: float = 0.25
    labels: tuple[str, str] = ("Question: ", "Answer: ")
    brief: str = " Answer with one word only."
    scoring: Scoring = "starts"
    max_tokens: int = 8

    def context(self, cuts: Sequence[int], pieces: int, stands: Sequence[int]) -> str:
        """Filler of `pieces` pieces with fact `stands[d]` before piece `cuts[d]`."""
        parts, number, last = [], 0, 0
        for at, item in [*zip(cuts, stands, strict=True), (pieces, None)]:
            run = [
                self._labelled(piece, number + i) for i, piece in enumerate(self.filler[last:at])
            ]
            number += len(run)
            parts.append(self.glue.join(run).strip())
            if item is not None:
                parts.append(self._labelled(self.items[item].text, number))
                number += 1
            last = at
        return self.opening + self.border.join(part for part in parts if part) + self.closing

    def alone(self, item: int) -> str:
        """The context that holds one fact and nothing else."""
        return self.opening + self._labelled(self.items[item].text, 0) + self.closing

    def question(self, context: str, item: int, form: Form, order: Order, tokens: int) -> Question:
        """Ask for a fact; an empty context is a closed book. `tokens`: of the context."""
        asked = self.items[item]
        others = tuple(c for c in self.choices if c != asked.answer)
        answer = asked.answer
        prompt: str | tuple[Message, ...]
        if form == "plain":
            ask, reply = self.labels[0] + asked.question, self.labels[1] + asked.lead
            parts = _ordered(context, ask, order)
            prompt = "\n\n".join(parts) + ("\n" if parts[-1] == ask else "\n\n") + reply
        elif form == "continued" and asked.lead:
            user = "\n\n".join(_ordered(context, asked.question, order))
            prompt = (Message("user", user), Message("assistant", asked.lead))
        else:
            # Also where the reply has no beginning: an empty message cannot be continued.
            user = "\n\n".join(_ordered(context, asked.question, order)) + self.brief
            prompt, answer = (Message("user", user),), answer.strip()
            others = tuple(other.strip() for other in others)
        return Question(
            prompt=prompt,
            answer=answer,
            alternatives=others,
            accepted=asked.accepted or (asked.answer.strip(),),
            scoring=self.scoring,
            max_tokens=self.max_tokens,
            expected_tokens=tokens,
        )

    def _labelled(self, piece: str, number: int) -> str:
        return self.label.format(number + 1) + piece


def _ordered(context: str, ask: str, order: Order) -> list[str]:
    if not context:
        return [ask]
    return {"last": [context, ask], "first": [ask, context], "both": [ask, context, ask]}[order]


@dataclass(frozen=True)
class Layout:
    """A group whose filler is cut for a length.

    Attributes:
        group: the facts.
        cuts: pieces before each depth, [k], ascending.
        pieces: of filler, in all.
        front: tokens before the filler (opening, and the question where it stands first).
        runs: tokens of the filler between the depths, [k + 1].
        items: tokens of each fact, [k].
        tail: tokens behind the context, answer included; the longest over the facts.
    """

    group: Group
    cuts: tuple[int, ...]
    pieces: int
    front: int
    runs: F64
    items: F64
    tail: int

    @property
    def tokens(self) -> float:
        """Of a prompt, answer included, without special tokens and chat template."""
        return float(self.front + self.runs.sum() + self.items.sum() + self.tail)

    def rotations(self) -> NDArray[np.int64]:
        """The Latin square [k prompts, k depths]: which fact stands there."""
        k = len(self.group.items)
        return np.asarray((np.arange(k)[None, :] - np.arange(k)[:, None]) % k, dtype=np.int64)

    def starts(self) -> F64:
        """Tokens before each fact where it stands at each depth, [facts, depths]."""
        k = len(self.group.items)
        found = np.zeros((k, k))
        for stands in self.rotations():
            before = np.concatenate([[0.0], np.cumsum(self.items[stands])[:-1]])
            found[stands, np.arange(k)] = self.front + np.cumsum(self.runs[:-1]) + before
        return found

    def questions(self, form: Form, order: Order, prompt: int) -> list[tuple[int, int, Question]]:
        """(fact, its depth, question) for each fact of one prompt of the square, in their order."""
        stands = self.rotations()[prompt]
        context = self.group.context(self.cuts, self.pieces, stands.tolist())
        tokens = int(self.tokens - self.tail)
        return [
            (int(item), depth, self.group.question(context, int(item), form, order, tokens))
            for depth, item in enumerate(stands)
        ]


def place(
    groups: Sequence[Group], length: int, count: Count, order: Order, around: int = 0
) -> list[Layout]:
    """Cut each group's filler so that its prompts have about `length` tokens, never many more.

    Args:
        groups: what to lay out; each needs enough filler.
        length: tokens of a prompt with its answer.
        count: tokens of texts; called a few times, with the texts of all groups.
        order: where the question stands.
        around: of the length, special tokens and chat template.

    Raises:
        DocumentsUnusable: facts and question leave too little room for filler, or the filler is
            too short; names the length that it needs.
    """
    fixed = _fixed_parts(groups, count, order)
    needed = [around + parts.front + int(parts.items.sum()) + parts.tail for parts in fixed]
    least = max(
        math.ceil(tokens / (1 - group.least_filler))
        for group, tokens in zip(groups, needed, strict=True)
    )
    if length < least:
        raise DocumentsUnusable(
            f"`sequence_length`: {length} tokens have no room for {len(groups[0].items)} facts, a "
            f"question and filler; recall needs {least}",
            field="sequence_length",
        )
    rooms = [length - tokens for tokens in needed]
    edges = _segments(groups, rooms, count)
    return [
        _cut(group, room, edge, parts)
        for group, room, edge, parts in zip(groups, rooms, edges, fixed, strict=True)
    ]


class _Fixed(NamedTuple):
    """Tokens of what does not depend on the filler; names as in `Layout`."""

    front: int
    items: F64
    tail: int


def _fixed_parts(groups: Sequence[Group], count: Count, order: Order) -> list[_Fixed]:
    texts: list[str] = []
    for group in groups:
        ask, reply = group.labels
        texts.append(group.opening)
        for item in group.items:
            # Where borders separate prose there is one on each side, else one between two pieces.
            behind = group.border if group.border != group.glue else ""
            texts.append(f"{group.border}{group.label.format(10)}{item.text}{behind}")
            texts.append(f"\n\n{ask}{item.question}")
            texts.append(f"{group.closing}\n\n{reply}{item.lead}{item.answer}")
    counts = iter(count(texts))
    found = []
    for group in groups:
        opening = next(counts)
        rows = np.array([[next(counts) for _ in range(3)] for _ in group.items], dtype=np.float64)
        items, asks, ends = rows.T
        front = opening + (int(asks.max()) if order in ("first", "both") else 0)
        tail = int((ends + (asks if order in ("last", "both") else 0)).max())
        found.append(_Fixed(front, items, tail))
    return found


def _segments(
    groups: Sequence[Group], rooms: Sequence[int], count: Count
) -> list[tuple[list[int], list[float]]]:
    """(pieces, tokens) at the ends of counted segments, up to each group's room."""
    edges = [([0], [0.0]) for _ in groups]
    per = [_pieces_of_a_segment(group, room) for group, room in zip(groups, rooms, strict=True)]
    while open_ := [i for i, (_, tokens) in enumerate(edges) if tokens[-1] <= rooms[i]]:
        texts, owners = [], []
        for i in open_:
            pieces, tokens = edges[i]
            for _ in range(_rounds(tokens, rooms[i])):
                part = groups[i].filler[pieces[-1] : pieces[-1] + per[i]]
                if not part:
                    break
                pieces.append(pieces[-1] + len(part))
                texts.append(_counted(groups[i], part, pieces[-2]))
                owners.append(i)
            if pieces[-1] == len(groups[i].filler) and i not in owners:
                raise DocumentsUnusable(
                    f"`recall`: the filler has {tokens[-1]:.0f} tokens, {rooms[i]} are needed; "
                    "give more documents or ask for a shorter `sequence_length`",
                    field="recall",
                )
        for i, tokens_here in zip(owners, count(texts), strict=True):
            edges[i][1].append(edges[i][1][-1] + tokens_here)
    return edges


def _rounds(tokens: Sequence[float], room: int) -> int:
    """How many more segments to count at once: as many as are needed if they go on alike."""
    if len(tokens) == 1:
        return _SEGMENTS // 2
    return max(1, int(np.ceil((room - tokens[-1] + 1) / (tokens[-1] / (len(tokens) - 1)))))


def _pieces_of_a_segment(group: Group, room: int) -> int:
    sample = group.filler[:200]
    characters = sum(map(len, sample)) / max(1, len(sample))
    return max(1, round(room / _SEGMENTS * _CHARACTERS / max(1.0, characters)))


def _counted(group: Group, part: Sequence[str], number: int) -> str:
    label = group.label.format(number + 10)
    return group.glue + group.glue.join(f"{label}{piece}" for piece in part)


def _cut(group: Group, room: int, edges: tuple[list[int], list[float]], fixed: _Fixed) -> Layout:
    pieces, tokens = edges
    most = int(np.interp(room, tokens, pieces))  # rounded down: at most `room` tokens
    total = float(np.interp(most, pieces, tokens))
    depths = np.linspace(0.0, total, len(group.items))
    cuts = tuple(round(float(at)) for at in np.interp(depths, tokens, pieces))
    ends = np.interp([0, *cuts, most], pieces, tokens)
    return Layout(group, cuts, most, fixed.front, np.diff(ends), fixed.items, fixed.tail)
