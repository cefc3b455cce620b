"""Token ids of the documents, and what is known of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DocumentSet:
    """K documents of n tokens.

    Attributes:
        ids: int64 tensor of shape [K, n], on the CPU.
        leading_bos: whether the tokenizer's own policy put a BOS token first.
        source: what they were made of in the end: "builtin", "random_tokens", "inline", "corpus".
        warnings: what the reader of the result should know.
    """

    ids: Tensor
    leading_bos: bool
    source: str
    warnings: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 (32 hex characters) of the shape and of all ids in little-endian int64."""
        count, length = self.ids.shape
        content = self.ids.to(torch.int64).numpy().astype("<i8").tobytes()
        return hashlib.sha256(f"{count} {length}\n".encode() + content).hexdigest()[:32]
