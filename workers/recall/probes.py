"""What is asked: four probes, each with several topics and phrasings. Text only, no torch.

`facts`: competing facts in prose. `pairs`: key-value records. `documents`: questions over passages
with distractors. `paraphrase`: facts whose question has no content word in common with them. A
single fact in prose is too easy to show where a model listens (at 512 tokens the curve is flat);
k facts that compete show it, as retrieved chunks do.

Sources: key-value retrieval and multi-document question answering are those of Liu et al., Lost in
the Middle (arXiv 2307.03172), with single words as values so that small models do not all fail;
`paraphrase` follows Modarressi et al., NoLiMa (arXiv 2502.05167).
"""

from __future__ import annotations

import random
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from lacuna.contract.errors import DocumentsUnusable
from lacuna.experiments.scoring import normalized
from workers.recall import wording
from workers.recall.layout import Group, Item

_PROSE = Path(__file__).parents[1] / "documents" / "texts" / "python-reference.txt"
_WORDS = 40_000
_RECORDS = 4_000
_CANDIDATES = 300
_QUESTION_WORDS = ("who", "when", "where", "what", "which", "how")

Draw = Callable[[int, int, int, int], list[Group]]
"""(count, items, seed, first) -> groups number `first` to `first + count`, of `items` facts each.

The same number gives the same group, so more groups can be added to those that were measured.
"""


def facts(count: int, items: int, seed: int = 0, first: int = 0, text: str = "") -> list[Group]:
    """Facts of one kind ("The home city of the copper lantern is Rome.") in prose.

    Args:
        count: groups to draw, balanced over topics and phrasings.
        items: competing facts in each prompt, k, at most 10.
        seed: of all that is drawn.
        first: number of the first group.
        text: filler; empty for the built-in English prose.
    """
    return _drawn(_facts, count, items, 10, seed, first, _words(text))


def _facts(cell: tuple[str, str], items: int, draw: random.Random, words: Sequence[str]) -> Group:
    topic, phrasing = cell
    attribute, choices = wording.FACT_TOPICS[topic]
    values = draw.sample(choices, items)
    qualities, things = draw.sample(wording.QUALITIES, items), draw.sample(wording.THINGS, items)
    made = []
    for value, quality, thing in zip(values, qualities, things, strict=True):
        fact, question, lead = (
            part.format(a=attribute, k=f"{quality} {thing}", v=value)
            for part in wording.FACT_PHRASINGS[phrasing]
        )
        made.append(Item(fact, question, lead, f" {value}"))
    return Group(
        topic, phrasing, tuple(made), _stretch(words, draw), tuple(f" {c}" for c in choices)
    )


def paraphrase(
    count: int, items: int, seed: int = 0, first: int = 0, text: str = ""
) -> list[Group]:
    """Facts about people, asked for in other words; arguments as in `facts`."""
    return _drawn(_paraphrase, count, items, 10, seed, first, _words(text))


def _paraphrase(
    cell: tuple[str, str], items: int, draw: random.Random, words: Sequence[str]
) -> Group:
    topic, phrasing = cell
    clues = draw.sample(wording.PARAPHRASE_TOPICS[topic], items)
    names = draw.sample(wording.NAMES, items)
    made = []
    for name, (said, asked) in zip(names, clues, strict=True):
        fact, question, lead = (
            part.format(v=name, f=said, q=asked) for part in wording.PARAPHRASE_PHRASINGS[phrasing]
        )
        made.append(Item(fact, question, lead, f" {name}"))
    return Group(
        topic, phrasing, tuple(made), _stretch(words, draw), tuple(f" {n}" for n in wording.NAMES)
    )


def pairs(count: int, items: int, seed: int = 0, first: int = 0) -> list[Group]:
    """Key-value records, k of which are asked for; the others are the filler.

    Topics are kinds of keys (uuid is Liu et al.'s), phrasings are formats (json is theirs). No
    other record has the value of one that is asked for. Arguments as in `facts`.
    """
    return _drawn(_pairs, count, items, 30, seed, first, ())


