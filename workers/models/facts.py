"""What a model is, read from its configuration and modules: the fields of a ModelDescription.

Nothing here decides how a model is measured (`workers.instrument` discovers that): these are
labels, and the longest input. `lacuna.architectures.table` reads the configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from transformers import PreTrainedModel

from lacuna.architectures.table import heads, layers, max_length
from lacuna.contract.errors import TooLong
from workers.models.loaded import LoadedModel


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
    """Fields of `lacuna.contract.models.ModelDescription`, by name; all but its positions."""
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
        "max_length": max_length(config),
        "attention_implementation": str(getattr(config, "_attn_implementation", None) or "eager"),
        "block": instrumentation.block,
        "support": instrumentation.level,
        "support_notes": [*instrumentation.reasons, *instrumentation.warnings],
        "tokenizer_digest": loaded.tokenizer_digest,
    }


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


def _embeddings(model: PreTrainedModel) -> Any:
    return model.get_input_embeddings()
