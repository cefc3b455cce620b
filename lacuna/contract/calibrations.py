"""Calibrations: from a retriever's scores to probabilities, fitted on labelled chunks."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from lacuna.contract.base import FROM_ARRAYS, Rounded, Wire

MAX_LABELS = 50_000
MAX_KNOTS = 10_000

RelevanceScale = Literal["probability", "score", "logit", "distance", "rank"]
"""What a score means; `distance` and `rank` are lower for better chunks, the others higher."""
Family = Literal["logistic", "isotonic"]
Finite = Annotated[float, Field(ge=-1e12, le=1e12)]
Numbers = Annotated[
    list[Finite], Field(fail_fast=True, min_length=1, max_length=MAX_KNOTS), FROM_ARRAYS
]


class Reliability(Wire):
    """How far a calibration's probabilities can be trusted, on questions that it did not see."""

    brier: Rounded = Field(ge=0)
    """Mean squared difference of probability and label; 0 is perfect."""
    brier_base: Rounded = Field(ge=0)
    """The same for a calibration that knows the base rate only."""
    calibration_error: Rounded = Field(ge=0)
    """Root mean squared distance of stated and observed frequency."""
    calibration_error_low: Rounded = Field(ge=0)
    """Ends of its 95% interval over questions."""
    calibration_error_high: Rounded = Field(ge=0)
    labels: int = Field(ge=0)
    positives: int = Field(ge=0)
    questions: int = Field(ge=0)


class Calibration(Wire):
    """A rising map from scores to probabilities. Pass it back in a placement request."""

    family: Family
    x: Numbers
    """`logistic`: centre and scale of the scores (a negative scale for distances). `isotonic`:
    scores at the knots, rising."""
    y: Numbers
    """`logistic`: intercept and slope on the scaled scores. `isotonic`: probability at each
    knot."""
    reliability: Reliability

    @model_validator(mode="after")
    def _describes_a_map(self) -> Self:
        if len(self.x) != len(self.y):
            raise ValueError("`x` and `y` must be equally long")
        if self.family == "logistic":
            if len(self.x) != 2 or self.x[1] == 0:
                raise ValueError("a logistic calibration has `x` [centre, scale other than 0]")
            return self
        if any(b <= a for a, b in pairwise(self.x)):
            raise ValueError("`x` of an isotonic calibration must rise")
        if min(self.y) < 0 or max(self.y) > 1:
            raise ValueError("`y` of an isotonic calibration must lie between 0 and 1")
        return self


class CalibrationRequest(Wire):
    """What POST /v1/calibrations takes: scores, and whether each chunk held the answer."""

    scores: Annotated[list[Finite], Field(fail_fast=True, min_length=1, max_length=MAX_LABELS)]
    """As the retriever gives them, one a chunk."""
    labels: Annotated[list[bool], Field(fail_fast=True, min_length=1, max_length=MAX_LABELS)]
    """Whether the chunk holds the answer; at least 20 of each kind."""
    questions: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=512)]],
            Field(fail_fast=True, max_length=MAX_LABELS),
        ]
        | None
    ) = None
    """Which question each chunk was retrieved for. Chunks of a question are kept together when the
    reliability is measured. Null: every chunk counts as a question of its own."""
    relevance_scale: RelevanceScale = "score"
    """`distance` and `rank` fall with relevance."""
    family: Literal["auto", "logistic", "isotonic"] = "auto"
    """`auto` takes `isotonic` from 300 chunks with an answer on."""

    @model_validator(mode="after")
    def _columns_are_equally_long(self) -> Self:
        count = len(self.scores)
        for name in ("labels", "questions"):
            column = getattr(self, name)
            if column is not None and len(column) != count:
                raise ValueError(f"`{name}` has {len(column)} entries, `scores` has {count}")
        return self

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger score means a better chunk."""
        return self.relevance_scale not in ("distance", "rank")
