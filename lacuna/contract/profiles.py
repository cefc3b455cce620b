"""Influence profiles: the main answer of Lacuna.

First the statements about one curve over positions, which rollouts share; then the parts of a
profile and the profile itself; then what GET answers about stored profiles: pages, another
dead-zone threshold, flat rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import ConfigDict, Field

from lacuna.contract.base import Digest, Fraction, Wire
from lacuna.contract.endpoints import ServedModel, Spending
from lacuna.contract.errors import InvalidRequest
from lacuna.contract.models import ModelDescription
from lacuna.contract.profile_requests import Objective, PredictionName
from lacuna.contract.recall import RecallCurve, RecallEcho

MAX_BINS = 16_384
"""Most bins in which curves are answered."""


class Interval(Wire):
    """A confidence interval of one number, `low` <= `high`."""

    low: float
    high: float


class DeadZone(Wire):
    """The longest stretch of the prompt in which the model's density is below `threshold`.

    Density 1 is what a model gives that weighs every position alike. Both densities are of the
    smoothed curve that decides where the zone is, so min_density <= mean_density < threshold.
    """

    start: int = Field(ge=0)
    """First position of the zone (0-based)."""
    end: int = Field(ge=1)
    """One past its last position."""
    fraction: Fraction
    """Share of the prompt that is inside."""
    mean_density: float = Field(ge=0)
    """Mean of the smoothed density inside."""
    min_density: float = Field(ge=0)
    """Least smoothed density inside."""
    argmin: int = Field(ge=0)
    """Position of the least smoothed density."""
    threshold: float = Field(gt=0)
    start_band: Interval | None = None
    """Between which positions the zone begins: from where the density may be below the threshold to
    where it surely is, by the 95% band. Null unless the verdict is `zone`, and for a theoretical
    curve."""
    end_band: Interval | None = None
    """The same of `end`."""

    @property
    def span(self) -> str:
        """First and last position in words: "241-255" where `end` is 256."""
        last = self.end - 1
        return str(last) if last == self.start else f"{self.start}-{last}"


ZoneVerdict = Literal["zone", "none", "undecided"]
"""Whether the documents show a dead zone. `zone`: the density falls below the threshold somewhere;
that is false in at most 5% of cases. `none`: the density stays above it everywhere, with the same
confidence. `undecided`: more documents are needed, whatever the curve looks like."""


def zone_words(zone: DeadZone | None, verdict: ZoneVerdict) -> str:
    """The verdict in words: "37-150", "none", "undecided" or "undecided (37-150)"."""
    if verdict == "undecided":
        return "undecided" if zone is None else f"undecided ({zone.span})"
    return "none" if zone is None else zone.span


class Shape(Wire):
    """Where the mass of a curve is, and the name of such a curve."""

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
    """The numbers that decide `class`, by name."""
    support: dict[str, Fraction] | None = None
    """Share of redrawn sets of documents that give each class, the most frequent first. Null for a
    computed curve, which has no noise, and for fewer than 12 documents."""
    decided: bool = True
    """Whether at least 95% of the redrawn sets give this class. False says: undecided."""
    primacy_band: Interval | None = None
    """95% interval of `primacy_mass` over documents; null where `support` is."""
    recency_band: Interval | None = None
    """95% interval of `recency_mass`."""


class Force(Wire):
    """What one ingredient of the architecture adds when it is switched on after the ones before."""

    name: Literal["causal_mask", "residual", "positional_encoding", "content"]
    influence: list[float]
    mean_position: Fraction
    """Mean of position/(n-1) under the curve; 0 is the first token, 1 the last."""
    shift: float
    """Change of `mean_position` by this force. Negative is primacy, positive is recency."""
    primacy_mass: Fraction
    recency_mass: Fraction
    primacy_shift: float
    recency_shift: float


class Collapse(Wire):
    """The depth limit: does the rollout collapse onto the first token?"""

    verdict: str
    """For a schedule given by a formula, about its limit: "no collapse as layers are added" or
    "collapses onto the first token as layers are added". For a list of coefficients, which is all
    that a measured model has, about this depth: "not collapsed at this depth" or "collapsed onto
    the first token at this depth". It is about the rollout, which may be far from what was
    measured."""
    collapses: bool
    """What the verdict says: about the limit where there is one, else about this depth."""
    lambda_sum: float = Field(ge=0)
    """Sum of the mixing coefficients over layers. The theorem asks whether it stays finite."""
    off_diagonal_sum: float = Field(ge=0)
    """Sum over layers of lambda_t * max_i (1 - A_t[i, i])."""
    last_to_last: Fraction
    """P[n-1, n-1]: what the last token keeps of itself."""
    last_to_first: Fraction
    """P[n-1, 0]."""
    row_entropy: float = Field(ge=0)
    """Entropy of the last row in nats; ln n for a uniform curve, 0 after a collapse."""
    evidence: str
    """What holds at this depth, then what more layers would do, then the numbers."""


class RequestEcho(Wire):
    """The request with defaults filled in, without texts of the caller's own."""

    model: str
    revision: str | None
    weights: Literal["pretrained", "random"]
    seed: int
    sequence_length: int
    objective: Objective | Literal["recall"]
    """`recall`: of an endpoint, where nothing can be differentiated."""
    probes: int | None
    positional_encoding: Literal["on", "off"]
    content_scale: Literal["model", "raw"]
    dtype: str
    documents_source: str
    documents_name: str | None
    documents_asked: int | Literal["auto"]
    """0 for an endpoint: no influence is measured."""
    documents_most: int | None
    """Most documents that `auto` might have read; null for a count in numbers."""
    documents_digest: str
    """SHA-256 of the token ids of all documents that were read; for an endpoint of the prompts of
    the first groups."""
    target_digest: str | None
    leading_bos: bool
    """Whether the tokenizer put a BOS token first, as its configuration says."""
    leading_special_tokens: list[str] = Field(default_factory=list)
    """What the tokenizer puts before every text; part of every document."""
    trailing_special_tokens: list[str] = Field(default_factory=list)
    """What it would put after every text; left off, so that the model is read at the last word."""
    target_tokens: int | None = None
    """Tokens of `target`, encoded as the continuation of a text."""
    recall: RecallEcho | None = None


