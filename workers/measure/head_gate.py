"""Lets one head at a time through, whatever the attention's code looks like.

In a prompt of one token every softmax is 1 and attention hands on the token's own value: the
branch is its value path alone. Multiplying the softmax (or a fused attention's output) of each
document by 0 or 1 per head then isolates a head without knowing how heads are projected.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_SOFTMAX = frozenset({"softmax", "_softmax", "softmax_int"})


class HeadGate(TorchFunctionMode):
    """For passes over [B, 1] ids: document b keeps head ``heads[b]``, or all of them for -1.

    ``calls`` counts the attention operations that were gated.
    """

    def __init__(self, heads: Tensor) -> None:
        super().__init__()
        self._heads = heads
        self.calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation; gate it if it is attention."""
        out = func(*args, **(kwargs or {}))
        if not isinstance(out, Tensor):
            return out
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention" and out.dim() == 4 and out.shape[-2] == 1:
            self.calls += 1
            return out * self._gate(out.shape[1], out)[:, :, None, None]
        if name in _SOFTMAX and out.dim() in (3, 4) and out.shape[-2] == 1 == out.shape[-1]:
            batch = self._heads.numel()
            if out.shape[0] % batch == 0:
                self.calls += 1
                gate = self._gate(out.numel() // batch, out)
                return out * gate.reshape(out.shape)
        return out

    def _gate(self, heads: int, like: Tensor) -> Tensor:
        """[B, heads] of 0 and 1 in the operation's type."""
        each = torch.arange(heads, device=like.device)
        chosen = self._heads.to(like.device)[:, None]
        return ((chosen == each) | (chosen < 0)).to(like.dtype)
