"""Placements: in which order to put the chunks of a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from lacuna.contract.base import FROM_ARRAYS, WHOLE, Digest, ModelId, Rounded, Wire
from lacuna.contract.calibrations import Calibration, RelevanceScale
from lacuna.contract.models import PositionalEncoding
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
Strategy = Literal["advised", "optimal", "document_order", "stable", "cache_prefix"]
Decision = Literal["reorder", "keep", "undecided"]
Source = Literal["recall", "last_token_attention", CurveSource]
"""A curve of a profile: `recall` is how well facts are recalled by depth; the others are in
`profiles.Source`."""
Tokens = Annotated[int, Field(ge=0, le=MAX_TOKENS), WHOLE]
Slot = Annotated[int, Field(ge=0, le=MAX_CHUNKS), WHOLE]
Number = Annotated[float, Field(ge=-1e12, le=1e12), FROM_ARRAYS]


class Chunk(Wire):
    """One piece of context."""

    id: str = Field(min_length=1, max_length=512)
    """The caller's name for it, unique in the request."""
    tokens: Tokens | None = None
    """Its length. Give this or `text`."""
    text: str | None = Field(default=None, max_length=MAX_CHUNK_CHARACTERS)
    """Counted with the model's own tokenizer. It is never stored and never returned."""
    relevance: Number
    """Its score on the request's `relevance_scale`. A missing score is an error, so that no chunk
    wins for lack of one."""
    document: str | None = Field(default=None, min_length=1, max_length=512)
    """Name of the text that it was cut from; for the strategy `document_order` and the gain over
    that order."""
    position: Number | None = None
    """Where it stands in `document`: any number that rises. Without it, chunks of a document stand
    in the caller's order."""
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
        if self.position is not None and self.document is None:
            raise ValueError("`position` needs the `document` that it counts in")
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
    newest revision, no ablation, no target and no texts of a caller's own, of enough documents for
    an interval, near the prompt's length, of more documents, the newest."""
    density: (
        Annotated[
            list[Annotated[float, Field(ge=0, le=1e12)]],
            Field(fail_fast=True, min_length=1, max_length=MAX_DENSITY),
            FROM_ARRAYS,
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
    """Which curve of the profile; not used with `density`. Default: `measured`."""

    chunks: Annotated[list[Chunk], Field(fail_fast=True, max_length=MAX_CHUNKS)]
    """In the caller's order of preference, which decides between equals."""
    relevance_scale: RelevanceScale = "score"
    """What `relevance` is. `probability`: the chance that the chunk holds the answer, 0 to 1.
    `score`: anything that is larger for better chunks (cosine, BM25, reciprocal rank). `logit`: the
    logarithm of the odds. `distance`: anything that is smaller for better chunks. `rank`: 1 for the
    best. Only probabilities and calibrated scores let length decide between chunks."""
    calibration: Calibration | None = None
    """Turns scores into probabilities; from POST /v1/calibrations. `relevance_scale` is then not
    used."""
    strategy: Strategy = "advised"
    """`advised`: a new order only where its gain over the caller's is certain, else the caller's.
    `optimal`: the best order of the curve, whatever its interval says. `document_order`: chunks of
    a `document` one after another by `position`. `stable`: an order that a question of another
    length hardly changes. `cache_prefix`: what `previous_order` began with stays first, so that a
    server's prefix cache still holds."""
    previous_order: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=512)]],
            Field(fail_fast=True, max_length=MAX_CHUNKS),
        ]
        | None
    ) = None
    """Ids in the order of the last prompt; for `cache_prefix`."""
    prefix_tokens: Tokens = 0
    suffix_tokens: Tokens = 0
    separator_tokens: Tokens = 0
    """Between two neighbouring chunks."""

    objective: Objective = "mean_visibility"
    """`mean_visibility`: sum of weight x mean density. `total_mass`: sum of weight x mass, so that
    long chunks count more. `worst_case`: the least visibility among the `top_k` most relevant
    chunks."""
    top_k: Annotated[int, Field(ge=1, le=MAX_CHUNKS), WHOLE] = 3
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS), WHOLE] | None = None
    """Limit for the whole prompt: prefix, chunks, separators, suffix. It is never exceeded: chunks
    that do not fit are dropped, the least relevant per token first."""
    max_chunks: Annotated[int, Field(ge=1, le=MAX_CHUNKS), WHOLE] | Literal["auto"] | None = None
    """Most chunks that stay. `auto` adds chunks by falling relevance and stops before the first one
    whose value may be zero, or less than `distractor_cost`."""
    distractor_cost: float = Field(default=0.0, ge=0, lt=1)
    """For `max_chunks: "auto"`: share of the value so far that one more chunk costs by distracting.
    Measure it: how much recall falls when a chunk that does not help is added."""
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
        if self.strategy == "cache_prefix" and not self.previous_order:
            raise ValueError("the strategy `cache_prefix` needs `previous_order`")
        if self.distractor_cost and self.max_chunks != "auto":
            raise ValueError('`distractor_cost` goes with `max_chunks: "auto"`')
        self._positions_are_all_or_none()
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

    def _positions_are_all_or_none(self) -> None:
        placed: dict[str, bool] = {}
        for chunk in self.chunks:
            if chunk.document is not None:
                known = chunk.position is not None
                if placed.setdefault(chunk.document, known) != known:
                    raise ValueError(
                        f"`chunks`: of the document {chunk.document!r} some have a `position` and "
                        "some have none"
                    )


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