SamplingEnd = Literal["narrow", "budget", "exhausted", "fixed"]


class DocumentSampling(Wire):
    """Why no more documents were read, and what more would buy.

    Widths are half-widths of the 95% bands of the ten tenths' masses: the widest of them.
    """

    reason: SamplingEnd
    """`narrow`: at most `target` at two looks running. `budget`: `documents.most` are read.
    `exhausted`: the source has no more. `fixed`: the request names a number."""
    half_width: float | None
    """With the documents that were read; null below 12."""
    target: float
    at_double: float | None
    """What twice the documents would give."""
    needed: int | None
    """About how many documents `target` takes."""


class DocumentSummaries(Wire):
    """What is kept of each document, so that profiles of the same texts can be compared in pairs.

    One entry a document, in the order of reading; no text is kept.
    """

    keys: list[str]
    """A digest of each document's token ids."""
    masses: list[list[Fraction]]
    """Share of the document's influence in each of 60 equal intervals of the prompt, or in each
    token of a shorter one."""
    first: list[Fraction]
    """Share of the first token alone, which often is an attention sink; part of the first mass."""
    last: list[Fraction]
    """Share of the last token alone; part of the last mass."""
    totals: list[float]
    """Influence of the document before it was normalised: its weight in `mean_of_norms`."""


