"""Influence profiles: the main answer of Lacuna."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.contract.base import Digest, Fraction, Wire
from service.contract.curves import Collapse, DeadZone, Force, Shape
from service.contract.models import ModelDescription
from service.contract.profile_requests import Needle, Objective


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
