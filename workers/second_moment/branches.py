"""Lets one head at a time through, whatever the attention's code looks like.

In a prompt of one token every softmax is 1 and attention hands on the token's own value: the
branch is its value path alone. Multiplying the softmax (or a fused attention's output) of each
document by 0 or 1 per head then isolates a head without knowing how heads are projected.

A norm layer BEHIND the attention has its own gain at what attention really mixed, not at one
token's value. So the output (of a fused attention, or of the product of softmax and values) can be
replaced by that mix for the value of the pass, while its gradient stays the token's own.

Squared gains of a layer's branches at every token, measured without naming a parameter.

In a prompt of ONE token attention is the identity. A batch of one-token prompts, into which the
document's own streams and attention updates are put back layer by layer, therefore shows each
branch alone at its true working point: from the stream to the update the value path, from the
update to the next stream the rest of the layer (MLP, norms, multipliers). Cotangents v pulled back
through them give the gains that `lacuna.theory.second_moment` multiplies.

The cotangents come from `columns`. The part of v along the token's outgoing stream is removed (the
later norm layers do that; attention sinks have most of their gain there).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from lacuna.theory.curve import F64
from workers.influence.passes import gradients
from workers.instrument import Site
from workers.second_moment import columns
from workers.second_moment.columns import Cotangents, Streams, flat, unit

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


Mix = Callable[[int, Tensor], Tensor]
"""(attention operation, values of the m tokens [m, H, d_v]) -> its outputs there, same shape."""


@dataclass(frozen=True)
class Gains:
    """What was measured at m tokens.

    Attributes:
        local: T-1 matrices F64[m, m]: E b_j . b_k relative to v_j . v_k, with b the cotangent of
            the next site's stream pulled back to this site's update (I + MLP branch).
        draw: F64[T, m], gain of the value path from each token, all heads together.
        row: F64[T, m], relative gain at each token that attends, of a norm layer behind the
            attention; 1 where there is none.
        gram: F64[T, H+1, H+1], Gram matrix of the identity and of the heads' value paths at
            `draw` 1; None when no tokens were given for it.
    """

    local: list[F64]
    draw: F64
    row: F64
    gram: F64 | None


def _pulled(output: Tensor, source: Tensor, cotangent: Tensor) -> Tensor:
    """The cotangent of ``output`` pulled back to ``source``, float32 [tokens, d]."""
    shaped = cotangent.reshape(output.shape).to(output.dtype)
    (found,) = gradients(output, [source], shaped, again=True)
    return flat(found).float()


def measure(
    model: PreTrainedModel,
    sites: Sequence[Site],
    ids: Tensor,
    streams: Streams,
    cotangents: Cotangents,
    *,
    heads: int,
    gram_tokens: Tensor | None,
    mix: Mix | None,
    apart_from_rows: bool,
    probes: int,
    generator: torch.Generator,
    check: Callable[[], None],
) -> Gains:
    """Pull cotangents back through every branch at every token.

    Args:
        model: frozen.
        sites: of the model.
        ids: [m, 1], the tokens themselves.
        streams: of these tokens.
        cotangents: from `columns`.
        heads: H, the most heads of any site.
        gram_tokens: indices into the m tokens at which heads are taken apart, or None.
        mix: what attention makes of the tokens' values, so that norm layers behind it work at
            their true point; None leaves each token's own value.
        apart_from_rows: measure `draw` with every token at the last one's working point, and
            `row` as the rest of the gain; otherwise all of it is `draw`.
        probes: cotangents per branch; each is shared by all tokens.
        generator: on the CPU.
        check: called at every site; may raise to give up.

    Raises:
        ValueError: attention ran that could not be taken apart by heads.
    """
    count = int(ids.shape[0])
    apart = torch.empty(0, dtype=torch.long) if gram_tokens is None else gram_tokens.cpu()
    alike = torch.arange(count if apart_from_rows else 0)
    own = torch.cat([torch.arange(count), apart.repeat_interleave(heads)])
    rows = torch.cat([own, alike]).to(ids.device)
    points = torch.cat([own, torch.full_like(alike, count - 1)]).to(ids.device)
    single = torch.cat(
        [
            torch.full((count,), -1),
            torch.arange(heads).repeat(len(apart)),
            torch.full((len(alike),), -1),
        ]
    )

    def mixed(number: int, values: Tensor) -> Tensor:
        assert mix is not None
        return mix(number, values[:count])[points.to(values.device)]

    gate = HeadGate(single, None if mix is None else mixed)
    measuring = _Measuring(sites, streams, cotangents, rows, count, probes, generator)

    def on_stream(t: int, found: Tensor) -> Tensor:
        check()
        return measuring.on_stream(t, found)

    with torch.enable_grad(), gate:
        columns.run(model, sites, ids[rows], on_stream, measuring.on_update)
    if gate.calls != sum(len(site.cores) for site in sites):
        raise ValueError(f"{gate.calls} attention operations were seen at {len(sites)} sites")
    return measuring.result(heads, len(apart))


class _Measuring:
    """The callbacks of one pass; each layer's graph is dropped when the next begins."""

    def __init__(
        self,
        sites: Sequence[Site],
        streams: Streams,
        cotangents: Cotangents,
        rows: Tensor,
        count: int,
        probes: int,
        generator: torch.Generator,
    ) -> None:
        self._sites, self._streams, self._cotangents = sites, streams, cotangents
        self._rows, self._count = rows, count
        self._probes, self._generator = probes, generator
        self._stream = self._update = torch.empty(0)
        self._local: list[F64] = []
        self._heads: list[Tensor] = []  # per site [probes, rows, d], the value path
        self._drawn: list[list[Tensor]] = []

    def _picked(self, pool: Tensor) -> Tensor:
        chosen = torch.randint(len(pool), (self._probes,), generator=self._generator)
        return pool[chosen.to(pool.device)]

    def on_stream(self, t: int, found: Tensor) -> Tensor:
        if t > 0:
            self._local.append(self._rest_of_layer(t, found))
        value = self._streams.stream[t][self._rows.to(found.device)]
        self._stream = value.reshape(found.shape).clone().requires_grad_()
        return self._stream

    def _rest_of_layer(self, t: int, found: Tensor) -> F64:
        """From the update of site t-1 to the stream of site t."""
        before, scale = self._sites[t - 1], self._sites[t].stream.coefficient
        parallel = before.block == "parallel"
        source = self._stream if parallel else self._update
        unscale = before.stream.coefficient if parallel else before.update.coefficient
        outgoing = unit(self._streams.stream[t].to(found.device).float())
        total = torch.zeros(self._count, self._count, device=found.device)
        for v in self._picked(self._cotangents.stream[t]).to(found.device):
            facing = v - outgoing * (outgoing @ v)[:, None]
            everywhere = torch.zeros(len(self._rows), len(v), device=v.device)
            everywhere[: self._count] = facing * scale
            b = _pulled(found, source, everywhere)[: self._count].to(found.device) / unscale
            size = facing.norm(dim=-1).clamp_min(1e-12)
            total += (b @ b.T - facing @ facing.T) / (size[:, None] * size) / self._probes
        return np.asarray(1 + total.double().cpu().numpy())

    def on_update(self, t: int, found: Tensor) -> Tensor:
        site = self._sites[t]
        factor = site.update.coefficient / site.stream.coefficient
        picked = self._picked(self._cotangents.update[t]).to(found.device)
        self._drawn.append(
            [
                _pulled(found, self._stream, (v * factor).expand(len(self._rows), -1)).to(
                    found.device
                )
                for v in picked
            ]
        )
        self._heads.append(picked)
        value = self._streams.update[t][self._rows.to(found.device)]
        self._update = value.reshape(found.shape).clone().requires_grad_()
        return self._update

    def result(self, heads: int, apart: int) -> Gains:
        """Averages over probes."""
        draw, row, grams = [], [], []
        end = self._count + apart * heads
        for picked, drawn in zip(self._heads, self._drawn, strict=True):
            g = torch.stack(drawn)
            gain = _root_mean_square(g[:, : self._count])
            alike = _root_mean_square(g[:, end:]) if g.shape[1] > end else gain
            draw.append(alike.double().cpu().numpy())
            row.append((gain / alike).double().cpu().numpy())
            if apart:
                tokens = self._rows[self._count : end : heads].to(g.device)
                paths = g[:, self._count : end].reshape(len(picked), apart, heads, -1)
                paths = paths / gain[tokens][:, None, None]
                same = picked[:, None, None].expand(-1, apart, 1, -1)
                both = torch.cat([same, paths], dim=2).double()
                gram = torch.einsum("pjad,pjbd->ab", both, both) / (len(picked) * apart)
                grams.append(gram.cpu().numpy())
        return Gains(self._local, np.array(draw), np.array(row), np.array(grams) if apart else None)


def _root_mean_square(pulled: Tensor) -> Tensor:
    """Norms of vectors [probes, tokens, d], averaged over probes: [tokens]."""
    return pulled.square().sum(-1).mean(0).sqrt().clamp_min(1e-30)
