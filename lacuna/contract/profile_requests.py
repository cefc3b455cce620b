"""What POST /v1/profiles takes, and what it costs for a model of known size.

`ProfileRequest.job_id` is the content address under which equal requests are one job.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import Field, model_validator

from lacuna.contract.base import ModelId, Wire, digest, pattern
from lacuna.contract.endpoints import PREFIX, EndpointBudget
from lacuna.contract.recall import LEAST_GROUPS, MOST_GROUPS, Probe, QuestionPlace

METHOD_VERSION = "4"
"""Changes whenever the same request gives other numbers. It is part of the id of every job and
every profile, so that a profile of an older method never answers for a newer one."""
MAX_SEQUENCE_LENGTH = 131_072
MAX_DOCUMENTS = 4_096
LEAST_DOCUMENTS = 32
"""Documents that `auto` reads at least, where there are so many."""
MOST_DOCUMENTS = 64
"""Documents that `auto` reads at most, unless the request says otherwise."""
MAX_TEXT_CHARACTERS = 2_000_000
MAX_GROUPS = 512
MAX_PASSAGES = 4_096
_NAME_PATTERN = pattern(
    r"^[A-Za-z0-9][A-Za-z0-9_\-.]{0,99}$",
    "a corpus is the name of a folder: up to 100 letters, digits and . _ -",
)
REVISION_PATTERN = pattern(
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
COSTLY_PREDICTION: Final = "second_moment"
"""Takes passes of its own; all others follow from what the measurement saw, in a blink."""
DEFAULT_PREDICTIONS = tuple(name for name in PREDICTION_NAMES if name != COSTLY_PREDICTION)

_NOT_OF_ENDPOINTS = (
    "revision", "weights", "documents", "objective", "target", "probes", "predictions",
    "positional_encoding", "content_scale", "dtype",
)  # fmt: skip
_Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARACTERS)]
_Short = Annotated[str, Field(min_length=1, max_length=500)]


class Documents(Wire):
    """What the model reads during the measurement. Each document has exactly `sequence_length`
    tokens."""

    source: Literal["builtin", "random_tokens", "inline", "corpus"] = "builtin"
    count: Annotated[int, Field(ge=1, le=MAX_DOCUMENTS)] | Literal["auto"] = "auto"
    """`auto` reads 32 documents, then 16 more at a time, until the masses of all tenths of the
    prompt are known to three points of mass or `most` documents are read. Bands, verdicts and
    paired comparisons need 12 documents or more."""
    most: int = Field(default=MOST_DOCUMENTS, ge=LEAST_DOCUMENTS, le=MAX_DOCUMENTS)
    """Most documents that `auto` reads. A `count` in numbers has no use for it."""
    texts: (
        Annotated[list[_Text], Field(fail_fast=True, min_length=1, max_length=MAX_DOCUMENTS)] | None
    ) = None
    """The documents themselves, for `inline`. They are never stored and never returned."""
    name: str | None = Field(default=None, pattern=_NAME_PATTERN)
    """A folder in the operator's corpus folder, for `corpus`."""

    @model_validator(mode="after")
    def _fields_fit_the_source(self) -> Self:
        if (self.source == "inline") != (self.texts is not None):
            raise ValueError("`texts` goes with source `inline`, and only with it")
        if (self.source == "corpus") != (self.name is not None):
            raise ValueError("`name` goes with source `corpus`, and only with it")
        return self

    @property
    def limit(self) -> int:
        """Most documents that are read."""
        return self.most if self.count == "auto" else self.count


class RecallPassage(Wire):
    """A question, its accepted answers, and the passage that holds one of them."""

    question: str = Field(min_length=1, max_length=1_000)
    answers: Annotated[list[_Short], Field(fail_fast=True, min_length=1, max_length=20)]
    """The probability of the first one is read. No other passage of its prompt holds any of them.
    At least one must stand in `text` or `title`, else the passage only serves as a distractor."""
    text: str = Field(min_length=1, max_length=20_000)
    title: str = Field(default="", max_length=500)
    topic: str = Field(default="", max_length=100)
    """A label, if you have one. Bands are wider where topics differ; without labels the question
    word (who, when, ...) takes its place."""


