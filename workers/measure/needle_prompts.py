"""What a model reads for the functional curve: facts at depths of unrelated prose, and questions.

Everything for which a model or a length may be refused is found out here, before anything is
measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.contract.errors import DocumentsUnusable
from workers.documents import builtin, check_vocabulary
from workers.documents.tokens import Policy, encode, policy
from workers.models.loaded import LoadedModel

F64 = NDArray[np.float64]

_QUALITIES = (
    "copper", "silver", "wooden", "marble", "velvet", "amber", "crimson", "hollow", "frozen",
    "painted", "ancient", "narrow", "golden", "broken", "silent", "striped",
)  # fmt: skip
_THINGS = (
    "lantern", "harbour", "cabinet", "bridge", "violin", "garden", "tower", "anchor", "mirror",
    "ladder", "station", "orchard", "compass", "library", "kettle", "chimney",
)  # fmt: skip


@dataclass(frozen=True)
class Fact:
    """Token ids of one fact's parts.

    Attributes:
        needle: the sentence that states it.
        ending: question and value.
        value: how many tokens at the end of `ending` are the value.
    """

    needle: list[int]
    ending: list[int]
    value: int


@dataclass(frozen=True)
class Plan:
    """Prompts that a model can read, but for the depth of the fact in each.

    Attributes:
        facts: what is to be recalled.
        prose: filler of each fact, as long as its prompt without the fact.
        prefix: special tokens at the start of each prompt.
        length: n, tokens that the model reads.
        depths: k, at least 2.
        seed: of all that was drawn.
    """

    facts: list[Fact]
    prose: list[list[int]]
    prefix: tuple[int, ...]
    length: int
    depths: int
    seed: int

    def prompts(self) -> tuple[Tensor, F64]:
        """Ids [facts * (depths + 1), length + 1] and the facts' offsets [facts, depths].

        Of each fact first the prompts with the fact, then the one without. Every row ends with the
        value's last token, which the model does not read.
        """
        rows, starts = [], np.zeros((len(self.facts), self.depths))
        for number, (fact, prose) in enumerate(zip(self.facts, self.prose, strict=True)):
            rest = len(prose) - len(fact.needle)
            for step in range(self.depths):
                at = round(step * rest / max(1, self.depths - 1))
                body = [*prose[:at], *fact.needle, *prose[at:rest]]
                rows.append([*self.prefix, *body, *fact.ending])
                starts[number, step] = len(self.prefix) + at
            rows.append([*self.prefix, *prose, *fact.ending])
        return torch.tensor(rows, dtype=torch.int64), starts


def plan(loaded: LoadedModel, length: int, *, depths: int, facts: int, seed: int) -> Plan:
    """Draw keys, values and filler for a model.

    Args:
        loaded: a model with its tokenizer.
        length: tokens the model reads, value included but for its last token.
        depths: k, at least 2.
        facts: independent keys and values, each in filler of its own.
        seed: of what is drawn.

    Raises:
        DocumentsUnusable: no tokenizer, unknown tokens, or no room for fact, question and filler.
    """
    if loaded.tokenizer is None:
        raise DocumentsUnusable(
            f"`needle`: {loaded.id} has no tokenizer to write a fact with", field="needle"
        )
    rules = policy(loaded.tokenizer)
    drawn = [_fact(loaded.tokenizer, seed, number) for number in range(facts)]
    _check_room(rules, drawn, length)
    filler = builtin.tokens(loaded.tokenizer)
    rooms = [length + 1 - len(rules.prefix) - len(fact.ending) for fact in drawn]
    prose = [list(_stretch(filler, room, (seed, i))) for i, room in enumerate(rooms)]
    # No prompt has a token that is in none of these.
    for fact, around in zip(drawn, prose, strict=True):
        ids = torch.tensor([*rules.prefix, *around, *fact.needle, *fact.ending])
        check_vocabulary(ids, loaded, "needle", scored=True)
    return Plan(drawn, prose, tuple(rules.prefix), length, depths, seed)


def _fact(tokenizer: Any, seed: int, number: int) -> Fact:
    draw = np.random.default_rng((seed, number))
    key = f"{draw.choice(_QUALITIES)} {draw.choice(_THINGS)}"
    code = int(draw.integers(10_000, 100_000))
    question = f"\n\nQuestion: What is the access code of the {key}?\nAnswer: The access code is"
    # The value's tokens are those behind the question's own: tokenizers may merge at the border.
    asked, whole = encode(tokenizer, question), encode(tokenizer, f"{question} {code}")
    shared = _common(asked, whole)
    needle = encode(tokenizer, f"\n\nThe access code of the {key} is {code}.\n\n")
    return Fact(needle=needle, ending=whole, value=len(whole) - shared)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _check_room(rules: Policy, drawn: Sequence[Fact], length: int) -> None:
    longest = max(len(fact.needle) + len(fact.ending) for fact in drawn) - 1
    needed = len(rules.prefix) + 2 * longest  # at least as much filler as there is signal
    if length < needed:
        raise DocumentsUnusable(
            f"`sequence_length`: {length} tokens have no room for a fact, its question and filler; "
            f"the needle needs {needed}",
            field="sequence_length",
        )


def _stretch(filler: Sequence[int], room: int, key: tuple[int, int]) -> Iterator[int]:
    """`room` tokens of the corpus from a random place on, around its end if need be."""
    start = int(np.random.default_rng((*key, 1)).integers(0, len(filler)))
    return (filler[(start + i) % len(filler)] for i in range(room))
