"""The models that Lacuna knows by name, and what a transformers configuration says of a model.

`architectures.json` has one entry for each model: its configuration as its authors published it,
and the hub ids and other names that mean it. An entry with a number of parameters is complete:
transformers can build the model from it, and a test compares the numbers. Such a model is a preset,
which can be profiled with random weights and no network. The other entries have only what theory
reads.

Configurations name the same thing differently; the lists below are the names in use.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any, Literal

from lacuna.contract.models import PositionalEncoding

DEMO = {"demo:smollm2-135m-instruct": "smollm2-135m"}
"""The models that come with the service, and the architecture of each."""
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_WIDTHS = ("hidden_size", "n_embd", "d_model")
_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "n_ctx")
_DEFAULT_LENGTHS = {"falcon": 2_048}
"""What transformers takes where a configuration of this model type names no length."""
_ROTARY = ("rope_theta", "rope_parameters", "rotary_dim", "rotary_pct")


@dataclass(frozen=True)
class KnownArchitecture:
    """One entry of the table.

    Args:
        name: lower case.
        aliases: hub ids and other names of the same model.
        parameters: None where `config` is not complete enough to build the model.
        config: as in the model's config.json.
    """

    name: str
    aliases: tuple[str, ...]
    parameters: int | None
    config: Mapping[str, Any]

    @cached_property
    def layers(self) -> int:
        """Decoder layers."""
        return layers(self.config)

    @cached_property
    def heads(self) -> int:
        """Query heads of a layer."""
        return heads(self.config)

    @cached_property
    def width(self) -> int:
        """Numbers in the residual stream of one token."""
        return _first_int(self.config, _WIDTHS) or 0

    @cached_property
    def window(self) -> int | None:
        """Keys that a layer with a sliding window sees; None where no layer has one."""
        if self.config.get("use_sliding_window") is False:
            return None
        return _first_int(self.config, ("sliding_window",))

    @cached_property
    def max_length(self) -> int | None:
        """Longest input in tokens; None where there is no limit (BLOOM)."""
        return max_length(self.config) or _DEFAULT_LENGTHS.get(self.config["model_type"])

    @cached_property
    def positional_encoding(self) -> PositionalEncoding:
        """`learned` where the configuration has a length and neither ALiBi nor rotations."""
        nested = self.config.get("attn_config", {})
        alibi = self.config.get("alibi", nested.get("alibi"))
        # BLOOM always has ALiBi, and its configuration does not say so.
        if alibi or (alibi is None and self.config["model_type"] == "bloom"):
            return "alibi"
        if any(self.config.get(name) for name in _ROTARY):
            return "rotary"
        return "learned" if self.max_length is not None else "other"

    @property
    def kernel(self) -> Literal["uniform", "alibi", "window"]:
        """The positional kernel at initialisation.

        Rotary and learned positions have the uniform one: they leave E[q.k] = 0.
        """
        if self.positional_encoding == "alibi":
            return "alibi"
        return "uniform" if self.window is None else "window"


@cache
def architectures() -> dict[str, KnownArchitecture]:
    """The table, by name."""
    return {
        name: KnownArchitecture(
            name=name,
            aliases=tuple(entry["aliases"]),
            parameters=entry.get("parameters"),
            config=entry["config"],
        )
        for name, entry in _read("architectures.json").items()
    }


def presets() -> dict[str, KnownArchitecture]:
    """The entries that transformers can build a model from, by name."""
    return {name: one for name, one in architectures().items() if one.parameters is not None}


def find(model: str) -> KnownArchitecture | None:
    """The architecture that a model id means: a name of the table, an alias, `preset:` or a demo.

    >>> find("openai-community/gpt2").layers
    12
    """
    name = DEMO.get(model, model.removeprefix("preset:").lower())
    for one in architectures().values():
        if name == one.name or model in one.aliases:
            return one
    return None


def find_preset(model: str) -> KnownArchitecture | None:
    """The preset that a model id means: `preset:NAME`, its bare name, or a hub id of it."""
    found = None if model in DEMO else find(model)
    return None if found is None or found.parameters is None else found


@cache
def measurable() -> tuple[str, ...]:
    """Model types of transformers that the test suite built and measured, sorted."""
    listed = _read("measurable.json")
    return tuple(sorted([*listed["full"], *listed["influence_only"]]))


def layers(config: object) -> int:
    """Number of decoder layers; 0 where the configuration does not say.

    Args:
        config: the dict of a config.json or an object of transformers, as in all of these.
    """
    return _first_int(config, _LAYERS) or 0


def heads(config: object) -> int:
    """Query heads per layer, the largest number where layers differ; 0 where it does not say."""
    return _first_int(config, _HEADS) or 0


def max_length(config: object) -> int | None:
    """Longest input in tokens that the configuration declares; None where it names no limit.

    Scaled rotary positions reach further than `max_position_embeddings`: to `max_sequence_length`
    where the configuration has it, else to the original length times the factor.
    """
    declared = _first_int(config, _LENGTHS)
    factor, original = _scaling(config)
    if declared is None or factor is None:
        return declared
    stated = _first_int(config, ("max_sequence_length",))
    return max(declared, stated or int((original or declared) * factor))


_SCALINGS = ("linear", "dynamic", "yarn")
"""Kinds of scaling whose configuration keeps the original length, as transformers asks for. Others
(llama3, longrope) state the length that they reach."""


def _scaling(config: object) -> tuple[float | None, int | None]:
    """Factor of the scaling of rotary positions that all layers share, and the original length."""
    for name in ("rope_scaling", "rope_parameters"):
        found = _field(config, name)
        if not isinstance(found, Mapping):
            continue
        factor, kind = found.get("factor"), found.get("rope_type", found.get("type"))
        if kind in _SCALINGS and isinstance(factor, int | float) and 1 < factor < math.inf:
            return factor, _first_int(found, ("original_max_position_embeddings",))
    return None, None


def _read(name: str) -> dict[str, Any]:
    text = resources.files("lacuna.architectures").joinpath(name).read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def _first_int(config: object, names: Sequence[str]) -> int | None:
    for name in names:
        value = _field(config, name)
        if isinstance(value, list | tuple) and value:
            value = max(value)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _field(config: object, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