class RecallRequest(Wire):
    """Ask how well the model recalls what stands at each depth of a prompt of `sequence_length`
    tokens.

    One group is as many competing facts as there are depths. Each stands at each depth once, in
    filler of the group's own, and is asked for there; so depths are compared in pairs.
    """

    probes: list[Probe] = Field(default=["facts"], fail_fast=True, min_length=1, max_length=4)
    """`facts`: sentences in prose. `pairs`: key-value records among others. `paraphrase`: facts
    whose question shares no content word with them. `documents`: your own questions over your own
    `passages`, with distractors."""
    groups: Annotated[int, Field(ge=LEAST_GROUPS, le=MAX_GROUPS)] | Literal["auto"] = "auto"
    """`auto` reads 24 groups, then 8 more at a time, until differences between depths are known to
    .05 or 48 groups are read. The rank agreement with influence takes 32."""
    depths: int = Field(default=5, ge=3, le=10)
    """Depths of the curve, evenly spaced, and competing facts in each prompt."""
    form: Literal["auto", "plain", "chat"] = "auto"
    """How prompts are written. `auto`: by the chat template where the model has one. `chat`: the
    same, and refused where it has none. `plain`: never."""
    question: QuestionPlace = "last"
    """Where the question stands: behind the context, before it, or both."""
    scoring: Literal["probability", "text"] = "probability"
    """`probability`: how probable the answer is. `text`: the model writes, and its text is right or
    wrong. It is right when it begins with the answer; for `documents`, when it contains an accepted
    one (Liu et al., 2024). Texts take more time, and more groups for the same band."""
    passages: (
        Annotated[list[RecallPassage], Field(fail_fast=True, max_length=MAX_PASSAGES)] | None
    ) = None
    """For the probe `documents`: `depths` times as many as groups, and more for distractors. They
    are never stored and never returned."""

    @model_validator(mode="after")
    def _fields_fit_each_other(self) -> Self:
        if len(set(self.probes)) != len(self.probes):
            raise ValueError("`probes` names one twice")
        if ("documents" in self.probes) != (self.passages is not None):
            raise ValueError("`passages` go with the probe `documents`, and only with it")
        least = LEAST_GROUPS if self.groups == "auto" else self.groups
        if self.passages is not None and len(self.passages) < least * self.depths:
            raise ValueError(
                f"`passages`: {least} groups of {self.depths} questions take at least "
                f"{least * self.depths} passages, not {len(self.passages)}"
            )
        return self

    @property
    def limit(self) -> int:
        """Most groups that are read."""
        return MOST_GROUPS if self.groups == "auto" else self.groups

    @property
    def passages_digest(self) -> str | None:
        """Digest of the caller's passages; None without any."""
        if self.passages is None:
            return None
        return digest([passage.model_dump(mode="json") for passage in self.passages])

    def identity(self) -> dict[str, Any]:
        """All that changes the curves; texts of the caller's own enter as a digest."""
        fields = self.model_dump(mode="json", exclude={"passages"})
        return fields | {"probes": sorted(self.probes), "passages": self.passages_digest}


