"""Statements about one curve of influence over positions; shared by profiles and rollouts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.contract.base import Fraction, Wire

Threshold = float


class Interval(Wire):
    """A confidence interval of one number."""

    low: float
    high: float


class DeadZone(Wire):
    """The longest stretch of the prompt to which the model listens less than `threshold`.

    Density 1 is what a model that weighs every position alike would give. Both densities are read
    from the smoothed curve that decides where the zone is, so min_density <= mean_density <
    threshold.
    """

    start: int = Field(ge=0)
    """First position of the zone (0-based)."""
    end: int = Field(ge=1)
    """One past its last position."""
    fraction: Fraction
    """Share of the prompt that lies inside."""
    mean_density: float = Field(ge=0)
    """Mean of the smoothed density inside."""
    min_density: float = Field(ge=0)
    """Least smoothed density inside."""
    argmin: int = Field(ge=0)
    """Position of the least smoothed density."""
    threshold: float = Field(gt=0)
    start_band: Interval | None = None
    """Bootstrap band of `start` over documents; null for a theoretical curve."""
    end_band: Interval | None = None
    support: Fraction | None = None
    """Share of the bootstrap draws that have such a zone at all; the bands are of those. Below
    0.975 another draw of documents may well have none. Null where there are no bands."""

    @property
    def span(self) -> str:
        """First and last position, as a text names a stretch: "241-255" where `end` is 256."""
        last = self.end - 1
        return str(last) if last == self.start else f"{self.start}-{last}"


class Shape(Wire):
    """Where the mass of the curve lies and what such a curve is called."""

    class_: Literal["u_shaped", "primacy", "recency", "flat", "collapsed"] = Field(alias="class")
    primacy_mass: Fraction
    """Mass on the first 10% of positions (uniform: 0.1)."""
    recency_mass: Fraction
    """Mass on the last 10% of positions."""
    middle_mass: Fraction
    primacy_excess: float
    """`primacy_mass` less what a uniform curve has there."""
    recency_excess: float
    thresholds: dict[str, float]
    """The numbers behind the verdict, by name."""


class Force(Wire):
    """What one ingredient of the architecture adds when it is switched on after the others."""

    name: Literal["causal_mask", "residual", "positional_encoding", "content"]
    influence: list[float]
    mean_position: Fraction
    """Mean of position/(n-1) under the curve; 0 = first token, 1 = last."""
    shift: float
    """Change of `mean_position` by this force: negative is primacy, positive is recency."""
    primacy_mass: Fraction
    recency_mass: Fraction
    primacy_shift: float
    recency_shift: float


class Collapse(Wire):
    """The depth limit: does the rollout collapse onto the first token?"""

    verdict: str
    """"finite mixing: no collapse as layers are added" or "collapses onto the first token as layers
    are added" for a schedule given by a formula: of its limit, not of this depth; "not collapsed at
    this depth" or "collapsed onto the first token at this depth" for a list of coefficients: a
    measured model has no other. Of the rollout, which may be far from what was measured."""
    collapses: bool
    """What the verdict says: of the limit where there is one, else of this depth."""
    lambda_sum: float = Field(ge=0)
    """Sum of the mixing coefficients over layers; the theorem asks whether it stays finite."""
    off_diagonal_sum: float = Field(ge=0)
    """Sum over layers of lambda_t * max_i (1 - A_t[i, i])."""
    last_to_last: Fraction
    """P[n-1, n-1]: what the last token keeps of itself."""
    last_to_first: Fraction
    """P[n-1, 0]."""
    row_entropy: float = Field(ge=0)
    """Entropy of the last row in nats; ln n for a uniform curve, 0 after a collapse."""
    evidence: str
    """First what holds at this depth, then what more layers would do, then the numbers."""