class GainOver(Wire):
    """Value of the judged order divided by that of another order, less 1, with a 95% interval.

    Positive: the judged order is worth more. A caller's own `density` is taken as true, so that its
    interval has no width.
    """

    value: Rounded
    low: Rounded | None
    """Null where the curve has no interval: fewer than 12 documents, a prediction, or theory."""
    high: Rounded | None


class Gain(Wire):
    """What the order that `advice` judged gains over the orders that people use.

    The other orders keep the same pins and groups. Null where the other order is worth nothing.
    """

    given: GainOver | None
    """The caller's order."""
    relevance_first: GainOver | None
    relevance_last: GainOver | None
    zigzag_best_first: GainOver | None
    """Ranks 1 3 5 .. 6 4 2."""
    zigzag_best_last: GainOver | None
    """Ranks 2 4 6 .. 5 3 1."""
    document_order: GainOver | None
    """Null as well unless two chunks name the same `document`."""


class Advice(Wire):
    """Whether another order than the caller's is worth it."""

    decision: Decision
    """`reorder`: the interval of the gain over the caller's order lies above zero. `keep`: another
    order gains less than 2%, or the caller's is the best. `undecided`: a gain is possible but not
    certain, or the curve has no interval. The strategy `advised` then returns the caller's order;
    every other strategy returns its own."""
    reason: str
    name: Literal[
        "curve", "given", "relevance_first", "relevance_last", "zigzag_best_first",
        "zigzag_best_last", "document_order", "optimal", "stable", "cache_prefix",
    ]  # fmt: skip
    """Where the judged order comes from: the curve, a fixed rule that does as well on it, or the
    strategy."""
    order: list[str] | None
    """The judged order, where the answer's `order` is another."""


class Relevance(Wire):
    """How scores became weights."""

    scale: RelevanceScale
    basis: Literal["probability", "logit", "hit_curve", "calibration"]
    """`hit_curve`: each chunk weighs what a chunk of its rank usually does, that is how often the
    answer is in the chunk of rank 1, 2, .. on Natural Questions."""
    by_length: bool
    """Whether lengths could decide between chunks."""
    notes: list[str]


class Dropped(Wire):
    """A chunk that is not in the order, and why."""

    id: str
    reason: Literal["max_tokens", "max_chunks", "no_gain", "distractor_cost"]
    """The last two are of `max_chunks: "auto"`."""
    detail: str


class Confidence(Wire):
    """How far the curve behind the answer can be trusted, and why."""

    level: Literal["high", "medium", "low"]
    basis: Literal["recall", "measured", "prediction", "theory", "given"]
    """`recall`: measured recall of facts. `measured`: measured influence. `prediction`: a
    prediction of a measured profile. `theory`: the architecture alone. `given`: the caller's own
    density."""
    noise: Rounded | None
    """Split-half Wasserstein distance of the measurement, on positions scaled to [0, 1]."""
    profile_tokens: int | None
    """Length at which the curve was measured; null for a curve without a length of its own."""
    prompt_tokens: int
    spearman_recall_influence: Rounded | None
    """Rank agreement of recall and influence by depth, where both were measured on enough facts."""
    reasons: list[str]
    """What the level is based on: doubts, each of which lowers it; how far the prompt is from the
    profile's length (up to twice: the level stays; more: one lower; more than eight times: two
    lower); and, for a recall curve, the range of depths that was measured."""


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
    strategy: Strategy
    advice: Advice
    gain: Gain
    dropped: list[Dropped]
    """In the caller's order."""
    value: Rounded
    """The objective for `order`: sum of weight x visibility (or x mass), or the worst visibility.
    Weights are what `relevance` says."""
    mean_visibility: Rounded
    """Weighted mean of the visibilities; 1 is what uniform attention gives."""
    method: Literal["exact", "heuristic"]
    """`exact`: no order is worth more. `heuristic`: perhaps one is, by `gap` at most."""
    upper_bound: Rounded
    """No order of these chunks is worth more. Equal to `value` when `method` is `exact`."""
    gap: Rounded | None
    """upper_bound / value - 1: at most this much can still be gained. Null where the order found is
    worth nothing though another may be worth something."""
    relevance: Relevance
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
        yield "decision", self.advice.decision
        yield "value", self.value
        yield "method", self.method
        yield "confidence", self.confidence.level
        yield "warnings", len(self.warnings)
