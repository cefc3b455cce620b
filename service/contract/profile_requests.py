"""What POST /v1/profiles takes."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from service.contract.base import Wire, digest, pattern
from service.contract.models import ModelId

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
