"""What the service answers, as frozen dataclasses. `raw` is the whole answer: newer services may
say more than this package knows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from reprlib import Repr
from typing import Any, Literal, Self

from lacuna.client.errors import LacunaError

Json = dict[str, Any]
_short = Repr()
_short.maxlist = 8
_short.maxstring = 60


@dataclass(frozen=True)
class Chunk:
    """One piece of context to place.

    Args:
        id: unique name.
        tokens: its length; or leave it out and give `text`.
        relevance: how much it matters; required, may be a distance with `higher_is_better=False`.
        group: chunks of one group keep their order among each other.
        pinned: "first", "last" or a place (0-based).
        text: counted by the service with the model's own tokenizer.

    Raises:
        LacunaError: no relevance, or neither length nor text.
    """

    id: str
    tokens: int | None = None
    relevance: float = math.nan
    group: str | None = None
    pinned: Literal["first", "last"] | int | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        """Refuse what no service could place."""
        if math.isnan(self.relevance):
            raise LacunaError(f"chunk {self.id!r} has no relevance")
        if self.tokens is None and self.text is None:
            raise LacunaError(f"chunk {self.id!r} has no length: give tokens or text")

    def to_json(self) -> Json:
        """The wire form, without what is not set."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class DeadZone:
    """The stretch to which the model listens least, in tokens: [start, end)."""

    start: int
    end: int
    fraction: float
    mean_density: float
    threshold: float
    support: float | None = None
    """Share of the bootstrap draws that have such a zone; None where none were made."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Self | None:
        """None where the service says null."""
        if value is None:
            return None
        names = ("start", "end", "fraction", "mean_density", "threshold")
        return cls(**{name: value[name] for name in names}, support=value.get("support"))


@dataclass(frozen=True, repr=False)
class Profile:
    """A measured profile."""

    id: str
    model: str
    influence: list[float]
    """Share of each position, sums to 1."""
    dead_zone: DeadZone | None
    shape: str
    warnings: list[str]
    raw: Json = field(repr=False)

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """From the answer of GET /v1/profiles/{id}, or a file that holds one."""
        return cls(
            id=value["id"],
            model=value["model"]["id"],
            influence=value["measured"]["influence"],
            dead_zone=DeadZone.from_json(value["dead_zone"]),
            shape=value["shape"]["class"],
            warnings=value["warnings"],
            raw=value,
        )

    def __repr__(self) -> str:
        zone = self.dead_zone and f"[{self.dead_zone.start}, {self.dead_zone.end})"
        return (
            f"Profile(id={self.id!r}, model={self.model!r}, tokens={len(self.influence)}, "
            f"shape={self.shape!r}, dead_zone={zone}, warnings={len(self.warnings)})"
        )


@dataclass(frozen=True)
class ProfileSummary:
    """One row of a listing."""

    id: str
    model: str
    sequence_length: int
    shape: str
    created_at: str
    raw: Json = field(repr=False)

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """From an item of GET /v1/profiles."""
        names = ("id", "model", "sequence_length", "shape", "created_at")
        return cls(**{name: value[name] for name in names}, raw=value)


@dataclass(frozen=True)
class Job:
    """A measurement under way."""

    id: str
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    progress: float
    message: str
    position: int | None
    eta_seconds: float | None
    profile_id: str | None
    failure: Json | None
    raw: Json = field(repr=False)

    @property
    def finished(self) -> bool:
        """Whether the state is final."""
        return self.state in ("done", "failed", "cancelled")

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """From the answer of GET /v1/jobs/{id}."""
        names = ("id", "state", "progress", "message", "position", "eta_seconds", "failure")
        profile = value["profile"]
        return cls(
            **{name: value[name] for name in names},
            profile_id=None if profile is None else profile.rpartition("/")[2],
            raw=value,
        )


@dataclass(frozen=True)
class Placed:
    """One chunk in its place."""

    id: str
    offset: int
    tokens: int
    visibility: float
    in_dead_zone: bool


@dataclass(frozen=True, repr=False)
class Placement:
    """An order of chunks and what it is worth."""

    order: list[str]
    placements: list[Placed]
    dropped: list[str]
    value: float
    gain: dict[str, float | None]
    """Over the given order, most relevant first and zigzag: 0.1 is ten per cent better."""
    method: Literal["exact", "heuristic"]
    upper_bound: float
    extrapolated: bool
    confidence: Json
    warnings: list[str]
    raw: Json = field(repr=False)

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """From the answer of POST /v1/placements."""
        names = (
            "order", "dropped", "value", "gain", "method", "upper_bound", "extrapolated",
            "confidence", "warnings",
        )  # fmt: skip
        columns = ("id", "offset", "tokens", "visibility", "in_dead_zone")
        placed = [Placed(**{name: one[name] for name in columns}) for one in value["placements"]]
        return cls(**{name: value[name] for name in names}, placements=placed, raw=value)

    def __repr__(self) -> str:
        return (
            f"Placement(order={_short.repr(self.order)}, dropped={len(self.dropped)}, "
            f"value={self.value:.4g}, method={self.method!r}, "
            f"confidence={self.confidence['level']!r})"
        )


@dataclass(frozen=True)
class Comparison:
    """Two profiles side by side."""

    wasserstein: float
    spearman: float | None
    raw: Json = field(repr=False)
    warnings: tuple[str, ...] = ()
    """What else differs than models and weights: objectives, documents, lengths."""

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """From the answer of GET /v1/comparisons."""
        said = tuple(value.get("warnings", ()))
        return cls(value["wasserstein"], value["spearman"], value, said)


@dataclass(frozen=True, repr=False)
class Rollout:
    """Theory alone: predicted influence by the name of the prediction."""

    influence: dict[str, list[float]]
    dead_zones: dict[str, DeadZone | None]
    raw: Json = field(repr=False)

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """From the answer of POST /v1/rollouts."""
        found = value["predictions"]
        return cls(
            {name: one["influence"] for name, one in found.items()},
            {name: DeadZone.from_json(one["dead_zone"]) for name, one in found.items()},
            value,
        )

    def __repr__(self) -> str:
        tokens = max(map(len, self.influence.values()), default=0)
        return f"Rollout(predictions={sorted(self.influence)}, tokens={tokens})"
