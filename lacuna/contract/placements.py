"""Placements: in which order to put the chunks of a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from lacuna.contract.base import Digest, Rounded, Wire
from lacuna.contract.models import ModelId, PositionalEncoding
from lacuna.contract.profiles import DeadZone
from lacuna.contract.profiles import Source as CurveSource

MAX_CHUNKS = 5_000
MAX_TOKENS = 1_000_000
"""Of one chunk, of prefix, suffix and separator, and of the whole prompt."""
MAX_CHUNK_CHARACTERS = 2_000_000
MAX_DENSITY = 131_072

_SHOWN = 8
"""Chunks that a short form of the answer names."""

Objective = Literal["mean_visibility", "total_mass", "worst_case"]
Source = Literal["needle", "last_token_attention", CurveSource]
"""A curve of a profile: `needle` is retrieval by depth; the others are in `profiles.Source`."""
Tokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
Slot = Annotated[int, Field(ge=0, le=MAX_CHUNKS)]
Number = Annotated[float, Field(ge=-1e12, le=1e12)]


class Chunk(Wire):
    """One piece of context."""

    id: str = Field(min_length=1, max_length=512)
    """The caller's name for it, unique in the request."""
    tokens: Tokens | None = None
    """Its length. Give this or `text`."""
    text: str | None = Field(default=None, max_length=MAX_CHUNK_CHARACTERS)
    """Counted with the model's own tokenizer. It is never stored and never returned."""
    relevance: Number
    """How much it matters. A missing score is an error, so that no chunk wins for lack of one."""
    group: str | None = Field(default=None, min_length=1, max_length=512)
    """Chunks of one group (one document, say) keep their order among themselves."""
    pinned: Literal["first", "last"] | Slot | None = None
    """Keep it first, last, or at this place (0-based) in the order. It is never dropped."""

    @model_validator(mode="after")
    def _fields_fit_each_other(self) -> Self:
        if (self.tokens is None) == (self.text is None):
            raise ValueError("give `tokens` or `text`, one of the two")
        if self.group is not None and self.pinned is not None:
            raise ValueError("a chunk with `pinned` cannot have a `group`: its place is given")
        return self


class Architecture(Wire):
    """What a theory-only curve needs. The values are in the model's configuration."""

    layers: int = Field(ge=1, le=512)
    heads: int = Field(ge=1, le=512)
    positional_encoding: PositionalEncoding = "rotary"
    """`alibi` uses the standard slopes. Every other encoding has no effect before training."""
    window: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    mixing: float = Field(default=0.1, gt=0, le=1)
    """lambda, the share of attention in a layer's output; the same in all layers."""


class PlacementRequest(Wire):
    """What POST /v1/placements takes: where the curve comes from, and the chunks."""

    profile_id: Digest | None = None
    model: ModelId | None = None
    """Use the most suitable profile of this model with trained weights that has `source`: of the
    newest revision, no ablation, no target and no texts of a caller's own, of several documents,
    near the prompt's length, with a needle curve, of more documents, the newest."""
    density: (
        Annotated[
            list[Annotated[float, Field(ge=0, le=1e12)]],
            Field(fail_fast=True, min_length=1, max_length=MAX_DENSITY),
        ]
        | None
    ) = None
    """A curve over relative positions, with any length and any positive mean; 1 is uniform."""
    architecture: Architecture | None = None
    """For a theory-only curve: alone, or with `model` and `allow_theory`."""
    allow_theory: bool = False
    """If `model` has no suitable profile, compute a curve from its architecture: the one given
    here, else that of any other profile of the model, else the one known by name."""
    source: Source | None = None
    """Which curve of the profile; not used with `density`. Default: `needle` where it was measured,
    else `measured`."""

    chunks: Annotated[list[Chunk], Field(fail_fast=True, max_length=MAX_CHUNKS)]
    """In the caller's order of preference, which decides between equals."""
    higher_is_better: bool = True
    """False if `relevance` is a distance."""
    prefix_tokens: Tokens = 0
    suffix_tokens: Tokens = 0
    separator_tokens: Tokens = 0
    """Between two neighbouring chunks."""

    objective: Objective = "mean_visibility"
    """`mean_visibility`: sum of relevance x mean density. `total_mass`: sum of relevance x mass, so
    that long chunks count more. `worst_case`: the least visibility among the `top_k` most relevant
    chunks."""
    top_k: int = Field(default=3, ge=1, le=MAX_CHUNKS)
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    """Limit for the whole prompt: prefix, chunks, separators, suffix. It is never exceeded: chunks
    that do not fit are dropped, the least relevant per token first."""
    max_chunks: int | None = Field(default=None, ge=1, le=MAX_CHUNKS)
    order_sensitivity: Literal["none", "stable"] = "none"
    """`stable`: the order itself has a meaning. Only the most relevant chunks move, as few as reach
    99% of the best value. The others keep the caller's order among themselves."""
    dead_zone_threshold: float = Field(default=0.75, gt=0, le=100)

    @model_validator(mode="after")
    def _fields_fit_each_other(self) -> Self:
        origins = [self.profile_id, self.model, self.density]
        given = sum(origin is not None for origin in origins)
        if given > 1 or (given == 0 and self.architecture is None):
            raise ValueError("give one of `profile_id`, `model`, `density` and `architecture`")
        if self.architecture is not None and given and self.model is None:
            raise ValueError("`architecture` goes alone or with `model`")
        if self.density is not None and not any(self.density):
            raise ValueError("`density` is zero everywhere")
        seen: set[str] = set()
        slots: set[int] = set()
        for chunk in self.chunks:
            if chunk.id in seen:
                raise ValueError(f"`chunks`: the id {chunk.id!r} repeats")
            seen.add(chunk.id)
            if isinstance(chunk.pinned, int):
                if chunk.pinned in slots:
                    raise ValueError(f"`chunks`: two are pinned to place {chunk.pinned}")
                slots.add(chunk.pinned)
        return self


