"""Gains of a layer's branches at every token, measured without naming a parameter.

The theory (`lacuna.theory.second_moment`) carries the second moment S of a backward vector from the
top of the stack to the embeddings. A layer's MLP multiplies S by 1 + M, its attention adds
D (sum over heads of g^2 K^T S K) D. Everything but the kernels K is measured here. `Gains.local` is
1 + M, `Gains.draw` is D, and `Gains.row` corrects the rows of K. `Gains.gram` takes the place of
the g^2: it says how the heads' value paths align with each other and with the residual.

The trick: in a prompt of ONE token every softmax is 1, so attention hands on the token's own value.
A batch of one-token prompts, into which the document's own streams and attention updates are put
layer by layer, therefore shows each branch alone and at its true working point: from the stream to
the update lies the value path, from the update to the next stream the rest of the layer (MLP,
norms, multipliers). A gain is the norm of a cotangent pulled back through that stretch; the
cotangents come from `streams.column_cotangents`.

A head is isolated by multiplying the softmax, or the output of a fused attention, by 0 or 1 per
head (`HeadGate`). A norm layer BEHIND the attention has its own gain, at what attention really
mixed and not at one token's value; the gate puts that mix in for its value.
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
from workers.instrument import AttentionBranch
from workers.instrument.model_pass import deterministic_grad
from workers.second_moment.streams import (
    Cotangents,
    Streams,
    flat,
    run_to_last_update,
    unit,
)

AttentionOutput = Callable[[int, Tensor], Tensor]
"""(attention operation, values of the m tokens [m, H, d_v]) -> its outputs there, same shape."""


@dataclass(frozen=True)
class Gains:
    """What was measured at m tokens of a document.

    Attributes:
        local: T-1 matrices F64[m, m]: E b_j . b_k relative to v_j . v_k, with v the cotangent at
            the next branch's stream and b the same pulled back to this branch's update.
        draw: F64[T, m], gain of the value path from each token, all heads together.
        row: F64[T, m], relative gain, at each token that attends, of a norm layer behind the
            attention; 1 where there is none.
        gram: F64[T, H+1, H+1], Gram matrix of the identity and of the heads' value paths, scaled so
            that all heads together have gain 1; None when no tokens were given for it.
    """

    local: list[F64]
    draw: F64
    row: F64
    gram: F64 | None


def measure(
    model: PreTrainedModel,
    branches: Sequence[AttentionBranch],
    ids: Tensor,
    streams: Streams,
    cotangents: Cotangents,
    *,
    heads: int,
    gram_tokens: Tensor | None,
    mix: AttentionOutput | None,
    apart_from_rows: bool,
    probes: int,
    generator: torch.Generator,
    check: Callable[[], None],
) -> Gains:
    """Pull cotangents back through every branch at every token, in one pass.

    Args:
        model: frozen.
        branches: of the model.
        ids: [m, 1], the tokens themselves.
        streams: of these tokens.
        cotangents: from `streams.column_cotangents`.
        heads: H, the most heads of any branch.
        gram_tokens: indices into the m tokens at which heads are taken apart, or None.
        mix: what attention makes of the tokens' values, so that norm layers behind it work at
            their true point; None leaves each token's own value.
        apart_from_rows: measure `draw` with every token at the last one's working point, and
            `row` as the rest of the gain; otherwise all of it is `draw`.
        probes: cotangents per branch; each is shared by all tokens.
        generator: on the CPU.
        check: called at every branch; may raise to give up.

    Raises:
        ValueError: attention ran that could not be taken apart by heads.
    """
    count = int(ids.shape[0])
    apart = torch.empty(0, dtype=torch.long) if gram_tokens is None else gram_tokens.cpu()
    rows, points, single = _prompts(count, apart, heads, apart_from_rows=apart_from_rows)
    rows, points = rows.to(ids.device), points.to(ids.device)

    def mixed(number: int, values: Tensor) -> Tensor:
        assert mix is not None
        return mix(number, values[:count])[points.to(values.device)]

    gate = HeadGate(single, None if mix is None else mixed)
    callbacks = _GainCallbacks(branches, streams, cotangents, rows, count, probes, generator)

    def on_stream(t: int, found: Tensor) -> Tensor:
        check()
        return callbacks.on_stream(t, found)

    with torch.enable_grad(), gate:
        run_to_last_update(model, branches, ids[rows], on_stream, callbacks.on_update)
    if gate.calls != sum(len(branch.cores) for branch in branches):
        raise ValueError(f"{gate.calls} attention operations were seen at {len(branches)} branches")
    return callbacks.result(heads, len(apart))


def _prompts(
    count: int, apart: Tensor, heads: int, *, apart_from_rows: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The one-token prompts of the batch, in three groups.

    Every token with all its heads; the tokens `apart` once for each head; and, if
    `apart_from_rows`, every token again at the last token's working point.

    Returns:
        By prompt: whose token and stream it has, whose mix it gets, which head it keeps (-1: all).
    """
    alike = torch.arange(count if apart_from_rows else 0)
    own = torch.cat([torch.arange(count), apart.repeat_interleave(heads)])
    single = torch.full((count + len(apart) * heads + len(alike),), -1)
    single[count : len(own)] = torch.arange(heads).repeat(len(apart))
    last = torch.full_like(alike, count - 1)
    return torch.cat([own, alike]), torch.cat([own, last]), single


