"""Architectures that rollouts know by name: layers, heads and positional kernel."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Architecture(NamedTuple):
    """What a named architecture stands for."""

    layers: int
    heads: int
    kernel: Literal["uniform", "alibi", "window"]
    window: int | None = None


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
ARCHITECTURES: dict[ArchitectureName, Architecture] = {
    "bloom-560m": Architecture(24, 16, "alibi"),
    "bloom-7b1": Architecture(30, 32, "alibi"),
    "bloom-176b": Architecture(70, 112, "alibi"),
    "gpt2": Architecture(12, 12, "uniform"),
    "gpt2-medium": Architecture(24, 16, "uniform"),
    "gpt2-large": Architecture(36, 20, "uniform"),
    "gpt2-xl": Architecture(48, 25, "uniform"),
    "llama-2-7b": Architecture(32, 32, "uniform"),
    "llama-2-13b": Architecture(40, 40, "uniform"),
    "llama-2-70b": Architecture(80, 64, "uniform"),
    "llama-3-8b": Architecture(32, 32, "uniform"),
    "llama-3-70b": Architecture(80, 64, "uniform"),
    "mistral-7b-v0.1": Architecture(32, 32, "window", 4_096),
    "mistral-7b-v0.3": Architecture(32, 32, "uniform"),
    "mpt-7b": Architecture(32, 32, "alibi"),
    "mpt-30b": Architecture(48, 64, "alibi"),
    "pythia-160m": Architecture(12, 12, "uniform"),
    "pythia-6.9b": Architecture(32, 32, "uniform"),
    "qwen2-0.5b": Architecture(24, 14, "uniform"),
    "qwen2-7b": Architecture(28, 28, "uniform"),
    "smollm2-135m": Architecture(30, 9, "uniform"),
}
"""Rotary and learned positions have the uniform kernel: they leave E[q.k] = 0 at initialisation."""
