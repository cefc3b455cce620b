"""How many documents, or groups, are enough: decided by the data, with one test at the end.

Units are added in steps. Sampling stops when the widest half-width has been at most the target at
two looks running, or when the budget is used. Widths may be looked at as often as you like;
verdicts may not: testing at every look doubles or triples false alarms. So test once, after the
rule has said `stop`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Rule:
    """When to stop.

    Attributes:
        target: half-width that is narrow enough, in the units of the caller's band.
        start: units at the first look.
        step: units added between looks.
        budget: most units.
        looks: consecutive looks at which the target must be met. One look stops too early on
            samples that happen to be quiet.
    """

    target: float
    start: int = 32
    step: int = 8
    budget: int = 128
    looks: int = 2

    def __post_init__(self) -> None:
        if not self.target > 0:
            raise ValueError(f"target must be greater than 0, not {self.target}")
        if not 0 < self.start <= self.budget:
            raise ValueError(f"start must lie in 1..budget ({self.budget}), not {self.start}")
        if self.step < 1 or self.looks < 1:
            raise ValueError("step and looks must be at least 1")


DOCUMENTS = Rule(target=0.03, step=16)
"""For the masses of tenths: the widest is known to three points of mass, pointwise."""
PROBABILITIES = Rule(target=0.05, start=24, step=8, budget=256)
"""For paired recall as probabilities."""


@dataclass(frozen=True)
class Look:
    """What the rule says after a look.

    Attributes:
        stop: whether to measure no more.
        reason: `narrow`, `budget`, or `continue`.
        add: units to measure before the next look; 0 when it stops.
        units: measured so far.
        half_width: the widest, now.
        at_double: what it would be with twice the units: half_width / sqrt(2).
        needed: units that the target would take, by the same law; at least those measured when it
            is not met.
    """

    stop: bool
    reason: str
    add: int
    units: int
    half_width: float
    at_double: float
    needed: int


class Sampling:
    """State of one sequential measurement: call `look` after each step."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._narrow = 0
        self._units = 0
        self._stopped = False

    def look(self, units: int, half_width: float | None, *, exhausted: bool = False) -> Look:
        """Decide from the widest half-width of the band of all units so far.

        Args:
            units: measured so far, more than at the last look.
            half_width: the widest of the band; None where no band is offered yet.
            exhausted: whether no units are left.

        Raises:
            ValueError: the units did not grow, or the rule has already said stop.
        """
        if self._stopped:
            raise ValueError("the rule has said stop; looking on would inflate false alarms")
        if units <= self._units:
            raise ValueError(f"units must grow: {self._units} at the last look, now {units}")
        self._units = units
        width = np.inf if half_width is None else float(half_width)
        self._narrow = self._narrow + 1 if width <= self.rule.target else 0
        add = 0 if exhausted else min(self.rule.step, self.rule.budget - units)
        reason = "continue"
        if self._narrow >= self.rule.looks:
            reason = "narrow"
        elif add <= 0:
            reason = "budget"
        self._stopped = reason != "continue"
        return Look(
            stop=self._stopped,
            reason=reason,
            add=0 if self._stopped else add,
            units=units,
            half_width=width,
            at_double=predicted(width, units, 2 * units),
            needed=needed(width, units, self.rule.target),
        )


def predicted(half_width: float, units: int, future: int) -> float:
    """Half-width that `future` units would give: it shrinks as 1 / sqrt(units).

    >>> predicted(0.2, 32, 128)
    0.1
    """
    return half_width * float(np.sqrt(units / future))


def needed(half_width: float, units: int, target: float) -> int:
    """Units for which the predicted half-width is `target`; -1 where it cannot be said.

    >>> needed(0.2, 32, 0.1)
    128
    """
    if not np.isfinite(half_width):
        return -1
    return int(np.ceil(units * (half_width / target) ** 2 - 1e-9))
