"""Path C: models that call scaled_dot_product_attention themselves (Falcon).

Watching is passive. Falcon with ALiBi cannot be measured in eager mode: transformers adds its bias
twice there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from workers.instrument.attention import AttentionCall, BatchShape, Observer, feed, split_mask
from workers.instrument.sites import recomputing

_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


class SdpaTap(TorchFunctionMode):
    """Reports every fused attention call over equally many queries and keys to ``observer``."""

    def __init__(self, observer: Observer, shape: BatchShape) -> None:
        super().__init__()
        self._observer = observer
        self._shape = shape

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Look, then run the call unchanged."""
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention and not recomputing():
            given = dict(zip(_NAMES, args, strict=False)) | kwargs
            query, key = given["query"], given["key"]
            if query.dim() == 4 and query.shape[-2] == key.shape[-2]:
                with torch.no_grad():
                    feed(self._observer, self._call(query, key, given))
        return func(*args, **kwargs)

    def _call(self, query: Tensor, key: Tensor, given: dict[str, Any]) -> AttentionCall:
        visible, bias = split_mask(given.get("attn_mask"), key.shape[2])
        scale = given.get("scale")
        return AttentionCall(
            number=self._shape.next(),
            query=query.detach(),
            key=key.detach(),
            scaling=float(query.shape[-1] ** -0.5 if scale is None else scale),
            mask=visible,
            causal=bool(given.get("is_causal", False)),
            bias=bias,
        )
