"""What can be measured here, and what the gateway knows about models without loading any."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from lacuna.contract.models import ModelCatalogue, PositionalEncoding, WorkerModels


class Architecture(NamedTuple):
    """What the gateway knows of a model without loading it."""

    layers: int
    heads: int
    width: int
    positional_encoding: PositionalEncoding = "rotary"
    window: int | None = None
    max_length: int | None = None
    """Longest input that its configuration declares; None where it names no limit (BLOOM)."""


DEMO: dict[str, Architecture] = {
    "demo:smollm2-135m-instruct": Architecture(30, 9, 576, max_length=8_192)
}
PRESETS: dict[str, Architecture] = {
    "bloom-560m": Architecture(24, 16, 1_024, "alibi"),
    "bloom-7b1": Architecture(30, 32, 4_096, "alibi"),
    "falcon-rw-1b": Architecture(24, 32, 2_048, "alibi", max_length=2_048),
    "gemma-2-2b": Architecture(26, 8, 2_304, window=4_096, max_length=8_192),
    "gpt2-xl": Architecture(48, 25, 1_600, "learned", max_length=1_024),
    "gpt2": Architecture(12, 12, 768, "learned", max_length=1_024),
    "llama-3-8b": Architecture(32, 32, 4_096, max_length=8_192),
    "mistral-7b": Architecture(32, 32, 4_096, window=4_096, max_length=32_768),
    "mpt-7b": Architecture(32, 32, 4_096, "alibi", max_length=2_048),
    "olmo-2-1b": Architecture(16, 16, 2_048, max_length=4_096),
    "opt-125m": Architecture(12, 12, 768, "learned", max_length=2_048),
    "phi-2": Architecture(32, 32, 2_560, max_length=2_048),
    "pythia-160m": Architecture(12, 12, 768, max_length=2_048),
    "qwen2-0.5b": Architecture(24, 14, 896, max_length=131_072),
    "qwen3-0.6b": Architecture(28, 16, 1_024, max_length=40_960),
    "smollm2-135m": Architecture(30, 9, 576, max_length=8_192),
    "tinyllama-1.1b": Architecture(22, 32, 2_048, max_length=2_048),
}
"""The workers' presets; a test compares them with the configurations themselves."""
PUBLISHED: dict[str, str] = {
    "bigscience/bloom-560m": "bloom-560m",
    "bigscience/bloom-7b1": "bloom-7b1",
    "tiiuae/falcon-rw-1b": "falcon-rw-1b",
    "google/gemma-2-2b": "gemma-2-2b",
    "openai-community/gpt2-xl": "gpt2-xl",
    "openai-community/gpt2": "gpt2",
    "meta-llama/Meta-Llama-3-8B": "llama-3-8b",
    "mistralai/Mistral-7B-v0.1": "mistral-7b",
    "mosaicml/mpt-7b": "mpt-7b",
    "allenai/OLMo-2-0425-1B": "olmo-2-1b",
    "facebook/opt-125m": "opt-125m",
    "microsoft/phi-2": "phi-2",
    "EleutherAI/pythia-160m": "pythia-160m",
    "Qwen/Qwen2-0.5B": "qwen2-0.5b",
    "Qwen/Qwen3-0.6B": "qwen3-0.6b",
    "HuggingFaceTB/SmolLM2-135M": "smollm2-135m",
    "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T": "tinyllama-1.1b",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": "tinyllama-1.1b",
}
"""Hub ids whose architecture is a preset's."""


@cache
def architectures() -> tuple[str, ...]:
    """Model types of transformers that can be measured, as the test suite found by trying them."""
    listed = json.loads(Path(__file__).with_name("architectures.json").read_text())
    return tuple(sorted([*listed["full"], *listed["influence_only"]]))


def preset(model: str) -> str | None:
    """Name of the preset that a model id means: `preset:NAME`, its bare name, or a hub id of it."""
    name = PUBLISHED.get(model, model.removeprefix("preset:").lower())
    return name if name in PRESETS else None


def known(model: str) -> Architecture | None:
    """The architecture of a model that is known by name."""
    name = preset(model)
    return DEMO.get(model) if name is None else PRESETS[name]


def catalogue(workers: Sequence[WorkerModels]) -> ModelCatalogue:
    """The catalogue, with the workers that live now."""
    return ModelCatalogue(
        demo=list(DEMO),
        presets=[f"preset:{name}" for name in PRESETS],
        architectures=list(architectures()),
        workers=list(workers),
    )