class Measured(Wire):
    """The influence of each position on the last token's output; sums to 1."""

    influence: list[float]
    """The main curve: each document is normalised to sum 1, then all are averaged. So every
    document has one vote."""
    mean_of_norms: list[float]
    """The papers' average, normalised only afterwards: documents with large gradients count for
    more. For `jacobian` the root of the mean square."""
    smoothed: list[float]
    """`influence`, averaged over a window of a tenth of the prompt; the first and the last token
    keep their own value and lend nothing to others. Shape, zones and bands are read from it."""
    low: list[float] | None
    """`low` and `high` are the 95% band of `smoothed` at each position by itself. Null with fewer
    than 12 documents: no band has the coverage that it states with so few."""
    high: list[float] | None
    simultaneous_low: list[float] | None
    """Lower end of the 95% band that holds at all positions together."""
    simultaneous_high: list[float] | None
    documents: int
    effective_documents: float
    """How many documents of equal weight `mean_of_norms` is worth: (sum w)^2 / sum w^2 over their
    `totals`. In `influence` all `documents` count alike."""
    sampling: DocumentSampling
    summaries: DocumentSummaries
    split_half_wasserstein: float | None
    """W1 distance between `influence` of two halves of the documents; about twice the error of the
    whole. A yardstick for predictions that know nothing of the documents; curves of the same
    documents are compared in pairs. Null for one document."""
    standard_error: list[float] | None = None
    """Standard error of `influence` over the random probes of `jacobian`, with the documents fixed.
    Null for other objectives and for one probe. `low` and `high` include both kinds of noise."""
    last_token_attention: list[float] | None = None
    """Attention of the last token, averaged over layers and heads; no gradient is needed for it."""


class Mixing(Wire):
    """The mixing coefficient lambda per attention layer, bottom to top."""

    lambda_: list[Fraction] = Field(alias="lambda")
    layers: list[int] | None = None
    """Number of each layer in the model's own stack, from 0: a hybrid model has attention in some
    layers only. Null in profiles of method versions before 3."""
    std: list[float]
    """Standard deviation over documents."""
    sum: float
    by_token: list[list[float]]
    """Per layer, mean lambda in `bins` equal bins of positions."""
    bins: int


class SameDocuments(Wire):
    """A prediction against the measured curve of the very documents that it read."""

    documents: int
    wasserstein: float
    """W1 distance between the two means over these documents."""
    noise: float | None
    """What a prediction without error stays below in 95% of cases: the distance that remains when
    each document's deviation has a random sign. Null below 12 documents."""


class Prediction(Wire):
    """A predicted curve, and how well it agrees with the measured one."""

    influence: list[float]
    wasserstein: float
    """W1 distance to the measured curve, on positions scaled to [0, 1]."""
    wasserstein_band: Interval | None = None
    """95% interval of `wasserstein` over the documents of the measurement, with the prediction
    held fixed. Null below 12 documents."""
    spearman: float | None
    """Rank correlation with the measured curve over 20 equal intervals of the prompt, or over the
    tokens of a shorter one. Null where it says nothing."""
    spearman_band: Interval | None = None
    """95% interval of `spearman`."""
    same_documents: SameDocuments | None = None
    """For `second_moment`, which reads documents itself."""
    dead_zone: DeadZone | None = None


class MonotoneCheck(Wire):
    """Whether measured kernels are stochastically monotone, as the depth-limit theorem assumes."""

    layer: int
    """As in `mixing.layers`."""
    violation: float
    """Largest breach of A[i+1, :j] <= A[i, :j] in cumulative mass; 0 when monotone."""
    monotone: bool


class Environment(Wire):
    """Versions and hardware that computed the numbers."""

    lacuna: str
    torch: str | None
    """Null for an endpoint, as `transformers` is."""
    transformers: str | None
    python: str
    device: str
    dtype: str
    threads: int


class Timings(Wire):
    """Seconds per phase, and throughput."""

    load_seconds: float
    measure_seconds: float
    predict_seconds: float
    recall_seconds: float = 0.0
    tokens_per_second: float


