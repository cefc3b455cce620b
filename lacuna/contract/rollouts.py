"""Rollout requests and answers: theory from architecture parameters alone, without a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from lacuna.contract.base import Fraction, Wire
from lacuna.contract.profile_requests import PREDICTION_NAMES, PredictionName
from lacuna.contract.profiles import MAX_BINS, Collapse, DeadZone, Force, Shape

MAX_LENGTH = 1_048_576
MAX_UNBINNED_LENGTH = 16_384
"""Longer curves are answered in bins."""
MAX_LAYERS = 65_536
MAX_HEADS = 1_024
MAX_SLOPE = 1e3
MAX_LOGIT = 1e5
MAX_PROFILE_LENGTH = 16_384
MAX_MEASURED_LENGTH = 1_024

ArchitectureName = Literal[
    "bloom-560m",
    "bloom-7b1",
    "bloom-176b",
    "gpt2",
    "gpt2-medium",
    "gpt2-large",
    "gpt2-xl",
    "llama-2-7b",
    "llama-2-13b",
    "llama-2-70b",
    "llama-3-8b",
    "llama-3-70b",
    "mistral-7b-v0.1",
    "mistral-7b-v0.3",
    "mpt-7b",
    "mpt-30b",
    "pythia-160m",
    "pythia-6.9b",
    "qwen2-0.5b",
    "qwen2-7b",
    "smollm2-135m",
]
"""Names of `lacuna.architectures.table` whose layers all have one kernel."""
ARCHITECTURE_NAMES: tuple[ArchitectureName, ...] = get_args(ArchitectureName)

_Slope = Annotated[float, Field(ge=0, le=MAX_SLOPE)]
_Logit = Annotated[float, Field(ge=-MAX_LOGIT, le=MAX_LOGIT)]
_Gain = Annotated[float, Field(ge=0, le=1e6)]
# A long list of numbers reports its first fault alone: a million of them would take seconds. In
# unions lists come first, since pydantic copies the whole list for each member that it is not.
_PerLayer = Field(fail_fast=True, min_length=1, max_length=MAX_LAYERS)
_Slopes = Annotated[list[_Slope], _PerLayer]
_Logits = Annotated[list[_Logit], _PerLayer]
_SlopesByLayer = Annotated[list[_Slopes], _PerLayer]
_LogitLists = Annotated[list[_Logits], _PerLayer]
_Row = Annotated[list[Fraction], Field(fail_fast=True, min_length=1, max_length=MAX_LENGTH)]
_Attention = Annotated[float, Field(ge=0, le=1.001)]
_AttentionRow = Annotated[list[_Attention], Field(fail_fast=True, max_length=MAX_MEASURED_LENGTH)]
_Matrix = Annotated[list[_AttentionRow], Field(fail_fast=True, max_length=MAX_MEASURED_LENGTH)]


class KernelSpec(Wire):
    """How attention weighs the tokens that it sees, by position alone."""

    type: Literal["uniform", "alibi", "window", "distance", "measured"] = "uniform"
    """`window` is a sliding window, with ALiBi where `slopes` are given."""
    slopes: _Slopes | _SlopesByLayer | Literal["standard", "geometric"] | None = None
    """ALiBi slopes: `standard` (as published), `geometric` (2^(-8(h+1)/heads) for any number of
    heads), one per head, one per layer, or one list per layer. Default: `standard` for `alibi`."""
    window: int | None = Field(default=None, ge=1, le=MAX_LENGTH)
    """How many tokens a token sees, itself included."""
    bias: _Logits | _LogitLists | None = None
    """For `distance`: logits at distances 0, 1, ...; or one such list per head. The last logit
    holds for all longer distances."""
    sink_bias: _Logit | None = None
    """For `distance`: added to the logits of the first token."""
    matrices: Annotated[list[_Matrix], Field(fail_fast=True, max_length=MAX_LAYERS)] | None = None
    """For `measured`: one head-averaged attention matrix for all layers, or one per layer."""
    temperature: float = Field(default=1.0, ge=1e-3, le=1e6)
    """Divides all logits."""
    head_weights: (
        Annotated[list[_Gain], Field(fail_fast=True, min_length=1, max_length=MAX_HEADS)] | None
    ) = None
    """Weights of the heads' mean; default: equal."""

    @model_validator(mode="after")
    def _fields_fit_the_type(self) -> Self:
        if self.type == "window" and self.window is None:
            raise ValueError("`window` is required by kernel type `window`")
        if self.type in {"uniform", "measured"} and self.window is not None:
            raise ValueError(f"`window` does not go with kernel type `{self.type}`")
        slopes_fit = self.slopes in (None, "standard") or self.type in {"alibi", "window"}
        if not slopes_fit:
            raise ValueError(f"`slopes` do not go with kernel type `{self.type}`")
        if (self.type == "distance") != (self.bias is not None):
            raise ValueError("`bias` goes with kernel type `distance`, and only with it")
        if self.type != "distance" and self.sink_bias is not None:
            raise ValueError("`sink_bias` goes with kernel type `distance` only")
        if (self.type == "measured") != (self.matrices is not None):
            raise ValueError("`matrices` go with kernel type `measured`, and only with it")
        return self


