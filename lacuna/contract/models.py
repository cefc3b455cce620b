"""Models as users name them and as workers describe them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from lacuna.contract.base import Wire, pattern
from lacuna.contract.endpoints import EndpointListing

# A hub id is `name` or `owner/name`; the prefixes with a colon are Lacuna's. A path never matches:
# no leading slash or dot, no "..", no percent sign, at most one slash.
_SEGMENT = r"[A-Za-z0-9][A-Za-z0-9_\-]*(?:\.[A-Za-z0-9_\-]+)*"
MODEL_ID_PATTERN = pattern(
    rf"^(?:(?:local|demo|preset|endpoint):{_SEGMENT}|{_SEGMENT}(?:/{_SEGMENT})?)$",
    "a model is a hub id (`name` or `owner/name`), `local:NAME`, `demo:NAME`, `preset:NAME` or "
    "`endpoint:NAME`; names have letters, digits and . _ -",
)


def _is_a_name(value: str) -> str:
    if value.lower() in {"none", "null", "undefined"}:
        raise ValueError(f"{value!r} is what an unset variable prints, not a model")
    return value


ModelId = Annotated[
    str,
    Field(min_length=1, max_length=160, pattern=MODEL_ID_PATTERN),
    AfterValidator(_is_a_name),
]

SERVED_OR_ID_PATTERN = pattern(
    rf"^(?:endpoint:[a-z0-9][a-z0-9._-]{{0,63}}|{MODEL_ID_PATTERN.strip('^$')})$",
    "a model is a hub id (`name` or `owner/name`), `local:NAME`, `demo:NAME` or `endpoint:NAME`; "
    "names have letters, digits and . _ -, those of endpoints small letters",
)
AnyModelId = Annotated[
    str,
    Field(min_length=1, max_length=160, pattern=SERVED_OR_ID_PATTERN),
    AfterValidator(_is_a_name),
]
"""A model by its weights, or `endpoint:NAME`: a served one that the operator named."""

PositionalEncoding = Literal[
    "rotary", "alibi", "learned", "sinusoidal", "relative", "none", "other"
]


class ModelDescription(Wire):
    """The model that was measured, as the worker found it. Of a model behind an endpoint only `id`
    is known; numbers are null then."""

    id: str
    revision: str | None
    """The commit or content digest that the request resolved to; null for random weights."""
    architecture: str
    """The model type in transformers, e.g. "llama"."""
    layers: int | None
    attention_layers: int | None
    """Layers with softmax attention; fewer than `layers` in a hybrid model."""
    heads: int | None
    width: int | None
    vocabulary: int | None
    parameters: int | None
    positional_encoding: PositionalEncoding | None
    window: int | None
    """Keys that a layer with a sliding window sees; null where no layer has one."""
    max_length: int | None
    """Longest input in tokens; null where the configuration names no limit."""
    attention_implementation: str
    block: Literal["sequential", "parallel", "mixed", "unknown"]
    """How attention and MLP branches join the residual stream."""
    support: Literal["full", "influence_only", "recall_only"]
    """`recall_only`: a model behind an endpoint, which gives no gradients."""
    support_notes: list[str]
    tokenizer_digest: str | None


class WorkerModels(Wire):
    """What one live worker offers."""

    worker: str
    device: str
    queue: Literal["cpu", "gpu", "endpoints"]
    warm: list[str]
    """Models in its memory now."""
    local: list[str]
    """`local:` names that it can load."""
    knows: list[str] = Field(default_factory=list)
    """The kinds of jobs that it runs, each with its version, as `kind/version/id`. Jobs that need
    another version wait for a worker of that version."""


class ModelCatalogue(Wire):
    """Answer of GET /v1/models."""

    demo: list[str]
    presets: list[str]
    """Architectures known by name. They need `weights: random`, and no network."""
    architectures: list[str]
    """Model types of transformers that the test suite has measured."""
    workers: list[WorkerModels]
    endpoints: list[EndpointListing] = Field(default_factory=list)
    """Models behind an API, as the settings name them."""