def _pairs(cell: tuple[str, str], items: int, draw: random.Random, _: Sequence[str]) -> Group:
    kind, written = cell
    how = wording.RECORD_FORMATS[written]
    pool = sorted({value for _, values in wording.FACT_TOPICS.values() for value in values})
    asked = draw.sample(pool, items)
    rest = [value for value in pool if value not in asked]
    keys = _keys(kind, items + _RECORDS, draw)
    made = []
    for key, value in zip(keys, asked, strict=False):
        parts = (how.record, how.question, how.lead)
        record, question, lead = (_filled(part, key, value) for part in parts)
        made.append(Item(record, question, lead, how.space + value))
    filler = tuple(_filled(how.record, key, draw.choice(rest)) for key in keys[items:])
    return Group(
        kind,
        written,
        tuple(made),
        filler,
        tuple(how.space + value for value in asked),
        opening=how.opening,
        closing=how.closing,
        glue=how.glue,
        border=how.glue,
        least_filler=0.0,
        labels=("", ""),
        brief=" Reply with the value only.",
    )


def _filled(template: str, key: str, value: str) -> str:
    return template.replace("{k}", key).replace("{v}", value)


def _keys(kind: str, count: int, draw: random.Random) -> list[str]:
    """Distinct keys of one kind."""

    def one() -> str:
        if kind == "uuid":
            return str(uuid.UUID(int=draw.getrandbits(128), version=4))
        if kind == "hex":
            return f"{draw.getrandbits(32):08x}"
        if kind == "number":
            return str(draw.randrange(1_000_000, 10_000_000))
        if kind == "serial":
            letters = "".join(draw.choices("ABCDEFGHJKLMNPQRSTUVWXYZ", k=2))
            return f"{letters}-{draw.randrange(1_000, 10_000)}"
        if kind == "words":
            first, second = draw.sample(wording.QUALITIES, 2)
            return f"{first}-{second}-{draw.choice(wording.THINGS)}-{draw.randrange(100)}"
        year, month, day = draw.randrange(1600, 2100), draw.randrange(1, 13), draw.randrange(1, 29)
        return f"{year}-{month:02d}-{day:02d}"

    found: dict[str, None] = {}
    while len(found) < count:
        found[one()] = None
    return list(found)


@dataclass(frozen=True)
class Passage:
    """A question, its accepted answers, and the passage that holds one of them.

    Attributes:
        question: as users ask it.
        answers: at least one; the first is the one whose probability is read.
        text: the passage.
        title: of the passage; may be empty.
        topic: label for clustered errors; empty: the question's own question word.
    """

    question: str
    answers: tuple[str, ...]
    text: str
    title: str = ""
    topic: str = ""

    @property
    def kind(self) -> str:
        """The topic, or the question word."""
        words = normalized(self.question).split()
        return self.topic or next((w for w in words if w in _QUESTION_WORDS), "other")


def documents(passages: Sequence[Passage]) -> Draw:
    """Multi-document question answering over the caller's own passages.

    A prompt holds k passages that are asked about and distractors: passages of other questions,
    those with the most words of these questions first, none of which holds an accepted answer to
    any of them. Each question is used once.

    Args:
        passages: with their questions; k times the groups to be drawn, and more for distractors.

    Returns:
        A draw. It raises DocumentsUnusable when the questions are too few, and says how many
        groups they give.
    """
    return partial(_documents, tuple(passages))


def groups_of(passages: Sequence[Passage], items: int, seed: int = 0) -> int:
    """How many groups of `items` questions `documents` draws from these passages."""
    return len(_question_sets(passages, items, seed))


def _documents(
    passages: tuple[Passage, ...], count: int, items: int, seed: int, first: int
) -> list[Group]:
    found: list[Group] = []
    sets = _question_sets(passages, items, seed)
    if first + count > len(sets):
        raise DocumentsUnusable(
            f"`recall`: {len(passages)} passages give {len(sets)} groups of {items} questions, "
            f"{first + count} are asked for",
            field="recall",
        )
    words = [frozenset(normalized(f"{p.title} {p.text}").split()) for p in passages]
    instructions = list(wording.DOCUMENT_INSTRUCTIONS)
    for number in range(first, first + count):
        topic, chosen = sets[number]
        draw = random.Random(f"{seed}:documents:{number}")
        asked = [passages[i] for i in chosen]
        found.append(
            Group(
                topic,
                instructions[number % len(instructions)],
                tuple(_document_item(p) for p in asked),
                tuple(map(_written, _distractors(passages, words, chosen, draw))),
                tuple(f" {p.answers[0]}" for p in asked),
                opening=wording.DOCUMENT_INSTRUCTIONS[instructions[number % len(instructions)]]
                + "\n\n",
                glue="\n",
                border="\n",
                label="Document [{}]",
                least_filler=0.0,
                labels=("Question: ", "Answer:"),
                brief="",
                scoring="contains",
                max_tokens=100,
            )
        )
    return found


