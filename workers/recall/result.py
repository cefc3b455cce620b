"""A recall curve, the table behind it, and the controls that judge it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lacuna.contract.endpoints import Form, Rung
from lacuna.contract.errors import InvalidRequest
from lacuna.evidence import flatness as judging
from lacuna.evidence.flatness import Flatness
from workers.recall.layout import Order

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Controls:
    """Probabilities of right answers, NaN where nothing could be read.

    Position can be seen only where the answer is neither known without the prompt nor missed with
    the fact alone in it. Closed book and oracle are those of Liu et al. (arXiv 2307.03172). The
    repeat says how far a reader's answers to one prompt differ: a server moves them with what it
    has cached.

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


@dataclass(frozen=True)
class Recall:
    """Probabilities of right answers by group, fact and depth; k facts at k depths.

    Every fact of a group stands at every depth, so depths are compared within groups. Groups are
    what was drawn independently; topics and phrasings are what errors are clustered by.

    Attributes:
        probe, rung, form, order: what was asked, and how.
        length: tokens that prompts were meant to have.
        seed: of the draw.
        numbers: of the groups in the draw, [groups].
        probabilities: [groups, facts, depths], in [0, 1]; no NaN.
        log_probabilities: the same in nats; None at rung `text`.
        starts: tokens before the fact, beginning of text and chat template included, [groups,
            facts, depths].
        tokens: of each fact, [groups, facts].
        prompt_tokens: of each group's prompts with answer, mean, [groups].
        topics, phrasings: labels, [groups].
        controls: closed book, oracle and repeat of these groups.
        censored: share of answers that the server's list did not reach.
        lost: groups left out since a question had no answer.
    """

    probe: str
    rung: Rung
    form: Form
    order: Order
    length: int
    seed: int
    numbers: NDArray[np.int64]
    probabilities: F64
    log_probabilities: F64 | None
    starts: F64
    tokens: F64
    prompt_tokens: F64
    topics: tuple[str, ...]
    phrasings: tuple[str, ...]
    controls: Controls
    censored: float = 0.0
    lost: int = 0

    @property
    def groups(self) -> int:
        """How many groups, each fact of which was read at each depth."""
        return len(self.probabilities)

    @property
    def by_group(self) -> F64:
        """Probability of a right answer by depth, mean over the group's facts, [groups, k]."""
        return np.asarray(self.probabilities.mean(axis=1), dtype=np.float64)

    @property
    def log_by_group(self) -> F64 | None:
        """Log-probability by depth, mean over the group's facts, [groups, k]; None at `text`."""
        logs = self.log_probabilities
        return None if logs is None else np.asarray(logs.mean(axis=1), dtype=np.float64)

    @property
    def probability(self) -> F64:
        """Expected probability of a right answer, the mean of exp(log p), [k].

        Not exp of the mean log p, which is 0.81 to 0.93 of it and follows hopeless facts.
        """
        return np.asarray(self.by_group.mean(axis=0), dtype=np.float64)

    @property
    def log_probability(self) -> F64 | None:
        """Mean log-probability, nats, [k]; None at rung `text`."""
        logs = self.log_by_group
        return None if logs is None else np.asarray(logs.mean(axis=0), dtype=np.float64)

    @property
    def positions(self) -> F64:
        """Token at which facts begin, mean over groups and facts, [k], ascending."""
        return np.asarray(self.starts.mean(axis=(0, 1)), dtype=np.float64)

    @property
    def depths(self) -> F64:
        """Positions as a share of the prompt, [k], in [0, 1]."""
        return self.positions / float(self.prompt_tokens.mean())

    def density(self, influence: F64) -> F64:
        """What a curve of influence gives the facts where they stood, [groups, k].

        The mean density over each fact's own tokens, then over the group's facts; 1 is an even
        share of the curve without its token 0.

        Args:
            influence: [n], of the prompt's tokens from the first on; non-negative, not all 0.
        """
        return densities(np.asarray(influence, dtype=np.float64), self.starts, self.tokens)

    def flatness(self) -> Flatness:
        """Whether recall varies with depth, with bands clustered by topic and phrasing.

        The verdict is `varies`, `flat`, `undecided`, `floor` or `ceiling`; see
        `lacuna.evidence.flatness`. Fewer than 16 groups are `undecided`.
        """
        judges = judging.Controls(
            closed_book=_by_group(self.controls.closed_book),
            oracle=_by_group(self.controls.oracle),
        )
        return judging.flatness(
            self.by_group,
            topics=self.topics,
            phrasings=self.phrasings,
            controls=judges,
            seed=self.seed,
        )

    def joined(self, other: Recall) -> Recall:
        """Both, as one measurement of more groups.

        Raises:
            InvalidRequest: they were not measured alike, or share groups.
        """
        alike = ("probe", "rung", "form", "order", "length", "seed")
        apart = [name for name in alike if getattr(self, name) != getattr(other, name)]
        if apart or self.starts.shape[1:] != other.starts.shape[1:]:
            raise InvalidRequest(
                f"`recall`: curves differ in {', '.join(apart) or 'depths'} and cannot be joined",
                field="recall",
            )
        if set(self.numbers.tolist()) & set(other.numbers.tolist()):
            raise InvalidRequest("`recall`: the curves share groups", field="recall")
        logs = (self.log_probabilities, other.log_probabilities)
        sizes = (self.groups, other.groups)
        return replace(
            self,
            numbers=np.concatenate([self.numbers, other.numbers]),
            probabilities=np.concatenate([self.probabilities, other.probabilities]),
            log_probabilities=None
            if logs[0] is None or logs[1] is None
            else np.concatenate([logs[0], logs[1]]),
            starts=np.concatenate([self.starts, other.starts]),
            tokens=np.concatenate([self.tokens, other.tokens]),
            prompt_tokens=np.concatenate([self.prompt_tokens, other.prompt_tokens]),
            topics=self.topics + other.topics,
            phrasings=self.phrasings + other.phrasings,
            controls=self.controls.joined(other.controls),
            censored=float(np.average([self.censored, other.censored], weights=sizes)),
            lost=self.lost + other.lost,
        )


def densities(influence: F64, starts: F64, tokens: F64) -> F64:
    """Mean density of a curve [n] over facts, by group and depth, [groups, k]; see `Recall`.

    Token 0 is left out, of the curve and of a fact that begins with it: what attention sinks there
    is nobody's visibility. Facts that would end behind the curve are moved to its end.

    Args:
        influence: [n].
        starts: [groups, facts, k].
        tokens: [groups, facts], at least 2.
    """
    curve = np.asarray(influence, dtype=np.float64)[1:]
    n = len(curve)
    before = np.concatenate([[0.0], np.cumsum(curve)]) / curve.sum()
    end = np.minimum(starts - 1 + tokens[:, :, None], n)
    begin = np.maximum(end - tokens[:, :, None], 0.0)
    at = np.interp(np.stack([begin, end]), np.arange(n + 1), before)
    return np.asarray(((at[1] - at[0]) / (end - begin)).mean(axis=1) * n, dtype=np.float64)


def _by_group(table: F64) -> F64 | None:
    """Mean over facts that could be read; None where a group has none."""
    read = np.isfinite(table)
    if not read.any(axis=1).all():
        return None
    return np.asarray(np.where(read, table, 0.0).sum(axis=1) / read.sum(axis=1), dtype=np.float64)