class MaskSpec(Wire):
    """Which tokens a token can see."""

    type: Literal["causal", "full", "prefix"] = "causal"
    prefix: int | None = Field(default=None, ge=0, le=MAX_LENGTH)
    """Length of the part that every token sees, for `prefix`."""

    @model_validator(mode="after")
    def _prefix_fits(self) -> Self:
        if (self.type == "prefix") != (self.prefix is not None):
            raise ValueError("`prefix` goes with mask type `prefix`, and only with it")
        return self


class ContentSpec(Wire):
    """Mean pre-softmax content logits."""

    diagonal: _Logits | _LogitLists | _Logit = 0.0
    """Logit of a token with itself, less its mean with others: one number, one per head, one per
    layer, or one list of heads per layer."""
    scale: float = Field(default=1.0, ge=0, le=1e3)
    """Multiplies `diagonal`: 1/sqrt(head width) turns raw products q.k into the model's logits."""


class ConstantMixing(Wire):
    """The same lambda in every layer."""

    type: Literal["constant"] = "constant"
    value: Fraction = 0.1


class PowerLawMixing(Wire):
    """lambda_t = initial / (t + 1)^exponent."""

    type: Literal["power_law"]
    initial: Fraction
    exponent: float = Field(ge=0, le=100)


class ListMixing(Wire):
    """One lambda per layer, bottom to top."""

    type: Literal["list"]
    lambdas: Annotated[list[Fraction], _PerLayer]


class TokenMixing(Wire):
    """One lambda per layer and token."""

    type: Literal["by_token"]
    lambdas: Annotated[list[_Row], _PerLayer]


MixingSpec = Annotated[
    ConstantMixing | PowerLawMixing | ListMixing | TokenMixing, Field(discriminator="type")
]


class GainSpec(Wire):
    """Gains that the second-moment prediction needs besides lambda.

    It takes lambda for attention's share at token 0, so that lambda/(1 - lambda) is the gain of the
    value path."""

    mlp: Annotated[list[_Gain], Field(fail_fast=True, max_length=MAX_LAYERS)] | _Gain = 0.0
    """Squared gain of the MLP branch at token 0, for all layers or per layer. 0 leaves out the MLP
    and the tokens' scales, which cancel in part."""
    mlp_coherence: Fraction = 0.5
    """Correlation of the MLP's derivative at unrelated tokens."""