class ProfileBody(Wire):
    """The content-addressed part of a profile: the same bytes for equal resolved requests."""

    id: Digest
    model: ModelDescription
    request: RequestEcho
    measured: Measured | None
    """The influence; null for an endpoint, which gives no gradients."""
    recall: dict[str, RecallCurve] | None = None
    """Recall by depth for each probe; null where it was not asked for."""
    mixing: Mixing | None
    predictions: dict[str, Prediction]
    forces: list[Force]
    collapse: Collapse | None
    monotone: list[MonotoneCheck] | None = None
    dead_zone: DeadZone | None
    """The zone of the measured curve as it is estimated; null where the curve has none."""
    dead_zone_verdict: ZoneVerdict | None
    """Null where no influence was measured, as `shape` is."""
    shape: Shape | None
    endpoint: ServedModel | None = None
    """Which model answered, and how it was read; null for weights."""
    warnings: list[str]
    method_version: str

    @property
    def influence(self) -> Measured:
        """The measured influence.

        Raises:
            InvalidRequest: it was not measured.
        """
        if self.measured is None:
            raise InvalidRequest(
                f"no influence was measured of {self.model.id}: an endpoint gives recall alone",
                field="source",
            )
        return self.measured


class ProfileEnvelope(Wire):
    """The part of a profile that belongs to the run."""

    timings: Timings
    environment: Environment
    spending: Spending | None = None
    """What calls of an endpoint took; null for weights."""
    created_at: str


class Profile(ProfileBody):
    """Answer of GET /v1/profiles/{id}: body and envelope."""

    timings: Timings
    environment: Environment
    spending: Spending | None = None
    created_at: str

    def __repr_args__(self) -> Iterator[tuple[str, object]]:
        """What tells profiles apart: the curves have thousands of numbers."""
        yield "id", self.id
        yield "model", self.model.id
        yield "tokens", self.request.sequence_length
        if self.shape is not None and self.dead_zone_verdict is not None:
            yield "shape", self.shape.class_ if self.shape.decided else "undecided"
            yield "dead_zone", zone_words(self.dead_zone, self.dead_zone_verdict)
        for name, curve in (self.recall or {}).items():
            yield f"recall of {name}", curve.verdict
        yield "warnings", len(self.warnings)


class ProfileSummary(Wire):
    """One row of GET /v1/profiles."""

    id: Digest
    model: str
    revision: str | None
    weights: str
    sequence_length: int
    objective: str
    documents: int
    documents_source: str = "builtin"
    documents_name: str | None = None
    seed: int = 0
    positional_encoding: Literal["on", "off"] = "on"
    """`off` is an ablation, not the model as it is used."""
    content_scale: Literal["model", "raw"] = "model"
    recall: bool = False
    """Whether recall was measured."""
    recall_verdict: str | None = None
    """Of the first probe in the order documents, facts, paraphrase, pairs; null without recall."""
    recall_spread: float | None = None
    """Of the same probe: largest less smallest probability of a right answer over depths."""
    pinned: bool = False
    """Whether it is kept whatever its age and size."""
    shape: str | None
    """Null where no influence was measured, as are the verdict and the masses."""
    shape_decided: bool = True
    dead_zone: DeadZone | None
    dead_zone_verdict: ZoneVerdict | None
    primacy_mass: float | None
    recency_mass: float | None
    created_at: str

    @property
    def as_used(self) -> bool:
        """Whether it shows the model as it is used: no ablation, and prose if it is trained."""
        prose = self.weights == "random" or self.documents_source != "random_tokens"
        return prose and self.positional_encoding == "on"


class ProfilePage(Wire):
    """A page of summaries, newest first."""

    items: list[ProfileSummary]
    next: str | None
    """Cursor of the next page; null on the last."""


Source = Literal["measured", "mean_of_norms", "last_token_attention", PredictionName]
"""A curve of a profile: the measured one, the papers' mean of norms, the mean attention of the last
token, or a prediction."""


class DeadZoneView(Wire):
    """The dead zone of one curve at one threshold."""

    profile: Digest
    source: Source
    threshold: float = Field(gt=0)
    dead_zone: DeadZone | None
    """Null where the smoothed density is nowhere below the threshold."""
    verdict: ZoneVerdict | None = None
    """Whether the documents show it, for the measured curve; null for other curves."""


class SeriesRow(Wire):
    """One position, or one bin of positions, with each curve under its name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float] = Field(init=False)

    position: float = Field(ge=0)
    """Token position; with `bins`, the middle of the bin in tokens."""
    measured: float = Field(ge=0)
    smoothed: float = Field(ge=0)
    mean_of_norms: float = Field(ge=0)
