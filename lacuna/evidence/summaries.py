"""What a profile keeps of each document, so that two profiles can be compared in pairs later.

Sixty-three numbers a document instead of its whole curve: masses of 60 equal intervals, shares of
the two isolated ends, total influence. A document is named by a digest, so texts are not kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

TENTHS = 10
BINS = 60
"""Intervals of a prompt with more tokens: six a tenth, so that tenths are exact sums."""


@dataclass(frozen=True, eq=False)
class Summaries:
    """Summaries of D documents.

    Attributes:
        keys: a digest of each document, all different.
        masses: F64[D, m], share of each of m equal intervals of the prompt; rows sum to 1.
        first: F64[D], share of the first token alone (attention sink), part of the first mass.
        last: F64[D], share of the last token alone, part of the last mass.
        totals: F64[D], influence of the document before normalisation, > 0: its weight in the mean
            of norms.
    """

    keys: tuple[str, ...]
    masses: F64
    first: F64
    last: F64
    totals: F64

    def __post_init__(self) -> None:
        count = len(self.keys)
        shapes = (self.masses.shape, self.first.shape, self.last.shape, self.totals.shape)
        if self.masses.ndim != 2 or shapes != (
            (count, self.masses.shape[1]), (count,), (count,), (count,),
        ):  # fmt: skip
            raise ValueError(f"summaries of {count} documents have shapes {shapes}")
        if len(set(self.keys)) != count:
            raise ValueError("two documents have the same key")

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: Sequence[int]) -> Summaries:
        """The documents at these rows, in this order."""
        at = np.asarray(rows, dtype=np.intp)
        keys = tuple(self.keys[row] for row in rows)
        return Summaries(keys, self.masses[at], self.first[at], self.last[at], self.totals[at])

    @property
    def tenths(self) -> F64:
        """F64[D, 10]: share of each tenth of the prompt; exact for what `summarise` made."""
        return np.asarray(self.masses @ overlaps(self.masses.shape[1], TENTHS))

    def mass(self, start: float, stop: float) -> F64:
        """F64[D]: mass on [start, stop), in shares of the prompt; even within each interval."""
        count = self.masses.shape[1]
        edges = np.arange(count + 1) / count
        covered = np.minimum(edges[1:], stop) - np.maximum(edges[:-1], start)
        return np.asarray(self.masses @ (np.maximum(covered, 0.0) * count))

    def mean_position(self) -> F64:
        """F64[D]: mean position in [0, 1], each interval at its centre."""
        count = self.masses.shape[1]
        return np.asarray(self.masses @ ((np.arange(count) + 0.5) / count))


def summarise(norms: npt.ArrayLike, keys: Sequence[str]) -> Summaries:
    """Summaries of documents from their gradient norms.

    Args:
        norms: F64[D, n], non-negative, each row with a positive entry.
        keys: a digest of each document's tokens.
    """
    rows = np.asarray(norms, dtype=np.float64)
    if rows.ndim != 2 or rows.size == 0 or not np.isfinite(rows).all() or (rows < 0).any():
        raise ValueError("norms must be finite, at least 0, documents x positions")
    totals = rows.sum(axis=1)
    if not (totals > 0).all():
        raise ValueError("a document without any influence has no summary")
    shares = rows / totals[:, None]
    length = rows.shape[1]
    masses = shares @ overlaps(length, min(BINS, length))
    return Summaries(tuple(keys), masses, shares[:, 0].copy(), shares[:, -1].copy(), totals)


def shared(a: Summaries, b: Summaries) -> tuple[Summaries, Summaries]:
    """The documents that both have, in the order of `a`."""
    place = {key: row for row, key in enumerate(b.keys)}
    rows = [row for row, key in enumerate(a.keys) if key in place]
    return a.take(rows), b.take([place[a.keys[row]] for row in rows])


def overlaps(n: int, bins: int) -> F64:
    """F64[n, bins]: how much of each of n tokens lies in each of equal bins; tokens are split."""
    edges = np.arange(bins + 1) * n / bins
    token = np.arange(n)[:, None]
    covered = np.minimum(token + 1, edges[1:]) - np.maximum(token, edges[:-1])
    return np.asarray(np.maximum(covered, 0.0))
