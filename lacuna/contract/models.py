"""Models as workers describe them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lacuna.contract.base import Wire
from lacuna.contract.endpoints import EndpointListing

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
