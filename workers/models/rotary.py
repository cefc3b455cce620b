"""Rotary positions whose frequencies follow the length of the input ("dynamic" scaling)."""

from __future__ import annotations

from typing import Any

from torch import nn

_CACHED = "max_seq_len_cached"


def forget_lengths(model: nn.Module) -> None:
    """Make every pass compute its frequencies from its own length, in place.

    transformers keeps those of the longest input so far, until an input is shorter than the
    original context. A model that stays in memory would then read a document otherwise after a
    longer one, and equal requests would give different numbers.
    """
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        named = kinds.values() if isinstance(kinds, dict) else [kinds]
        if hasattr(module, _CACHED) and any("dynamic" in str(kind) for kind in named):
            module.register_forward_pre_hook(_forget)


def _forget(module: nn.Module, _inputs: Any) -> None:
    for name in [one for one in vars(module) if one.endswith(_CACHED)]:
        setattr(module, name, 0)
