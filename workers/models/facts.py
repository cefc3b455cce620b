"""What a model is, read from its configuration and modules: the fields of a ModelDescription.

Configurations name the same thing differently; the lists below are the names in use. Nothing here
decides how a model is measured (that is discovered, see `workers.instrument`): these are labels,
and the longest input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import nn
from transformers import PreTrainedModel

from lacuna.contract.errors import TooLong
from lacuna.contract.models import PositionalEncoding
from workers.models.loaded import LoadedModel

_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "n_ctx")
_WINDOWS = ("sliding_window", "window_size", "attention_window_size", "attention_chunk_size")
_LOCAL_LAYERS = ("sliding", "chunked", "local")


class Inspected(Protocol):
    """What is used here of the instrumentation found for a model."""

    @property
    def level(self) -> str:
        """ "full" or "influence_only"."""

    @property
    def block(self) -> str:
        """How attention and MLP join the stream."""

    @property
    def reasons(self) -> Sequence[str]:
        """Why the level is not "full"."""

    @property
    def warnings(self) -> Sequence[str]:
        """What to know when reading the result."""

    @property
    def attention_layers(self) -> int:
        """Layers with softmax attention."""


def describe(loaded: LoadedModel, instrumentation: Inspected) -> dict[str, Any]:
    """Fields of `lacuna.contract.models.ModelDescription`, by name."""
    model, config = loaded.model, loaded.text_config
    return {
        "id": loaded.id,
        "revision": loaded.revision,
        "architecture": str(model.config.model_type),
        "layers": layers(config),
        "attention_layers": instrumentation.attention_layers,
        "heads": heads(config),
        "width": width(model),
        "vocabulary": vocabulary(model),
        "parameters": loaded.parameters,
        "positional_encoding": positional_encoding(model),
        "window": window(config),
        "max_length": max_length(config),
        "attention_implementation": str(getattr(config, "_attn_implementation", None) or "eager"),
        "block": instrumentation.block,
        "support": instrumentation.level,
        "support_notes": [*instrumentation.reasons, *instrumentation.warnings],
        "tokenizer_digest": loaded.tokenizer_digest,
    }


def layers(config: Any) -> int:
    """Number of decoder layers."""
    return _first_int(config, ("num_hidden_layers", "n_layer", "n_layers", "num_layers")) or 0


def heads(config: Any) -> int:
    """Query heads per layer; the largest number where layers differ."""
    return _first_int(config, ("num_attention_heads", "n_head", "n_heads", "num_heads")) or 0


def width(model: PreTrainedModel) -> int:
    """Width of the input embeddings."""
    return int(_embeddings(model).embedding_dim)


def vocabulary(model: PreTrainedModel) -> int:
    """Rows of the input embeddings: ids at or above it cannot be read."""
    return int(_embeddings(model).num_embeddings)


def scores(model: PreTrainedModel) -> int:
    """Rows of the LM head: only ids below it have logits."""
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    weight = getattr(head, "weight", None)
    return vocabulary(model) if weight is None else int(weight.shape[0])


def max_length(config: Any) -> int | None:
    """Longest input that the configuration declares; None when it names no limit (BLOOM)."""
    return _first_int(config, _LENGTHS)


def check_length(model: str, config: Any, length: int, field: str = "sequence_length") -> None:
    """Refuse inputs longer than the model's position table or declared context.

    Raises:
        TooLong: naming the limit.
    """
    limit = max_length(config)
    if limit is not None and length > limit:
        raise TooLong(
            f"`{field}`: {length} tokens are more than the {limit} that {model} can take",
            field=field,
        )


def window(config: Any) -> int | None:
    """Sliding-window (or chunk) length in keys, if any layer has one."""
    if getattr(config, "use_sliding_window", None) is False:
        return None
    kinds = _layer_kinds(config)
    if kinds and not any(kind.startswith(_LOCAL_LAYERS) for kind in kinds):
        return None
    return _first_int(config, _WINDOWS)


def positional_encoding(model: PreTrainedModel) -> PositionalEncoding:
    """How the model knows where a token stands."""
    config = model.config.get_text_config()
    if _uses_alibi(config):
        return "alibi"
    names = {type(module).__name__.lower() for module in model.modules()}
    fields = ("rope_parameters", "rotary_dim")  # GPT-J keeps its rotations in a buffer
    if any("rotary" in name for name in names) or any(getattr(config, f, None) for f in fields):
        return "rotary"
    if any("sinusoidal" in name for name in names):
        return "sinusoidal"
    if any("relative" in name for name in names) or hasattr(
        config, "relative_attention_num_buckets"
    ):
        return "relative"
    if _has_position_table(model, max_length(config)):
        return "learned"
    return "other"


def _uses_alibi(config: Any) -> bool:
    nested = getattr(config, "attn_config", None)
    declared = getattr(config, "alibi", getattr(nested, "alibi", None))
    return config.model_type == "bloom" if declared is None else bool(declared)


def _has_position_table(model: PreTrainedModel, length: int | None) -> bool:
    tokens = _embeddings(model)
    # OPT and its kin keep two rows in front of the table.
    return length is not None and any(
        isinstance(module, nn.Embedding)
        and module is not tokens
        and module.num_embeddings in (length, length + 1, length + 2)
        for module in model.modules()
    )


def _layer_kinds(config: Any) -> list[str]:
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    return [str(kind) for kind in kinds] if isinstance(kinds, (list, tuple)) else []


def _embeddings(model: PreTrainedModel) -> Any:
    return model.get_input_embeddings()


def _first_int(config: Any, names: Sequence[str]) -> int | None:
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, (list, tuple)) and value:
            value = max(value)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
