"""What a recall curve is judged by: the same questions without the context, and asked twice.

Position can be seen only where the answer is neither known without the prompt nor missed with the
fact alone in it. Closed book and oracle are those of Liu et al. (arXiv 2307.03172). The repeat says
how far a reader's answers to one prompt differ: a server moves them with what it has cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.recall.layout import Layout, Order
from workers.recall.reader import Form, Question

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Controls:
    """Probabilities of right answers, NaN where nothing could be read.

    Attributes:
        closed_book: the question alone, [groups, facts].
        oracle: the fact alone before the question, [groups, facts].
        repeated: the same prompts read twice, [questions, 2].
    """

    closed_book: F64
    oracle: F64
    repeated: F64

    @property
    def floor(self) -> float:
        """Mean probability without the fact."""
        return float(np.nanmean(self.closed_book))

    @property
    def ceiling(self) -> float:
        """Mean probability with the fact alone."""
        return float(np.nanmean(self.oracle))

    @property
    def repeat_difference(self) -> float:
        """Mean absolute difference between two readings of one prompt; NaN if none was repeated."""
        apart = np.abs(self.repeated[:, 0] - self.repeated[:, 1])
        return float(np.nanmean(apart)) if np.isfinite(apart).any() else float("nan")

    def joined(self, other: Controls) -> Controls:
        """Those of both measurements."""
        return Controls(
            np.concatenate([self.closed_book, other.closed_book]),
            np.concatenate([self.oracle, other.oracle]),
            np.concatenate([self.repeated, other.repeated]),
        )


def closed_book(layout: Layout, form: Form, order: Order) -> list[Question]:
    """The question for each fact, without any context."""
    group = layout.group
    return [group.question("", i, form, order, 0) for i in range(len(group.items))]


def oracle(layout: Layout, form: Form, order: Order) -> list[Question]:
    """The question for each fact, with that fact alone as context."""
    group = layout.group
    contexts = [group.alone(i) for i in range(len(group.items))]
    tokens = [int(count) for count in layout.items]
    return [
        group.question(context, i, form, order, tokens[i]) for i, context in enumerate(contexts)
    ]


def repeats(prompts: Sequence[int], most: int) -> list[int]:
    """Which prompts to read again: at most `most`, evenly spread over all.

    >>> repeats([0, 1, 2, 3, 4, 5], 3)
    [0, 2, 4]
    """
    step = max(1, len(prompts) // most)
    return list(prompts[::step][:most])