def _document_item(passage: Passage) -> Item:
    question = passage.question.strip().rstrip("?") + "?"
    return Item(_written(passage), question, "", f" {passage.answers[0]}", passage.answers)


def _written(passage: Passage) -> str:
    title = f"(Title: {passage.title}) " if passage.title else " "
    return f"{title}{' '.join(passage.text.split())}"


def _question_sets(
    passages: Sequence[Passage], items: int, seed: int
) -> list[tuple[str, list[int]]]:
    """(topic, passages [items]): no question twice, no passage that answers another of the set."""
    by_topic: dict[str, list[int]] = defaultdict(list)
    for i, passage in enumerate(passages):
        if passage.answers and any(_holds(passage, answer) for answer in passage.answers):
            by_topic[passage.kind].append(i)
    sets: list[tuple[str, list[int]]] = []
    for topic in sorted(by_topic):
        left = by_topic[topic]
        random.Random(f"{seed}:{topic}").shuffle(left)
        chosen: list[int] = []
        spare: list[int] = []
        for i in left:
            here = spare if _clash(passages, chosen, i) else chosen
            here.append(i)
            if len(chosen) == items:
                sets.append((topic, chosen))
                chosen = []
    random.Random(f"{seed}:sets").shuffle(sets)
    return sets


def _clash(passages: Sequence[Passage], chosen: Sequence[int], new: int) -> bool:
    one = passages[new]
    return any(
        any(_holds(one, answer) for answer in passages[i].answers)
        or any(_holds(passages[i], answer) for answer in one.answers)
        for i in chosen
    )


def _holds(passage: Passage, answer: str) -> bool:
    wanted = normalized(answer)
    return bool(wanted) and wanted in _normalized_passage(passage)


@cache
def _normalized_passage(passage: Passage) -> str:
    return normalized(f"{passage.title} {passage.text}")


def _distractors(
    passages: Sequence[Passage],
    words: Sequence[frozenset[str]],
    chosen: Sequence[int],
    draw: random.Random,
) -> list[Passage]:
    """Of some hundred other passages, those with the most words of the questions first."""
    others = [i for i in range(len(passages)) if i not in set(chosen)]
    picked = draw.sample(others, min(_CANDIDATES, len(others)))
    asked = {word for i in chosen for word in normalized(passages[i].question).split()}
    answers = [answer for i in chosen for answer in passages[i].answers]
    picked.sort(key=lambda i: -len(asked & words[i]))
    found = [passages[i] for i in picked if not any(_holds(passages[i], a) for a in answers)]
    return list(dict.fromkeys(found))


def _drawn(
    make: Callable[[tuple[str, str], int, random.Random, Sequence[str]], Group],
    count: int,
    items: int,
    most: int,
    seed: int,
    first: int,
    words: Sequence[str],
) -> list[Group]:
    name = make.__name__.strip("_")
    if not 2 <= items <= most:
        raise DocumentsUnusable(
            f"`recall`: `{name}` puts 2 to {most} facts into a prompt, not {items}", field="recall"
        )
    topics, phrasings = _CELLS[name]
    cells = [(topic, phrasing) for topic in topics for phrasing in phrasings]
    random.Random(f"{seed}:{name}").shuffle(cells)
    return [
        make(cells[i % len(cells)], items, random.Random(f"{seed}:{name}:{i}"), words)
        for i in range(first, first + count)
    ]


_CELLS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "facts": (tuple(wording.FACT_TOPICS), tuple(wording.FACT_PHRASINGS)),
    "paraphrase": (tuple(wording.PARAPHRASE_TOPICS), tuple(wording.PARAPHRASE_PHRASINGS)),
    "pairs": (wording.KEY_KINDS, tuple(wording.RECORD_FORMATS)),
}

PROBES: dict[str, Draw] = {"facts": facts, "paraphrase": paraphrase, "pairs": pairs}
"""The probes that need nothing from the caller."""


def _words(text: str) -> tuple[str, ...]:
    """A text in pieces that begin with white space and end with a word."""
    return _split(text) if text else _prose()


@cache
def _prose() -> tuple[str, ...]:
    return _split(_PROSE.read_text(encoding="utf-8"))


def _split(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"^\S+|\s+\S+", text))


def _stretch(words: Sequence[str], draw: random.Random) -> tuple[str, ...]:
    """Words of the text from a random place on, around its end if need be."""
    start = draw.randrange(len(words))
    return (*words[start:], *words[:start])[:_WORDS]