class RolloutRequest(Wire):
    """What POST /v1/rollouts takes; `layers` or an `architecture` is enough."""

    architecture: ArchitectureName | None = None
    """Fills in `layers`, `heads` and `kernel` where they are not given."""
    layers: int | None = Field(default=None, ge=1, le=MAX_LAYERS)
    """Default: from `architecture`, or the length of a list of lambdas."""
    heads: int | None = Field(default=None, ge=1, le=MAX_HEADS)
    """Default: from `architecture` or the lists given, else 1 (ALiBi: 16)."""
    sequence_length: int = Field(default=256, ge=1, le=MAX_LENGTH)
    kernel: KernelSpec | None = None
    mask: MaskSpec = MaskSpec()
    content: ContentSpec = ContentSpec()
    mixing: MixingSpec = ConstantMixing()
    """How much of each layer's output is attention. In trained models it sums to about 4 over the
    layers."""
    predictions: (
        Annotated[
            list[PredictionName],
            Field(fail_fast=True, min_length=1, max_length=len(PREDICTION_NAMES)),
        ]
        | None
    ) = None
    """Default: `attention_only`, `residual`, `residual_content`, `cesaro`; and `measured_kernel`
    for measured kernels."""
    gains: GainSpec = GainSpec()
    threshold: float = Field(default=0.75, gt=0, le=1e6)
    """Density below which a position counts as dead; 1 is uniform."""
    bins: int | None = Field(default=None, ge=1, le=MAX_BINS)
    """Answer curves as the masses of this many equal intervals. Required above 16,384 positions."""

    @model_validator(mode="after")
    def _fields_fit_each_other(self) -> Self:
        if self.predictions is not None and len(set(self.predictions)) != len(self.predictions):
            raise ValueError("`predictions` names one twice")
        if self.bins is None and self.sequence_length > MAX_UNBINNED_LENGTH:
            raise ValueError(
                f"`bins` is required when `sequence_length` exceeds {MAX_UNBINNED_LENGTH}"
            )
        if self.bins is not None and self.bins > self.sequence_length:
            raise ValueError("`bins` must not exceed `sequence_length`")
        return self


class RolloutPrediction(Wire):
    """One theoretical curve, in full float64."""

    influence: list[float]
    """Per position, or per bin; sums to 1."""
    mean_position: Fraction
    """Mean of position/(n-1): 0 = first token, 1 = last."""
    dead_zone: DeadZone | None
    """In tokens, even if the curve is binned."""
    shape: Shape


class DepthWidth(Wire):
    """Width of the dead zone at one depth, as a fraction of the prompt."""

    layers: int
    width: Fraction


class CesaroReport(Wire):
    """The closed form for uniform kernels with one mixing coefficient, the mean lambda."""

    layers: int
    a: Fraction
    positions: list[float]
    """Relative positions p in (0, 1]."""
    density: list[float]
    """Continuum density at `positions`; 1 is uniform."""
    atom: Fraction
    """Recency delta: the mass (1-a)^layers that stays on the last token."""
    primacy_tail_mass: Fraction
    dead_zone_mass: Fraction
    dead_zone_start: Fraction
    """Relative position from which the density stays below `threshold`; 1 when it never does."""
    dead_zone_width: Fraction
    floor: float
    """Least density, next to the end: layers * a * (1-a)^(layers-1)."""
    attention_only_dead_zone_start: Fraction
    """The same boundary without a residual stream, exp(-(threshold (H-1)!)^(1/(H-1)))."""
    width_by_depth: list[DepthWidth]


class KernelMonotonicity(Wire):
    """Whether a given kernel is stochastically monotone, as the depth-limit theorem assumes."""

    layer: int
    violation: float
    monotone: bool


class RolloutResponse(Wire):
    """Answer of POST /v1/rollouts."""

    architecture: ArchitectureName | None
    sequence_length: int
    layers: int
    heads: int
    bins: int | None
    predictions: dict[str, RolloutPrediction]
    forces: list[Force]
    """Causal mask, residual stream, positional encoding and content, one after another."""
    collapse: Collapse
    """Of the residual rollout, with content where there is any."""
    cesaro: CesaroReport
    monotone: list[KernelMonotonicity] | None = None
    summary: list[str]
    """What this means for someone who writes a prompt, in sentences."""
    assumptions: list[str]
    """What was assumed where the request did not say."""

    def __repr_args__(self) -> Iterator[tuple[str, object]]:
        """The sizes and the names of the curves, without their numbers."""
        yield "architecture", self.architecture
        yield "layers", self.layers
        yield "heads", self.heads
        yield "tokens", self.sequence_length
        yield "predictions", list(self.predictions)
