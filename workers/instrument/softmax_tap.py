"""Path B: models with their own eager attention (BLOOM, MPT, XGLM, GPT-Neo, OpenAI GPT, ...).

They ignore the attention interface; some accept a foreign implementation and then compute with a
wrong mask. Here the softmax itself is watched, with the matrix product in front of it. What the
softmax sees, less the scaled content, is the model's positional bias.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from workers.instrument.attention import AttentionCall, BatchShape, Observer, feed, visible_scores
from workers.instrument.sites import recomputing
from workers.instrument.tracker import is_core

_PRODUCTS = frozenset({"bmm", "baddbmm", "matmul", "mm"})


class SoftmaxTap(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Reports every softmax over a matrix of ``shape.length`` queries and keys to ``observer``."""

    def __init__(self, observer: Observer, shape: BatchShape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._observer = observer
        self._shape = shape
        self._product: tuple[Tensor, Tensor] | None = None
        self._scores: Tensor | None = None
        self._scaling = 1.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, then look at it."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        n = self._shape.length
        if isinstance(out, Tensor) and out.dim() >= 3 and out.shape[-2] == n:
            name = func.overloadpacket.__name__
            if is_core(name, args, out, n):
                if not recomputing():
                    self._report(args[0], out)
            elif out.shape[-1] == n:
                self._content(name, args, kwargs, out)
        return out

    def _content(self, name: str, args: Any, kwargs: dict[str, Any], out: Tensor) -> None:
        """Follow the scores from the product of queries and keys to the softmax."""
        if name in _PRODUCTS:
            self._product = (args[1], args[2]) if name == "baddbmm" else (args[0], args[1])
            self._scaling = float(kwargs.get("alpha", 1.0)) if name == "baddbmm" else 1.0
            self._scores = out
        elif self._scores is not None and args[0] is self._scores:
            by = args[1] if len(args) > 1 else 1.0
            number = not isinstance(by, Tensor) or by.numel() == 1
            if name.rstrip("_") in ("mul", "div") and number:
                factor = float(by)
                self._scaling *= factor if name.startswith("mul") else 1.0 / factor
            self._scores = out

    @torch.no_grad()
    def _report(self, logits: Tensor, weights: Tensor) -> None:
        assert self._product is not None
        if weights.dtype.itemsize < 4:  # every weight is rounded: rows would not sum to one
            weights = torch.softmax(logits.float(), -1)
        n, batch = self._shape.length, self._shape.batch
        query, key = self._product
        query = query.reshape(batch, -1, n, query.shape[-1])
        key = key.reshape(batch, -1, key.shape[-2], n).transpose(-1, -2)
        heads = query.shape[1]
        logits = logits.reshape(batch, heads, n, -1)[..., :n]
        visible = visible_scores(logits[:1, :1])
        call = AttentionCall(
            number=self._shape.next(),
            query=query,
            key=key,
            scaling=self._scaling,
            mask=visible,
            formed=weights.reshape(batch, heads, n, -1)[..., :n],
        )
        call.observed_bias = _bias(call, logits)
        self._product = self._scores = None
        feed(self._observer, call)


def _bias(call: AttentionCall, logits: Tensor) -> Tensor:
    """What stands in the logits beside the content, [H, 2, n]: last row and middle row."""
    rows = [call.length - 1, call.length // 2]
    content = torch.cat([call.scores(row, row + 1) for row in rows], dim=2)
    return (logits[0, :, rows].float() - content[0]).masked_fill(
        ~call.visible(0, call.length)[0, :, rows], torch.nan
    )