class Placed(Wire):
    """One chunk of the answer, at its place in the prompt."""

    id: str
    offset: int
    """Tokens before it."""
    tokens: int
    visibility: Rounded
    """Mean density over its tokens; 1 is what uniform attention gives."""
    mass: Rounded
    """Share of all influence that falls on it: visibility x tokens / prompt."""
    in_dead_zone: bool
    """Whether it shares tokens with the dead zone and its visibility is below the zone's threshold.
    A chunk that touches the zone and is heard well is not in it."""


class Gain(Wire):
    """Value of the answer divided by that of another order of the same chunks, less 1.

    The other orders keep the same pins and groups. Null where the other order is worth nothing.
    """

    given: Rounded | None
    relevance_first: Rounded | None
    zigzag: Rounded | None
    """Against the better of the two zigzag orders that reorderers use."""


class Confidence(Wire):
    """How far the curve behind the answer can be trusted, and why."""

    level: Literal["high", "medium", "low"]
    basis: Literal["needle", "measured", "prediction", "theory", "given"]
    """`needle`: measured retrieval. `measured`: measured influence. `prediction`: a prediction of a
    measured profile. `theory`: the architecture alone. `given`: the caller's own density."""
    noise: Rounded | None
    """Split-half Wasserstein distance of the measurement, on positions scaled to [0, 1]."""
    profile_tokens: int | None
    """Length at which the curve was measured; null for a curve without a length of its own."""
    prompt_tokens: int
    spearman_needle_influence: Rounded | None
    """Rank agreement of the retrieval and the influence curve, where both were measured."""
    reasons: list[str]
    """What the level is based on: doubts, each of which lowers it; how far the prompt is from the
    profile's length (up to twice: the level stays; more: one lower; more than eight times: two
    lower); and, for a retrieval curve, the range of depths that was measured."""


class Suggestion(Wire):
    """Advice beyond the order."""

    kind: Literal["book_end", "split_query"]
    """`book_end`: put a second copy of a chunk of the dead zone at one end of the chunks, where it
    is heard above the threshold and better than now, and the whole is worth more. `split_query`:
    ask more than once, with fewer chunks each time."""
    chunk_id: str | None
    detail: str


class PlacementResponse(Wire):
    """The order, what it is worth, and how sure that is. Numbers have 6 significant digits."""

    order: list[str]
    placements: list[Placed]
    """In the same order."""
    dropped: list[str]
    """Ids of the chunks that did not fit, in the caller's order."""
    value: Rounded
    """The objective: sum of relevance x visibility (or x mass), or the worst visibility."""
    mean_visibility: Rounded
    """Relevance-weighted mean of the visibilities; 1 is what uniform attention gives."""
    gain: Gain
    method: Literal["exact", "heuristic"]
    upper_bound: Rounded
    """No order of these chunks is worth more. Equal to `value` when `method` is `exact`."""
    gap: Rounded | None
    """upper_bound / value - 1: at most this much can still be gained. Null where the order found is
    worth nothing though another may be worth something."""
    relevance: Literal["as_given", "shifted", "inverted"]
    """How scores were changed: negative ones are shifted, and distances inverted, so that the worst
    counts 0."""
    objective: Objective
    source: Source | Literal["density", "theory"]
    profile_id: str | None
    prompt_tokens: int
    extrapolated: bool
    """Whether the profile was measured at any other length than this prompt's.
    `confidence.reasons` says how much that matters."""
    exceeds_context: bool | None
    """Whether the prompt is longer than the model's configuration allows; null if unknown."""
    dead_zone: DeadZone | None
    """Of the curve at this prompt's length."""
    suggestions: list[Suggestion]
    confidence: Confidence
    warnings: list[str]

    def __repr_args__(self) -> Iterator[tuple[str, object]]:
        """The order by its first chunks, and what it is worth: there may be thousands of chunks."""
        yield "order", self.order if len(self.order) <= _SHOWN else [*self.order[:_SHOWN], ...]
        yield "dropped", len(self.dropped)
        yield "value", self.value
        yield "method", self.method
        yield "confidence", self.confidence.level
        yield "warnings", len(self.warnings)