class ProfileRequest(Wire):
    """What POST /v1/profiles takes; `model` alone is enough."""

    model: ModelId
    """Hub id, `local:NAME`, `demo:NAME`, `preset:NAME` (an architecture; random weights only) or
    `endpoint:NAME` (a model behind an API that the operator named; recall only)."""
    revision: str | None = Field(default=None, pattern=REVISION_PATTERN)
    weights: Literal["pretrained", "random"] = "pretrained"
    """`random` is the papers' step 0, the architecture before any training."""
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    sequence_length: int = Field(default=256, ge=1, le=MAX_SEQUENCE_LENGTH)
    documents: Documents = Documents()
    objective: Objective | None = None
    """Default: `argmax_probability`, and `jacobian` for random weights."""
    target: str | None = Field(default=None, min_length=1, max_length=2_000)
    """The continuation whose log-probability is differentiated, for `target_logprob`."""
    probes: int = Field(default=4, ge=1, le=256)
    """Random cotangents per document, for `jacobian`."""
    predictions: (
        Annotated[list[PredictionName], Field(fail_fast=True, max_length=len(PREDICTION_NAMES))]
        | None
    ) = None
    """Default: every one that the model supports, without `second_moment`: it takes several times
    as long as measuring the 16 documents that it reads."""
    positional_encoding: Literal["on", "off"] = "on"
    content_scale: Literal["model", "raw"] = "model"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    recall: RecallRequest | None = None
    """How well facts are recalled by depth, beside influence; null leaves it out. All that is
    measured of an endpoint, so null means its defaults there."""
    budget: EndpointBudget | None = None
    """Most calls, tokens and money for an endpoint. A measurement that cannot keep to it does not
    start; it never makes a call that would exceed it."""
    dry_run: bool = False
    """For an endpoint: answer what it would take, and measure nothing."""
    priority: Literal["normal", "high"] = "normal"

    @model_validator(mode="before")
    @classmethod
    def _endpoints_give_recall(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("recall") is not None:
            return data
        if not str(data.get("model", "")).startswith(PREFIX):
            return data
        return {**data, "recall": {}}

    @model_validator(mode="after")
    def _fields_fit_an_endpoint(self) -> Self:
        if not self.of_endpoint:
            for name in ("budget", "dry_run"):
                if getattr(self, name):
                    raise ValueError(f"`{name}` goes with `model: endpoint:NAME`, and only with it")
            return self
        for name in _NOT_OF_ENDPOINTS:
            if getattr(self, name) != type(self).model_fields[name].get_default():
                raise ValueError(
                    f"`{name}`: an endpoint gives no weights and no gradients; leave it out"
                )
        return self

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
    def of_endpoint(self) -> bool:
        """Whether the model is behind an endpoint of the settings."""
        return self.model.startswith(PREFIX)

    @property
    def resolved_objective(self) -> Objective:
        """The objective after defaults."""
        if self.objective is not None:
            return self.objective
        return "jacobian" if self.weights == "random" else "argmax_probability"

    @property
    def confidential(self) -> bool:
        """Whether it holds texts of the caller's own."""
        passages = self.recall is not None and self.recall.passages is not None
        return self.documents.texts is not None or self.target is not None or passages

    def identity(self) -> dict[str, Any]:
        """The method, and every field that changes the result, with defaults filled in.

        Equal identities are one job. Texts of the caller's own enter as a digest.
        """
        fields = self.model_dump(mode="json", exclude={"priority", "dry_run", "budget"})
        if self.budget is not None:  # else a caller with a small budget would end another's job
            fields["budget"] = self.budget.model_dump(mode="json")
        fields["method"] = METHOD_VERSION
        fields["objective"] = self.resolved_objective
        if self.resolved_objective != "jacobian":
            fields["probes"] = None
        if self.predictions is not None:
            fields["predictions"] = sorted(self.predictions)
        if self.documents.texts is not None:
            fields["documents"]["texts"] = digest(self.documents.texts)
        if self.recall is not None:
            fields["recall"] = self.recall.identity()
        if self.documents.count != "auto":
            fields["documents"]["most"] = None
        return fields

    @property
    def job_id(self) -> str:
        """Content address of the canonical request."""
        return digest(self.identity())


ATTENTION = 2.0
QUESTION_TOKENS = 32
"""Of a question about recall, with the answer and what a chat template adds behind the context."""
MATRICES = 12.0
SECOND_MOMENT_DOCUMENTS = 16
"""Most documents that the second moment reads."""
SECOND_MOMENT_BINS = 512
"""Most bins of positions."""
SECOND_MOMENT_WORK = 1e11
"""Multiply-adds 4 L H m^3 of one document from which there are fewer bins."""


def cost(request: ProfileRequest, layers: int, heads: int, width: int) -> float:
    """What a request costs at most, in multiply-adds of the model's forward pass.

    Documents that `auto` may read count as read.

    One core of a CPU does about 1.7e10 of them a second, with all that goes with each (the backward
    pass, and reading the kernels). One document of n tokens costs, with L layers of width w,

        L n w (12 w + 2 n)

    12 w for the matrices of a layer and 2 n for its attention. SmolLM2 (w = 576) at 256, 1,024,
    2,048 and 4,096 tokens took 1.6e10 to 1.8e10 a second by this formula. The second-moment
    prediction adds, for each of 16 documents at most, in m <= 512 bins of positions, with H heads,

        0.6 L n w (12 w + 2 n) + 1.5 L m w 12 w + 0.65 * 4 L H m^3

    for a pass that reads the kernels, for the gains of all branches at one token per bin, and for
    the evaluation. By it SmolLM2, GPT-2 and a Qwen2 of 24 layers took 1.6e10 to 2.1e10 a second at
    256, 1,024 and 2,048 tokens. Recall takes forward passes alone, see `recall_tokens`.

    Args:
        layers: L.
        heads: H, of one layer.
        width: w.
    """
    count, length = request.documents.limit, request.sequence_length
    # A forward and a backward pass cost alike; every further probe is a backward pass.
    passes = (1 + request.probes) / 2 if request.resolved_objective == "jacobian" else 1.0
    read = passes * count
    if request.recall is not None:  # forward passes alone
        read += recall_tokens(request.recall, length) / length / 2
    found = read * _document(layers, width, length)
    if COSTLY_PREDICTION in (request.predictions or ()):
        used = min(count, SECOND_MOMENT_DOCUMENTS)
        found += used * _second_moment(layers, heads, width, length)
    return found


def recall_tokens(asked: RecallRequest, length: int) -> float:
    """Tokens that a measurement of recall reads at most, where a context is read once for all its
    questions: k contexts of `length` tokens and k^2 questions behind them for each group, 2 k short
    prompts for the controls, and eight contexts again at each look. A text has at most 8 tokens, or
    100 for `documents`, each in a pass of its own.
    """
    k, groups = asked.depths, asked.limit
    context = length + k * QUESTION_TOKENS
    looks = 1 if asked.groups != "auto" else 1 + (groups - 24) / 8
    each = groups * (k * context + 4 * k * QUESTION_TOKENS) + 8 * looks * context
    written = 0.0
    if asked.scoring == "text":
        tokens = sum(100 if probe == "documents" else 8 for probe in asked.probes)
        written = groups * (k * k + 2 * k) * tokens
    return each * len(asked.probes) + written


def _document(layers: int, width: int, length: int) -> float:
    return layers * length * width * (MATRICES * width + ATTENTION * length)


def forward_cost(layers: int, width: int, length: int) -> float:
    """Multiply-adds of one forward pass over `length` tokens, as `cost` counts them: it takes half
    of the forward and backward pass of a document."""
    return _document(layers, width, length) / 2


def _second_moment(layers: int, heads: int, width: int, length: int) -> float:
    bins = min(length, SECOND_MOMENT_BINS)
    gains = layers * bins * width * MATRICES * width
    evaluation = min(4.0 * layers * heads * bins**3, SECOND_MOMENT_WORK)
    return 0.6 * _document(layers, width, length) + 1.5 * gains + 0.65 * evaluation
