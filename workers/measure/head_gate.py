"""Lets one head at a time through, whatever the attention's code looks like.

In a prompt of one token every softmax is 1 and attention hands on the token's own value: the
branch is its value path alone. Multiplying the softmax (or a fused attention's output) of each
document by 0 or 1 per head then isolates a head without knowing how heads are projected.

A norm layer BEHIND the attention has its own gain at what attention really mixed, not at one
token's value. So the output (of a fused attention, or of the product of softmax and values) can be
replaced by that mix for the value of the pass, while its gradient stays the token's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

WorkingPoint = Callable[[int, Tensor], Tensor]
"""(attention operation, values [B, H, d_v]) -> what attention outputs in their place."""
_CARRIED = frozenset({"dropout", "to", "type_as", "type", "float", "view", "reshape"})
_PRODUCTS = frozenset({"matmul", "bmm", "__matmul__"})
_SOFTMAX = frozenset({"softmax", "_softmax", "softmax_int"})


class HeadGate(TorchFunctionMode):
    """For passes over [B, 1] ids: document b keeps head ``heads[b]``, or all of them for -1.

    ``calls`` counts the attention operations that were gated. ``mix`` gives the outputs at which
    what follows works.
    """

    def __init__(self, heads: Tensor, mix: WorkingPoint | None = None) -> None:
        super().__init__()
        self._heads = heads
        self._mix = mix
        self._weights: list[Tensor] = []  # the last softmax, and what became of it
        self.calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation; gate it if it is attention."""
        out = func(*args, **(kwargs or {}))
        if not isinstance(out, Tensor):
            return out
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention" and out.dim() == 4 and _one_key(args, kwargs):
            self.calls += 1  # [B, H, 1, d_v], or [B, G, H/G, d_v] where heads share keys
            gate = self._gate(out.shape[1] * out.shape[2], out)
            return self._mixed(out * gate.reshape(*out.shape[:3], 1))
        if name in _SOFTMAX and out.dim() in (3, 4) and out.shape[-2] == 1 == out.shape[-1]:
            batch = self._heads.numel()
            if out.shape[0] % batch == 0:
                self.calls += 1
                gated = out * self._gate(out.numel() // batch, out).reshape(out.shape)
                self._weights = [gated]
                return gated
        if args and any(args[0] is weights for weights in self._weights):
            if name in _CARRIED:
                self._weights.append(out)
            elif name in _PRODUCTS:
                self._weights = []
                return self._mixed(out)
        return out

    def _mixed(self, gated: Tensor) -> Tensor:
        """The mix for the value, the operand for the gradient; [B, H, 1, d_v] or [B*H, 1, d_v]."""
        if self._mix is None:
            return gated
        values = gated.detach().reshape(self._heads.numel(), -1, gated.shape[-1])
        mixed = self._mix(self.calls - 1, values).to(gated.dtype)
        return gated - gated.detach() + mixed.reshape(gated.shape)

    def _gate(self, heads: int, like: Tensor) -> Tensor:
        """[B, heads] of 0 and 1 in the operation's type."""
        each = torch.arange(heads, device=like.device)
        chosen = self._heads.to(like.device)[:, None]
        return ((chosen == each) | (chosen < 0)).to(like.dtype)


def _one_key(args: Any, kwargs: dict[str, Any] | None) -> bool:
    """Whether a fused attention sees one key, however its queries are packed."""
    key = args[1] if len(args) > 1 else (kwargs or {})["key"]
    return bool(key.shape[-2] == 1)
