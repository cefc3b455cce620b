"""A model in memory, ready to be measured."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class LoadedModel:
    """An evaluated, frozen model with its tokenizer.

    Attributes:
        model: in eval mode, no parameter requires a gradient.
        tokenizer: None when the source has none (presets): then only random tokens can be read.
        id: as asked for.
        revision: commit of a hub model, content digest of a local folder, file digest of a demo;
            None for random weights.
        config_digest: SHA-256 (40 hex characters) of the configuration that was built.
        device: of the input embeddings.
        dtype: of the weights.
        weights: "pretrained" or "random".
        seed: of random weights, else None.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    id: str
    revision: str | None
    config_digest: str
    device: torch.device
    dtype: torch.dtype
    weights: str
    seed: int | None

    @property
    def text_config(self) -> Any:
        """Configuration of the language model, also inside a multimodal wrapper."""
        return self.model.config.get_text_config()

    @cached_property
    def tokenizer_json(self) -> str | None:
        """The tokenizer in the format of the `tokenizers` library; None for slow tokenizers."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        return None if backend is None else str(backend.to_str())

    @cached_property
    def tokenizer_digest(self) -> str | None:
        """SHA-256 (32 hex characters) of `tokenizer_json`, or of a slow tokenizer's vocabulary."""
        if self.tokenizer is None:
            return None
        text = self.tokenizer_json
        if text is None:
            text = repr((type(self.tokenizer).__name__, sorted(self.tokenizer.get_vocab().items())))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def parameters(self) -> int:
        """Number of parameters; tied ones count once."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def nbytes(self) -> int:
        """Memory of weights and buffers."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
