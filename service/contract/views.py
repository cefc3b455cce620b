"""Ways to look at stored profiles: another threshold, flat rows, two profiles side by side."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from service.contract.base import Digest, Fraction, Wire
from service.contract.curves import DeadZone
from service.contract.profile_requests import PredictionName

MAX_BINS = 16_384

Source = Literal["measured", "per_document", "last_token_attention", PredictionName]
"""A curve of a profile: the measured one, its equal-weight variant, the mean attention of the last
token, or a prediction."""


class DeadZoneView(Wire):
    """The dead zone of one curve at one threshold."""

    profile: Digest
    source: Source
    threshold: float = Field(gt=0)
    dead_zone: DeadZone | None
    """Null when the smoothed density is nowhere below the threshold."""


class SeriesRow(Wire):
    """One position, or one bin of positions: influence by curve, under the curve's name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float] = Field(init=False)

    position: float = Field(ge=0)
    """Token position; with `bins`, the middle of the bin in tokens."""
    measured: float = Field(ge=0)
    low: float = Field(ge=0)
    high: float = Field(ge=0)
    per_document: float = Field(ge=0)


class ComparedProfile(Wire):
    """What one side of a comparison is."""

    id: Digest
    model: str
    revision: str | None
    weights: str
    sequence_length: int
    objective: str
    documents: int
    documents_source: str
    documents_digest: str
    """Equal for equal tokens: then both read the same."""
    positional_encoding: Literal["on", "off"]
    content_scale: Literal["model", "raw"]
    dtype: str
    method_version: str
    shape: str
    primacy_mass: Fraction
    recency_mass: Fraction
    dead_zone: DeadZone | None


class ZoneChange(Wire):
    """How the dead zone moved from a to b; ends as fractions of each prompt."""

    start: float
    end: float
    fraction: float
    mean_density: float


class Comparison(Wire):
    """Answer of GET /v1/comparisons. Differences are b less a."""

    a: ComparedProfile
    b: ComparedProfile
    source: Source
    bins: int
    wasserstein: Fraction
    """W1 between the curves on positions scaled to [0, 1], after binning both alike."""
    spearman: float | None
    noise_a: float | None
    """Split-half Wasserstein of a: a smaller distance between profiles is not news."""
    noise_b: float | None
    primacy_change: float
    recency_change: float
    dead_zone_change: ZoneChange | None
    """Null unless both have a dead zone."""
    difference: list[float]
    """Per bin, mass of b less mass of a; sums to 0."""
    warnings: list[str]
    """What else differs between the two than their models and weights, a sentence each."""
