"""A language model whose every probability is known: it copies what followed the same words before.

How strongly it copies depends on where the words stood: a planted curve over the prompt's depth.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Curve = Callable[[float], float]
"""Depth in [0, 1] to the probability of copying."""

TOKEN = re.compile(r" ?[A-Za-z0-9_']+|\s+|[^\sA-Za-z0-9_']")
_NAMES = " John Mary David Sarah Robert Linda Thomas Peter Max"
_NOUNS = " table dog river house cat stone walk"
_SMALL = " the of is red blue a and to said in"
WORDS = (
    *(f" {word}" for word in (_NAMES + _NOUNS + _SMALL).split()),
    *("dog", "Max", "table", ".", ",", "\n"),
)
SPECIAL = ("<s>", "<user>", "<assistant>", "<system>", "<end>")
MATCH = 3
"""Tokens that must agree for a copy."""


def flat(_: float) -> float:
    return 0.6


def u_shaped(depth: float) -> float:
    return 0.25 + 0.6 * (2 * depth - 1) ** 2


def recency(depth: float) -> float:
    return 0.2 + 0.6 * depth


def primacy(depth: float) -> float:
    return 0.8 - 0.6 * depth


def step(depth: float) -> float:
    return 0.8 if depth < 0.5 else 0.3


def split(text: str) -> list[str]:
    """Tokens of a text: words with the space before them, and single signs."""
    return TOKEN.findall(text)


def _share(name: str) -> float:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big") / 2**48


@dataclass
class FakeModel:
    """Probabilities of next tokens, and ids for tokens.

    Args:
        curve: probability of copying by depth.
        spread: standard deviation between facts, in logits.
        flavour: another flavour is another model.
    """

    curve: Curve = flat
    spread: float = 0.0
    flavour: str = ""
    _ids: dict[str, int] = field(default_factory=dict)
    _texts: list[str] = field(default_factory=list)
    _bases: dict[str, dict[str, float]] = field(default_factory=dict)

    def ids(self, tokens: Sequence[str]) -> list[int]:
        for token in tokens:
            if token not in self._ids:
                self._ids[token] = len(self._texts)
                self._texts.append(token)
        return [self._ids[token] for token in tokens]

    def token(self, number: int) -> str:
        return self._texts[number]

    def _base(self, tokens: Sequence[str]) -> dict[str, float]:
        name = self.flavour + "".join(tokens[-2:])
        if name not in self._bases:
            self._bases[name] = self._drawn(name)
        return self._bases[name]

    @staticmethod
    def _drawn(name: str) -> dict[str, float]:
        weights = {w: math.exp(3 * _share(f"{name}|{w}")) for w in WORDS}
        total = sum(weights.values())
        return {w: weight / total for w, weight in weights.items()}

    def _copied(self, tokens: Sequence[str]) -> tuple[str, float] | None:
        """What stood after the same words before, and how probable it is."""
        while tokens and tokens[-1] in SPECIAL:  # a reply answers what stands before it
            tokens = tokens[:-1]
        if len(tokens) <= MATCH:
            return None
        last = list(tokens[-MATCH:])
        found = [
            i
            for i in range(len(tokens) - MATCH)
            if tokens[i + MATCH - 1] == last[-1] and list(tokens[i : i + MATCH]) == last
        ]
        if not found:
            return None
        after = tokens[found[-1] + MATCH]
        if len(found) > 1:
            return after, 0.96
        strength = self.curve(found[0] / len(tokens))
        if self.spread:
            noise = 2 * _share(f"{self.flavour}|{tokens[found[0] - 1]}|{after}") - 1
            shifted = math.log(strength / (1 - strength)) + math.sqrt(3) * self.spread * noise
            strength = 1 / (1 + math.exp(-shifted))
        return after, strength

    def distribution(self, tokens: Sequence[str]) -> dict[str, float]:
        """Probability of each possible next token."""
        base, copied = self._base(tokens), self._copied(tokens)
        if copied is None:
            return base
        mixed = {token: (1 - copied[1]) * p for token, p in base.items()}
        mixed[copied[0]] = mixed.get(copied[0], 0.0) + copied[1]
        return mixed

    def nats(self, tokens: Sequence[str], following: str) -> float:
        """Log-probability of a token; tokens out of the vocabulary are very improbable."""
        return math.log(self.distribution(tokens).get(following, 1e-9))

    def score(self, tokens: Sequence[str], answer: Sequence[str]) -> float:
        """Log-probability of an answer of several tokens."""
        return sum(self.nats([*tokens, *answer[:i]], t) for i, t in enumerate(answer))

    def best(self, tokens: Sequence[str], count: int = 1) -> list[tuple[str, float]]:
        """The most probable next tokens with their nats."""
        items = sorted(self.distribution(tokens).items(), key=lambda item: -item[1])
        return [(token, math.log(p)) for token, p in items[:count]]
