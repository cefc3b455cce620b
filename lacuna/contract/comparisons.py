"""Two stored profiles side by side: the answer of GET /v1/comparisons.

Differences are b less a. Documents differ far more than two versions of a model do on the same
document, so profiles that read the same documents are compared in pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from lacuna.contract.base import Digest, Fraction, Wire
from lacuna.contract.profiles import DeadZone, Interval, Source, ZoneVerdict

ComparedCurve = Source | Literal["recall"]
"""Which curve of two profiles is compared; `recall` is that of the most telling probe that both
have, as a density over the prompt."""

ComparisonVerdict = Literal["difference", "no_difference", "undecided"]
"""`difference`: some tenth of the prompt has another mass; false in at most 5% of cases.
`no_difference`: none was found, and one as large as `margin` in any tenth would have been found in
80% of cases. `undecided`: none was found, but there are too few documents for `margin`."""


class ComparedProfile(Wire):
    """One side of a comparison."""

    id: Digest
    model: str
    revision: str | None
    weights: str
    sequence_length: int
    objective: str
    documents: int
    documents_source: str
    documents_digest: str
    """Equal if both profiles read the same tokens."""
    positional_encoding: Literal["on", "off"]
    content_scale: Literal["model", "raw"]
    dtype: str
    method_version: str
    shape: str
    shape_decided: bool
    """False where the documents leave open which shape the measured curve has."""
    primacy_mass: Fraction
    recency_mass: Fraction
    dead_zone: DeadZone | None
    dead_zone_verdict: ZoneVerdict | None
    """Of the measured curve; null for other curves."""


class ZoneChange(Wire):
    """How the dead zone moved from a to b. Start and end are fractions of each prompt."""

    start: float
    end: float
    fraction: float
    mean_density: float


class MassChange(Wire):
    """How the mass on one tenth of the prompt changed."""

    start: Fraction
    """Where the tenth begins, as a fraction of the prompt."""
    end: Fraction
    value: float
    """Mass of b less mass of a; 0.01 is one point."""
    low: float | None
    """`low` and `high` hold for all ten tenths together. Null where nothing was tested."""
    high: float | None
    p: float | None = Field(ge=0, le=1)
    """Probability of a change as conspicuous as this in any tenth, without a true difference."""


class DepthChange(Wire):
    """How the probability of recalling a fact changed where it stood at one depth."""

    depth: Fraction
    value: float
    """Probability in b less probability in a; 0.01 is one point."""
    low: float | None
    """`low` and `high` hold for all depths and the level together. Null where nothing was
    tested."""
    high: float | None
    p: float | None = Field(ge=0, le=1)


class RecallChange(Wire):
    """How the recall of one probe changed."""

    probe: str
    verdict: ComparisonVerdict
    """As for masses, with `margin` in probability."""
    paired: bool
    """Whether both asked the same groups of facts, and each was compared with itself."""
    groups: int
    """Groups that were compared, or on the smaller side; 12 are needed."""
    alpha: float
    margin: float
    detectable: float | None
    """Change that would be found in 80% of cases at whichever depth it is."""
    depths: list[DepthChange]
    level: DepthChange
    """Of the mean over depths; its `depth` is 0.5."""


class Comparison(Wire):
    """Answer of GET /v1/comparisons. Differences are b less a."""

    a: ComparedProfile
    b: ComparedProfile
    source: ComparedCurve
    bins: int
    summary: str
    """How b differs from a, in a sentence."""
    verdict: ComparisonVerdict | None
    """Null for other curves than `measured` and `recall`: a profile keeps no single documents of
    them."""
    paired: bool
    """Whether each shared document was compared with itself. Then `masses`, `primacy_change` and
    `recency_change` are means over the shared documents."""
    recall: list[RecallChange] = Field(default_factory=list)
    """One for each probe that both profiles have, at the same depths."""
    shared_documents: int
    """Documents with the same tokens in both profiles; 12 are needed to compare in pairs."""
    alpha: float | None
    """Level of the test, for all tenths together."""
    margin: float | None
    """What `no_difference` rules out, in mass: 0.05 in pairs, 0.1 otherwise."""
    detectable: float | None
    """Change that would be found in 80% of cases, in whichever tenth it is. Null below 12 documents
    on a side, when nothing is tested."""
    masses: list[MassChange]
    """One a tenth of the prompt."""
    primacy_change: float
    """Change of the mass on the first tenth."""
    primacy_change_band: Interval | None
    """Interval of `primacy_change` that holds for all ten tenths together; null where nothing was
    tested."""
    recency_change: float
    """Change of the mass on the last tenth."""
    recency_change_band: Interval | None
    wasserstein: Fraction
    """W1 distance between the curves, on positions scaled to [0, 1]. A description: whether it is
    more than chance says `verdict`."""
    spearman: float | None
    dead_zone_change: ZoneChange | None
    """Null unless both curves have a dead zone, and no verdict on it is `undecided`."""
    difference: list[float]
    """Per bin, mass of b less mass of a; sums to 0."""
    warnings: list[str]
    """What differs besides model and weights, one sentence each."""

    def __repr_args__(self) -> Iterator[tuple[str, object]]:
        """What was found, without the numbers bin by bin."""
        yield "a", self.a.id
        yield "b", self.b.id
        yield "source", self.source
        yield "verdict", self.verdict
        yield "summary", self.summary
        yield "warnings", len(self.warnings)