class _GainCallbacks:
    """The callbacks of one pass.

    Each stretch between two callbacks is differentiated as soon as it has run. The tensor that then
    replaces the found one is a new leaf with the document's own value, so the next stretch starts
    at the true point, and the graph of the last one is freed.
    """

    def __init__(
        self,
        branches: Sequence[AttentionBranch],
        streams: Streams,
        cotangents: Cotangents,
        rows: Tensor,
        count: int,
        probes: int,
        generator: torch.Generator,
    ) -> None:
        self._branches, self._streams, self._cotangents = branches, streams, cotangents
        self._rows, self._count = rows, count
        self._probes, self._generator = probes, generator
        self._stream = self._update = torch.empty(0)
        self._local: list[F64] = []
        self._picked: list[Tensor] = []  # per branch [probes, d], the cotangents behind the update
        self._drawn: list[Tensor] = []  # per branch [probes, rows, d], the same at the stream

    def _pick(self, pool: Tensor) -> Tensor:
        chosen = torch.randint(len(pool), (self._probes,), generator=self._generator)
        return pool[chosen.to(pool.device)]

    def on_stream(self, t: int, found: Tensor) -> Tensor:
        if t > 0:
            self._local.append(self._rest_of_layer(t, found))
        value = self._streams.stream[t][self._rows.to(found.device)]
        self._stream = value.reshape(found.shape).clone().requires_grad_()
        return self._stream

    def _rest_of_layer(self, t: int, found: Tensor) -> F64:
        """1 + M of the layer below branch t: from the update of branch t-1 to the stream of t.

        In a parallel block the MLP reads the stream, not the update, so the way is differentiated
        by the stream. Hooks find tensors unscaled: the cotangent of a found tensor is that of the
        residual sum times the tensor's coefficient, hence ``scale`` and ``unscale``.
        """
        before, scale = self._branches[t - 1], self._branches[t].stream.coefficient
        parallel = before.block == "parallel"
        source = self._stream if parallel else self._update
        unscale = before.stream.coefficient if parallel else before.update.coefficient
        outgoing = unit(self._streams.stream[t].to(found.device).float())
        total = torch.zeros(self._count, self._count, device=found.device)
        for v in self._pick(self._cotangents.stream[t]).to(found.device):
            # Later norm layers remove the part of v along the token's own stream. Attention sinks
            # have most of their gain there, which the measured gradient never shows.
            facing = v - outgoing * (outgoing @ v)[:, None]
            everywhere = torch.zeros(len(self._rows), len(v), device=v.device)
            everywhere[: self._count] = facing * scale
            b = _pulled(found, source, everywhere)[: self._count].to(found.device) / unscale
            size = facing.norm(dim=-1).clamp_min(1e-12)
            total += (b @ b.T - facing @ facing.T) / (size[:, None] * size) / self._probes
        return np.asarray(1 + total.double().cpu().numpy())

    def on_update(self, t: int, found: Tensor) -> Tensor:
        branch = self._branches[t]
        factor = branch.update.coefficient / branch.stream.coefficient
        picked = self._pick(self._cotangents.update[t]).to(found.device)
        drawn = [
            _pulled(found, self._stream, (v * factor).expand(len(self._rows), -1)).to(found.device)
            for v in picked
        ]
        self._picked.append(picked)
        self._drawn.append(torch.stack(drawn))
        value = self._streams.update[t][self._rows.to(found.device)]
        self._update = value.reshape(found.shape).clone().requires_grad_()
        return self._update

    def result(self, heads: int, apart: int) -> Gains:
        """Averages over probes.

        Args:
            heads: H.
            apart: tokens at which heads are taken apart.
        """
        draw, row, grams = [], [], []
        end = self._count + apart * heads
        for picked, g in zip(self._picked, self._drawn, strict=True):
            gain = _root_mean_square(g[:, : self._count])
            # All tokens at one working point: their gains differ by what each token draws, and the
            # rest of the true gain belongs to the token that attends.
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


def _pulled(output: Tensor, source: Tensor, cotangent: Tensor) -> Tensor:
    """The cotangent of ``output`` pulled back to ``source``, float32 [tokens, d]."""
    shaped = cotangent.reshape(output.shape).to(output.dtype)
    (found,) = deterministic_grad(output, [source], shaped, again=True)
    return flat(found).float()


def _root_mean_square(pulled: Tensor) -> Tensor:
    """Norms of vectors [probes, tokens, d], root mean square over probes: [tokens]."""
    return pulled.square().sum(-1).mean(0).sqrt().clamp_min(1e-30)


# --- one head at a time ---------------------------------------------------------------------------

_CARRIED = frozenset({"dropout", "to", "type_as", "type", "float", "view", "reshape"})
_PRODUCTS = frozenset({"matmul", "bmm", "__matmul__"})
_SOFTMAX = frozenset({"softmax", "_softmax", "softmax_int"})


class HeadGate(TorchFunctionMode):
    """In passes over [B, 1] ids, prompt b keeps head ``heads[b]`` only, or all heads for -1.

    Attributes:
        calls: attention operations gated so far.

    Args:
        heads: [B].
        mix: what attention outputs in place of the token's own values, for all B prompts; the
            gradient stays that of the values. None leaves the values.
    """

    def __init__(self, heads: Tensor, mix: AttentionOutput | None = None) -> None:
        super().__init__()
        self._heads = heads
        self._mix = mix
        self._weights: list[Tensor] = []  # the last softmax, and views and casts of it
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
        """The value of the mix, the gradient of the operand; [B, H, 1, d_v] or [B*H, 1, d_v]."""
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
