"""Profile requests and profiles: the main contract of Lacuna."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from service.contract.base import Digest, Fraction, Wire, digest, pattern
from service.contract.curves import Collapse, DeadZone, Force, Shape
from service.contract.models import ModelDescription, ModelId

METHOD_VERSION = "3"
"""Changes whenever the same request would give other numbers; part of every job's and every
profile's id, so that nothing of an older method answers for a newer one."""
MAX_SEQUENCE_LENGTH = 131_072
MAX_DOCUMENTS = 4_096
MAX_TEXT_CHARACTERS = 2_000_000
_NAME_PATTERN = pattern(
    r"^[A-Za-z0-9][A-Za-z0-9_\-.]{0,99}$",
    "a corpus is the name of a folder: up to 100 letters, digits and . _ -",
)
_REVISION_PATTERN = pattern(
    r"^[A-Za-z0-9][A-Za-z0-9_\-./]{0,127}$",
    "a revision is a commit, branch or tag: up to 128 letters, digits and . _ - /",
)

Objective = Literal["argmax_probability", "jacobian", "target_logprob"]
PredictionName = Literal[
    "attention_only",
    "half_residual",
    "residual",
    "residual_content",
    "measured_kernel",
    "cesaro",
    "second_moment",
]
PREDICTION_NAMES: tuple[PredictionName, ...] = get_args(PredictionName)

_Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARACTERS)]


class Documents(Wire):
    """What the model reads while measured; each document has exactly `sequence_length` tokens."""

    source: Literal["builtin", "random_tokens", "inline", "corpus"] = "builtin"
    count: int = Field(default=16, ge=1, le=MAX_DOCUMENTS)
    texts: (
        Annotated[list[_Text], Field(fail_fast=True, min_length=1, max_length=MAX_DOCUMENTS)] | None
    ) = None
    """The documents themselves, for `inline`; never stored, never returned."""
    name: str | None = Field(default=None, pattern=_NAME_PATTERN)
    """Folder below the operator's corpus folder, for `corpus`."""

    @model_validator(mode="after")
    def _fields_fit_the_source(self) -> Self:
        if (self.source == "inline") != (self.texts is not None):
            raise ValueError("`texts` goes with source `inline`, and only with it")
        if (self.source == "corpus") != (self.name is not None):
            raise ValueError("`name` goes with source `corpus`, and only with it")
        return self


class Needle(Wire):
    """The functional curve: a fact at each depth, and the log-probability of recalling it."""

    depths: int = Field(default=9, ge=2, le=64)
    facts: int = Field(default=8, ge=1, le=512)


class ProfileRequest(Wire):
    """What POST /v1/profiles takes; `model` alone is enough."""

    model: ModelId
    """Hub id, `local:NAME`, `demo:NAME` or `preset:NAME` (an architecture; random weights only)."""
    revision: str | None = Field(default=None, pattern=_REVISION_PATTERN)
    weights: Literal["pretrained", "random"] = "pretrained"
    """`random` is the papers' step 0: the architecture before any training."""
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    sequence_length: int = Field(default=256, ge=1, le=MAX_SEQUENCE_LENGTH)
    documents: Documents = Documents()
    objective: Objective | None = None
    """Default: `argmax_probability`, and `jacobian` for random weights."""
    target: str | None = Field(default=None, min_length=1, max_length=2_000)
    """Continuation whose log-probability is differentiated, for `target_logprob`."""
    probes: int = Field(default=4, ge=1, le=256)
    """Random cotangents per document, for `jacobian`."""
    predictions: (
        Annotated[list[PredictionName], Field(fail_fast=True, max_length=len(PREDICTION_NAMES))]
        | None
    ) = None
    """Default: every prediction that the model supports."""
    positional_encoding: Literal["on", "off"] = "on"
    content_scale: Literal["model", "raw"] = "model"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    needle: Needle | None = None
    priority: Literal["normal", "high"] = "normal"

    @model_validator(mode="after")
    def _fields_fit_each_other(self) -> Self:
        if (self.objective == "target_logprob") != (self.target is not None):
            raise ValueError("`target` goes with objective `target_logprob`, and only with it")
        if self.predictions is not None and len(set(self.predictions)) != len(self.predictions):
            raise ValueError("`predictions` names one twice")
        if self.model.startswith("preset:") and self.weights != "random":
            raise ValueError("`model`: a preset has no trained weights; ask for `weights: random`")
        return self

    @property
    def resolved_objective(self) -> Objective:
        """The objective after defaults."""
        if self.objective is not None:
            return self.objective
        return "jacobian" if self.weights == "random" else "argmax_probability"

    @property
    def confidential(self) -> bool:
        """Whether it holds the caller's own words."""
        return self.documents.texts is not None or self.target is not None

    def identity(self) -> dict[str, Any]:
        """The method and the request less what does not change its result, defaults filled in.

        Equal identities are one job. The caller's own texts enter by digest alone.
        """
        fields = self.model_dump(mode="json", exclude={"priority"})
        fields["method"] = METHOD_VERSION
        fields["objective"] = self.resolved_objective
        if self.resolved_objective != "jacobian":
            fields["probes"] = None
        if self.predictions is not None:
            fields["predictions"] = sorted(self.predictions)
        if self.documents.texts is not None:
            fields["documents"]["texts"] = digest(self.documents.texts)
        return fields

    @property
    def job_id(self) -> str:
        """Content address of the canonical request."""
        return digest(self.identity())


class RequestEcho(Wire):
    """The request as resolved, without the caller's own texts."""

    model: str
    revision: str | None
    weights: Literal["pretrained", "random"]
    seed: int
    sequence_length: int
    objective: Objective
    probes: int | None
    positional_encoding: Literal["on", "off"]
    content_scale: Literal["model", "raw"]
    dtype: str
    documents_source: str
    documents_name: str | None
    documents_asked: int
    documents_digest: str
    """SHA-256 of the token ids of all documents."""
    target_digest: str | None
    leading_bos: bool
    """Whether the tokenizer's own policy put a BOS token first."""
    needle: Needle | None


class NeedleCurve(Wire):
    """Retrieval by depth: mean log-probability of a fact's value."""

    depth: list[Fraction]
    """Where the fact stood, as a fraction of the context."""
    position: list[int]
    """Token offset of the fact."""
    log_probability: list[float]
    low: list[float]
    high: list[float]
    baseline: float
    """The same without the fact in the context."""
    facts: int
    spearman_with_influence: float | None
    """Rank agreement between this curve and the density of influence over the facts' own tokens."""


class Measured(Wire):
    """The influence of each position on the last token's output, normalised to sum 1."""

    influence: list[float]
    low: list[float]
    high: list[float]
    """95% bootstrap band over documents; of one document it has no width, its noise is unknown."""
    per_document: list[float]
    """Each document normalised first, then averaged: no document dominates."""
    documents: int
    split_half_wasserstein: float | None
    """W1 between the two halves of the documents: how much noise remains; null for one document."""
    split_half_wasserstein_per_document: float | None = None
    standard_error: list[float] | None = None
    """Of `influence` over the random probes of `jacobian`, documents fixed; null elsewhere and with
    one probe. `low` and `high` hold both."""
    last_token_attention: list[float] | None = None
    """Mean attention row of the last token over layers and heads; a second source, no gradient."""
    needle: NeedleCurve | None = None


class Mixing(Wire):
    """The mixing coefficient lambda per attention layer, bottom to top."""

    lambda_: list[Fraction] = Field(alias="lambda")
    layers: list[int] | None = None
    """Each one's number in the model's own stack, from 0: a hybrid has attention in some layers
    only. Null in profiles of method versions before 3."""
    std: list[float]
    """Standard deviation over documents."""
    sum: float
    by_token: list[list[float]]
    """Per layer, mean lambda in `bins` equal bins of positions."""
    bins: int


class Prediction(Wire):
    """A theoretical curve and how well it agrees with the measured one."""

    influence: list[float]
    wasserstein: float
    """W1 on positions scaled to [0, 1]."""
    spearman: float | None
    dead_zone: DeadZone | None = None


class MonotoneCheck(Wire):
    """Whether measured kernels are stochastically monotone, as the depth-limit theorem assumes."""

    layer: int
    """As in `mixing.layers`."""
    violation: float
    """Largest breach of A[i+1, :j] <= A[i, :j] in cumulative mass; 0 when monotone."""
    monotone: bool


class Environment(Wire):
    """What the numbers were computed with."""

    lacuna: str
    torch: str
    transformers: str
    python: str
    device: str
    dtype: str
    threads: int


class Timings(Wire):
    """Seconds per phase, and throughput."""

    load_seconds: float
    measure_seconds: float
    predict_seconds: float
    tokens_per_second: float


class ProfileBody(Wire):
    """The content-addressed part: byte-equal for equal resolved requests."""

    id: Digest
    model: ModelDescription
    request: RequestEcho
    measured: Measured
    mixing: Mixing | None
    predictions: dict[str, Prediction]
    forces: list[Force]
    collapse: Collapse | None
    monotone: list[MonotoneCheck] | None = None
    dead_zone: DeadZone | None
    shape: Shape
    warnings: list[str]
    method_version: str


class ProfileEnvelope(Wire):
    """What belongs to the run and not to the content."""

    timings: Timings
    environment: Environment
    created_at: str


class Profile(ProfileBody):
    """Answer of GET /v1/profiles/{id}: body and envelope."""

    timings: Timings
    environment: Environment
    created_at: str


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
    """`off`: an ablation, not the model as it is used."""
    content_scale: Literal["model", "raw"] = "model"
    needle: bool = False
    """Whether retrieval was measured too."""
    pinned: bool = False
    """Whether it is kept from eviction."""
    shape: str
    dead_zone: DeadZone | None
    primacy_mass: float
    recency_mass: float
    created_at: str

    @property
    def as_used(self) -> bool:
        """Whether it shows the model as it is used: no ablation, and prose where it was trained."""
        prose = self.weights == "random" or self.documents_source != "random_tokens"
        return prose and self.positional_encoding == "on"


class ProfilePage(Wire):
    """A page of summaries, newest first."""

    items: list[ProfileSummary]
    next: str | None
    """Cursor of the next page; null on the last."""
